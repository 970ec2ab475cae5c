"""Add generated pages to the site: notebooks, and the source files that documents link to.

MkDocs calls the `on_…` functions (`hooks` in mkdocs.yml). Documents link to files by relative paths, as on GitHub. A
link that leaves docs/ becomes a link to a page with that file's content, so the site works without a network.
"""

from __future__ import annotations

import json
import posixpath
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")
FENCED = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
NOTEBOOKS = "examples/notebooks"
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"

origins: dict[str, str] = {}
"""The source file of each generated page, by the page's address."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand `folder/*` and `*` in the navigation to the pages that it does not name."""
    config.nav = _expanded(config.nav, Path(config.docs_dir), set(_named(config.nav)))
    origins.clear()
    return config


def _named(entries: Any) -> Iterator[str]:
    """Yield the pages that the navigation names."""
    if isinstance(entries, str):
        yield entries
    else:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from _named(entry)


def _expanded(entries: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(entries, dict):
        return {title: _expanded(entry, docs, named) for title, entry in entries.items()}
    if not isinstance(entries, list):
        return entries
    expanded: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and entry.endswith("*"):
            pages = sorted(page.relative_to(docs).as_posix() for page in docs.glob(f"{entry}.md"))
            expanded += [page for page in pages if page not in named]
        else:
            expanded.append(_expanded(entry, docs, named))
    return expanded


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add notebooks, the changelog, and every file outside docs/ that a page links to."""
    for notebook in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        for name, content in notebook_page(notebook).items():
            _add(files, config, f"notebooks/{name}", content, f"{NOTEBOOKS}/{notebook.name}")
    _add(files, config, "CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), "CHANGELOG.md")
    unread = [file for file in files if file.is_documentation_page()]
    while unread:
        page = unread.pop()
        for target in _targets(page.content_string, _origin(page.src_uri)):
            address = _address(target)
            if files.get_file_from_path(address) is None and (ROOT / target).exists():
                unread += _add_source(files, config, target, address)
    return files


def _add(files: Files, config: MkDocsConfig, address: str, content: str | bytes, origin: str = "") -> File:
    shown = InclusionLevel.NOT_IN_NAV if address.startswith("source/") else InclusionLevel.INCLUDED
    file = File.generated(config, address, content=content, inclusion=shown)
    files.append(file)
    origins[address] = origin or f"docs/{address}"
    return file


def _add_source(files: Files, config: MkDocsConfig, target: str, address: str) -> list[File]:
    path = ROOT / target
    if path.is_dir():
        content = _folder_page(path, target)
    elif path.suffix == ".md":
        content = UNSEARCHED + path.read_text(encoding="utf-8")
    elif path.suffix in LANGUAGES:
        content = f"{UNSEARCHED}# {target}\n\n````{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}\n````\n"
    else:
        _add(files, config, address, path.read_bytes(), target)
        return []
    return [_add(files, config, address, content, target)]


def _folder_page(folder: Path, target: str) -> str:
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir() if not path.name.startswith((".", "_")))
    listed = [name for name in names if not name.endswith((".nbi", ".nbc", ".egg-info/"))]
    package = ".".join(Path(target).parts[1:]) if target.startswith("src/qafel") else ""
    said = f"\n::: {package}\n    options:\n      members: false\n" if package else ""
    return f"{UNSEARCHED}# {target}/\n{said}\n```text\n" + "\n".join(listed) + "\n```\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files into links to pages."""
    here = page.file.src_uri
    origin = _origin(here)

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[2]))
        return link[1] + posixpath.relpath(_address(target), posixpath.dirname(here) or ".")

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(turned, part) for part in parts)


def _origin(address: str) -> str:
    return origins.get(address, f"docs/{address}")


def _targets(markdown: str, origin: str) -> set[str]:
    """The files that a page links to, relative to the repository's root."""
    prose = FENCED.sub("", markdown)
    return {posixpath.normpath(posixpath.join(posixpath.dirname(origin), link)) for _, link in LINK.findall(prose)}


def _address(target: str) -> str:
    """The address of a file's page on the site."""
    path = Path(target)
    if path.parts[0] == "docs":
        inside = "/".join(path.parts[1:])
        return f"{inside}/README.md" if (ROOT / target).is_dir() else inside
    if target == "CHANGELOG.md":
        return target
    if path.parent.as_posix() == NOTEBOOKS and path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    if (ROOT / target / "README.md").is_file():
        return f"source/{target}/README.md"
    if (ROOT / target).is_dir():
        return f"source/{target}/index.md"
    return f"source/{target}.md" if path.suffix in LANGUAGES else f"source/{target}"


def notebook_page(notebook: Path) -> dict[str, str | bytes]:
    """A notebook as a page with its text, code and saved outputs. Pictures become separate files."""
    made: dict[str, str | bytes] = {}
    parts = []
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for place, output in enumerate(cell.get("outputs", [])):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{notebook.stem}-{number}-{place}.png"
                made[picture] = b64decode("".join(data["image/png"]))
                parts.append(f'<img alt="Output of the cell" src="{picture}">')
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text {{.output}}\n{text.rstrip()}\n```")
    link = f'*This page is a notebook with its saved outputs: <a href="{notebook.name}" download>{notebook.name}</a>.*'
    made[notebook.name] = notebook.read_bytes()
    title, *rest = parts
    return made | {f"{notebook.stem}.md": "\n\n".join([title, link, *rest]) + "\n"}
