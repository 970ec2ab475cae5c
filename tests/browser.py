"""A real browser for the tests of pages: what it drew, what its console said, what a finger would do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=8000",
)


def may_skip(chromium: str | None, environment: Mapping[str, str]) -> bool:
    """A developer may lack a browser; CI may not, or these tests would vanish unnoticed."""
    return chromium is None and not environment.get("CI")


needs_browser = pytest.mark.skipif(
    may_skip(CHROMIUM, os.environ), reason="needs chromium, to open the page as a reader would"
)


def open_in_browser(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's DOM after its script ran, and what the console said."""
    assert CHROMIUM is not None, "CI needs chromium for these tests: install it"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--window-size=1280,2600", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


KEEP = "addEventListener('message', event => { document.body.dataset.found = event.data; });"


def add_script(page: Path, script: str) -> None:
    """Let the page do, a second after it was drawn, what a reader's finger would; `found` is kept for `found_in`."""
    # The page's policy allows no further script, which is its purpose.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page.read_text(encoding="utf-8"))
    end = "setTimeout(() => top.postMessage(JSON.stringify(found()), '*'), 1000);"
    script = f"<script>{KEEP} let found = () => null; setTimeout(() => {{ {script} {end} }}, 1000)</script>"
    page.write_text(text.replace("</body>", script + "</body>"), encoding="utf-8")


def on_a_phone(page: Path) -> Path:
    """A page that shows another as a phone of 390 × 844 would; a window of its own is never narrower than 500."""
    frame = f'<iframe src="{page.name}" style="border: 0; width: 390px; height: 844px"></iframe>'
    phone = page.with_name("phone.html")
    phone.write_text(f"<!DOCTYPE html><body>{frame}<script>{KEEP}</script></body>", encoding="utf-8")
    return phone


def found_in(dom: str) -> Any:
    found = re.search(r'data-found="(.*?)"', dom)
    assert found is not None
    return json.loads(unescape(found[1]))


def plots_in(dom: str) -> dict[str, str]:
    """Everything that was drawn into each chart."""
    parts = re.split(r'id="plot-([a-z-]+)"', dom[: dom.index('id="charts"')])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def charts_in(page: str) -> dict[str, list[dict]]:
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    return {chart["key"]: chart["traces"] for chart in json.loads(data[1])}


def own_html(page: str) -> str:
    """The page without plotly.js."""
    return page[: page.index("plotly.js v")]
