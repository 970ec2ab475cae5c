"""The page in a real browser: it draws every curve, asks for nothing, and complains about nothing."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel.report import write_report
from qafel.runs.reading import Run

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


pytestmark = pytest.mark.skipif(
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


def test_every_chart_shows_every_curve_and_the_console_is_silent(make_run, tmp_path):
    steps = np.arange(3_000)
    diverging = 0.68 * np.exp(np.where(steps < 500, -steps / 500, steps / 200 - 3.5))
    diverging[-2:] = 1e307, math.nan
    evil = '<img src="http://127.0.0.1:9/x" onerror="alert(1)"><a href="javascript:1">'
    runs = [
        Run.load(make_run("fedbuff", metric=np.geomspace(0.68, 1e-4, 3_000), upload_bytes=468)),
        Run.load(make_run("flat", metric=np.maximum(np.geomspace(0.68, 1e-4, 3_000), 1e-1))),
        Run.load(make_run("evil", metric=diverging, name=evil)),
    ]
    page = write_report(runs, tmp_path / "report.html", title=evil)
    dom, console = open_in_browser(page, tmp_path / "profile")
    assert console == []
    assert 'data-drawn="7"' in dom
    assert '<div id="problem" role="alert"></div>' in dom
    plots = plots_in(dom)
    curves = {key: len(re.findall(r'<path class="js-line"', plot)) for key, plot in plots.items()}
    assert curves == dict.fromkeys(plots, 0) | {"uploads": 3, "bytes": 3, "virtual-time": 3, "lag": 3}
    bars = {key: len(re.findall(r'<g class="trace bars"', plot)) for key, plot in plots.items()}
    assert {key: count for key, count in bars.items() if count} == {"staleness": 3, "traffic": 6, "received": 3}
    assert "<img" not in dom
    # As text, be it shortened, it does no harm; as an attribute it would.
    assert 'href="javascript' not in re.sub(r"&lt;a href=.*?&gt;", "", dom[: dom.index('id="charts"')])


def test_the_legend_hides_a_run_everywhere_and_a_toggle_changes_the_scale(make_run, tmp_path):
    about = {"metric_name": "balanced accuracy of all clients, weighted by their samples", "target": 0.01}
    runs = [Run.load(make_run("a", **about)), Run.load(make_run("b", upload_bytes=80, **about))]
    page = write_report(runs, tmp_path / "report.html")
    script = """
      document.querySelector('.legend button[data-run="1"]').click();
      document.querySelector('button[data-chart="uploads"][data-axis="y"]').click();
      const box = document.querySelector('.scroll');
      found = () => ({
        scale: plot('uploads')._fullLayout.yaxis.type,
        steps: ['log', 'linear'].map(type => axis({ type, dtick: 'D2' }).dtick || 'none'),
        fits: box.scrollWidth <= box.clientWidth,
        targets: document.querySelectorAll('#plot-uploads .shapelayer path').length,
      });"""
    add_script(page, script)
    dom, console = open_in_browser(page, tmp_path / "profile")
    assert console == []
    assert found_in(dom) == {"scale": "linear", "steps": ["D2", "none"], "fits": True, "targets": 1}
    plots = plots_in(dom)
    assert [len(re.findall(r'<path class="js-line"', plots[key])) for key in ("uploads", "bytes", "lag")] == [1, 1, 1]
    assert len(re.findall(r'<g class="trace bars"', plots["traffic"])) == 2


def test_on_a_phone_the_legend_leaves_room_and_stays_with_the_charts(make_run, tmp_path):
    names = [f"mushrooms-qafel-with-{bits}-bits-up-and-down" for bits in range(21)]
    runs = [Run.load(make_run(name, metric=[0.68, 0.1])) for name in names]
    page = write_report(runs, tmp_path / "report.html")
    script = """
      const legend = document.querySelector('.legend'), last = document.querySelector('#plot-received .xtitle');
      document.querySelector('#plot-lag').scrollIntoView();
      const among = legend.getBoundingClientRect();
      document.querySelector('footer').scrollIntoView();
      found = () => ({
        follows: Math.abs(among.top) < 1, share: among.height / innerHeight,
        gone: legend.getBoundingClientRect().bottom <= 0,
        overflow: document.documentElement.scrollWidth - innerWidth, width: innerWidth,
        title: last.textContent, room: innerWidth - last.getBoundingClientRect().right,
      });"""
    add_script(page, script)
    dom, console = open_in_browser(on_a_phone(page), tmp_path / "profile")
    assert console == []
    found = found_in(dom)
    assert found.pop("share") < 0.25
    assert found.pop("room") > 0
    assert found.pop("overflow") <= 0
    expected = {"follows": True, "gone": True, "width": 390, "title": "bytes received by all"}
    assert found == expected


def test_without_a_browser_ci_fails_and_a_developer_skips():
    assert may_skip(None, {})
    assert not may_skip(None, {"CI": "true"})
    assert not may_skip("/usr/bin/chromium", {})
