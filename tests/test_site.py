"""The documentation's site: built without a warning, whole without a network, its pictures of the present code."""

import fcntl
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import qafel
from qafel.cli import app

from .browser import needs_browser, open_in_browser

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
ROOT = Path(__file__).parent.parent
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|srcset|data)=[\"']?(?P<a>(?:https?:)?//[^\s\"'>]+)"
    r"|<link\b[^>]*?\bhref=[\"']?(?P<b>(?:https?:)?//[^\s\"'>]+)"
    r"|(?:url\(|@import\s)[\"']?(?P<c>(?:https?:)?//[^\s\"')]+)"
)


@pytest.fixture(scope="session")
def site(tmp_path_factory, request):
    """The site, built once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if hasattr(request.config, "workerinput") else shared
    with open(shared / "site.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = shared / "site"
        if not folder.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if built.returncode:
                shutil.rmtree(folder, ignore_errors=True)
            assert built.returncode == 0, built.stderr
            (shared / "site.log").write_text(built.stderr)
    return folder


def test_it_is_built_without_a_warning(site):
    log = site.with_name("site.log").read_text()
    assert "WARNING" not in log
    assert (site / "index.html").is_file()
    assert len(list(site.rglob("*.html"))) > 80


def test_no_page_loads_anything_from_elsewhere(site):
    files = [*site.rglob("*.html"), *site.rglob("*.css"), *site.glob("assets/*.js"), *site.rglob("*.svg")]
    found = {
        f"{file.relative_to(site)}: {next(filter(None, hit.groups()))}"
        for file in files
        for hit in LOADED.finditer(file.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "page",
    ['<script src="https://a.org/b.js">', "<link rel=stylesheet href=https://a.org>", "a{src:url(//a.org/f.woff)}"],
)
def test_what_is_loaded_from_elsewhere_would_be_found(page):
    assert LOADED.search(page)
    assert not LOADED.search('<a href="https://arxiv.org">')


def test_every_public_name_is_in_the_reference(site):
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    shown = set(re.findall(r'id="(qafel[\w.]*)"', pages))
    public = ["algorithm", "quantizers", "search", "simulator", "tasks", "theory", "deployment"]
    names = [f"qafel.{room}.{name}" for room in public for name in importlib.import_module(f"qafel.{room}").__all__]
    # A function with its module's name, such as `run.run`, is shown as that.
    assert [name for name in names if not {name, f"{name}.{name.rsplit('.', 1)[1]}"} & shown] == []
    last = {name.rsplit(".", 1)[1] for name in shown if "." in name}
    renamed = {"__version__", "Vector", "quantizer"}  # an alias of an array; quantizers.parse
    assert [name for name in qafel.__all__ if name not in last | renamed] == []


def test_the_pages_of_recipe_keys_and_commands_are_current():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        recipe_keys = importlib.import_module("recipe_keys")
    finally:
        sys.path.pop(0)
    for name, make in recipe_keys.PAGES.items():
        written = (recipe_keys.REFERENCE / name).read_text(encoding="utf-8")
        assert written == make(), "run: python scripts/recipe_keys.py"


@pytest.mark.parametrize("word", ["GPU", "Adam", "BatchNorm", "FedAdam", "systemd", "LaTeX", "resume"])
def test_the_search_index_has_the_words_that_newcomers_look_for(site, word):
    index = (site / "search/search_index.js").read_text(encoding="utf-8")
    pages = json.loads(index.partition("=")[2])["docs"]
    guides = [page for page in pages if not page["location"].startswith(("index", "CHANGELOG", "decisions"))]
    assert any(re.search(rf"\b{word}\b", page["title"] + page["text"]) for page in guides)


def test_every_command_is_in_the_reference(site):
    page = (site / "reference/commands.html").read_text(encoding="utf-8")

    def paths(command, before):
        inner = getattr(command, "commands", {})
        return [before, *(path for name, one in inner.items() for path in paths(one, f"{before} {name}"))]

    assert [path for path in paths(get_command(app), "qafel")[1:] if f"<code>{path}</code>" not in page] == []


def test_a_two_column_docstring_becomes_a_list():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        as_markdown = importlib.import_module("site_docstrings").as_markdown
    finally:
        sys.path.pop(0)
    shown = as_markdown("Run.\n\ntask      what is learnt,\n          by all\nlr        η of `y`\n\nx  y")
    assert shown == "Run.\n\n- **`task`**: what is learnt, by all\n- **`lr`**: η of `y`\n\nx  y"


def test_the_pictures_are_those_of_the_present_code():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        drawn = importlib.import_module("draw_hidden_state").pictures()
        drawn["bytes.svg"] = importlib.import_module("draw_bytes").picture()
    finally:
        sys.path.pop(0)
    kept = {name: (ROOT / "docs/images" / name).read_text(encoding="utf-8") for name in drawn}
    assert len(drawn) == 10
    assert kept == drawn


def test_without_a_script_all_steps_are_shown(site):
    page = (site / "hidden-state.html").read_text(encoding="utf-8")
    assert page.count('class="step"') == 8
    assert "hidden>" not in page[page.index('class="steps"') : page.rindex('class="step"')]


@needs_browser
def test_with_a_script_one_step_is_shown_and_the_buttons_lead_on(site, tmp_path):
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    page = copy / "hidden-state.html"
    click = "addEventListener('load', () => document.querySelector('.steps-bar button:last-child').click())"
    page.write_text(
        page.read_text(encoding="utf-8").replace("</body>", f"<script>{click}</script></body>"), encoding="utf-8"
    )
    dom, console = open_in_browser(page, tmp_path / "profile")
    assert [bool(re.search(r"\bhidden\b", step)) for step in re.findall(r'<div class="step"[^>]*>', dom)] == [
        number != 1 for number in range(8)
    ]
    assert "2 of 8" in dom
    assert console == []


@needs_browser
def test_search_finds_from_the_file_system(site, tmp_path):
    link = tmp_path / "search.html"
    link.write_text(f'<meta http-equiv="refresh" content="0; url={(site / "index.html").as_uri()}?q=staleness">')
    dom, console = open_in_browser(link, tmp_path / "profile")
    assert re.search(r"\d+ matching documents", dom)
    assert "md-search-result__item" in dom
    assert console == []
