"""Convert docstrings for the reference: blocks of `name   meaning` lines become lists."""

from __future__ import annotations

import re

import griffe

ROW = re.compile(r"^ *(?P<names>`?[\w*./-]+`?(?:, `?[\w*./-]+`?)*) {2,}(?P<text>\S.*)$")
LEAST_ROWS = 2


class Tables(griffe.Extension):
    """A griffe extension, named in mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Return the docstring with its two-column blocks as Markdown lists."""
    blocks = re.split(r"\n[ \t]*\n", docstring)
    return "\n\n".join(_as_list(block) for block in blocks)


def _as_list(block: str) -> str:
    lines = block.splitlines()
    rows: list[list[str]] = []
    before: list[str] = []
    for line in lines:
        if row := ROW.match(line):
            rows.append([row["names"].strip("`"), row["text"]])
        elif rows and line.startswith(" "):
            rows[-1][1] += " " + line.strip()
        elif rows:
            return block
        else:
            before.append(line)
    if len(rows) < LEAST_ROWS:
        return block
    listed = [f"- **`{names}`**: {text}" for names, text in rows]
    return "\n".join([*before, *([""] if before else []), *listed])
