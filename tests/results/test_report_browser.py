"""The page in a real browser: it draws every curve, asks for nothing, and complains about nothing."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from qafel.results.report import write_report
from qafel.results.runs import Run

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

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to open the page as a reader would")


def open_in_browser(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's DOM after its script ran, and what the console said."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--window-size=1280,2600", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


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
    assert "javascript:1" not in re.sub(r"&lt;a href=.*?&gt;", "", dom[: dom.index('id="charts"')])


def test_the_legend_hides_a_run_everywhere_and_a_toggle_changes_the_scale(make_run, tmp_path):
    page = write_report([Run.load(make_run("a")), Run.load(make_run("b", upload_bytes=80))], tmp_path / "report.html")
    # The page's policy allows no further script, which is its purpose; a reader's finger needs one here.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page.read_text(encoding="utf-8"))
    clicks = """<script>setTimeout(() => {
      document.querySelector('.legend button[data-run="1"]').click();
      document.querySelector('button[data-chart="uploads"][data-axis="y"]').click();
      setTimeout(() => { document.body.dataset.scale = plot('uploads')._fullLayout.yaxis.type; }, 1000);
    }, 1000)</script>"""
    page.write_text(text.replace("</body>", clicks + "</body>"), encoding="utf-8")
    dom, console = open_in_browser(page, tmp_path / "profile")
    assert console == []
    assert 'data-scale="linear"' in dom
    plots = plots_in(dom)
    assert [len(re.findall(r'<path class="js-line"', plots[key])) for key in ("uploads", "bytes", "lag")] == [1, 1, 1]
    assert len(re.findall(r'<g class="trace bars"', plots["traffic"])) == 2
