"""The live page as its reader sees it: in a real browser, beside real runs in processes of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser import OpenBrowser, needs_browser
from tests.crowding import crowd

pytest.importorskip("plotly")

RUN = ["run", "mushrooms-qafel-4bit", "--quiet", "--set", "evaluation.every=5", "--set", "evaluation.target=0.001"]
UPLOADS = "Number(document.querySelector('.run dd').textContent.replace(/[^0-9.]/g, ''))"
STATE = "document.querySelector('.run .tag').textContent"


@contextmanager
def process(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A `qafel` command; killed at the end, if it goes on."""
    command = [sys.executable, "-m", "qafel", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def address(watching: subprocess.Popen[str]) -> str:
    """Where the page is, as the command says it."""
    assert watching.stdout is not None
    found = re.search(r"http://127.0.0.1:\d+/", line := watching.stdout.readline())
    assert found is not None, line + watching.stdout.read()
    return found[0]


def moves(browser: OpenBrowser, script: str) -> None:
    """Wait until a value of the page has changed."""
    before = browser.value(script)
    browser.wait_for(f"({script}) !== {before!r}")


@needs_browser
@pytest.mark.slow
def test_values_and_curves_change_while_a_run_goes_on_and_the_console_is_silent(tmp_path, browser):
    runs = tmp_path / "runs"
    runs.mkdir()
    with process("watch", runs, "--port", "0") as watching:
        page = address(watching)
        browser.open(page)
        assert "No run yet in" in browser.value("document.body.innerText")
        endless = ["--set", "stop.server_steps=1000000"]
        with process(*RUN, *endless, "--out", runs / "mine"):
            browser.wait_for(f"document.querySelector('.run') && {STATE} === 'running'")
            moves(browser, UPLOADS)
            browser.wait_for("document.documentElement.dataset.drawn === '6'")
            moves(browser, "document.querySelector('#plot-uploads .js-line')?.getAttribute('d')")
            browser.value("document.querySelector('.clients summary').click()")
            browser.value("document.querySelector('button[data-chart=uploads][data-axis=x]').click()")
            moves(browser, UPLOADS)
            kept = "[document.querySelector('.clients details').open, plot('uploads')._fullLayout.xaxis.type]"
            assert browser.value(kept) == [True, "log"], "what the reader did stays"
            assert "100 of 100 clients train" in browser.value("document.querySelector('.clients').innerText")
            browser.open(page, width=390, height=844)
            moves(browser, UPLOADS)
            assert browser.value("innerWidth") == 390
            assert browser.value("document.documentElement.scrollWidth") <= 390
            assert browser.value("document.querySelector('.run').getBoundingClientRect().width") > 340
        assert browser.complaints == []


@needs_browser
@pytest.mark.slow
def test_the_page_outlives_the_run_its_end_and_its_own_server(tmp_path):
    runs = tmp_path / "runs"
    endless = ["--set", "stop.server_steps=1000000"]
    with OpenBrowser(tmp_path / "profile") as browser, process(*RUN, *endless, "--out", runs / "mine") as run:
        while not (runs / "mine" / "live.json").exists():
            assert run.poll() is None
            time.sleep(0.1)
        with process("watch", runs, "--port", "0") as watching:
            page = address(watching)
            browser.open(page)
            moves(browser, UPLOADS)
            assert browser.complaints == []
        browser.wait_for("document.getElementById('connection').className.includes('lost')")
        with process("watch", runs, "--port", page.rpartition(":")[2].strip("/")) as watching:
            assert address(watching) == page
            browser.wait_for("!document.getElementById('connection').className.includes('lost')")
            moves(browser, UPLOADS)
            run.send_signal(signal.SIGINT)
            browser.wait_for(f"{STATE} === 'stopped'")
            with process(*RUN, *endless, "--resume", "--out", runs / "mine") as resumed:
                browser.wait_for(f"{STATE} === 'running'")
                moves(browser, UPLOADS)
                resumed.kill()
                resumed.wait()
                browser.wait_for(f"{STATE}.startsWith('silent for')")
            with process(*RUN, "--set", "stop.server_steps=20", "--overwrite", "--out", runs / "mine") as again:
                assert again.wait(120) == 0
            browser.wait_for(f"{STATE} === 'finished' && {UPLOADS} === 200")


@needs_browser
def test_text_of_a_run_stays_text_in_the_browser(tmp_path, make_run, browser):
    evil = '<img src="http://127.0.0.1:9/x" onerror="document.title=1">'
    make_run("evil", name=evil, metric_name=evil, rejected={evil: 3}, status=evil, config={"name": evil})
    with process("watch", tmp_path / "evil", "--port", "0") as watching:
        browser.open(address(watching))
        browser.wait_for("document.documentElement.dataset.drawn === '6' && document.title === 'Runs, live'")
        browser.wait_for("document.getElementById('connection').textContent.startsWith('Live')")
        assert browser.value("document.querySelectorAll('img').length") == 0
        assert browser.value("document.querySelector('.run h3').textContent") == evil
        assert browser.complaints == []


@needs_browser
def test_a_page_that_cannot_be_live_says_why_and_is_once_it_can(tmp_path, browser):
    with process("watch", tmp_path, "--port", "0") as watching:
        page = address(watching)
        port = int(page.rpartition(":")[2].strip("/"))
        said = "document.getElementById('connection').textContent"
        with crowd(port, 40, f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()):
            browser.open(page)
            browser.wait_for(f"{said}.includes('32 streams are open')")
        browser.wait_for(f"{said}.startsWith('Live')")
