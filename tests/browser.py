"""A real browser for the tests of pages: what it drew, what its console said, what a finger would do."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

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
    command = [CHROMIUM, *FLAGS, "--virtual-time-budget=8000", f"--user-data-dir={profile}"]
    command += ["--window-size=1280,2600", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


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


# The browser reads from its descriptor 3 and writes to 4; those that are there may be the same numbers.
PLUMBING = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class OpenBrowser:
    """A browser that stays open, in real time: for pages that change while somebody looks.

    It is spoken to by the DevTools protocol over a pair of pipes. `complaints` are what the console said of errors.
    """

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._answers: Queue[dict[str, Any]] = Queue()
        self._number = 0
        self._session: dict[str, str] = {}
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        assert CHROMIUM is not None, "CI needs chromium for these tests: install it"
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "--remote-debugging-pipe", "about:blank"]
        plumbed = [sys.executable, "-c", PLUMBING, str(theirs_in), str(theirs_out), *command]
        self._process = subprocess.Popen(
            plumbed, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = {}
        self.ask("Browser.close")
        self._process.wait(30)
        os.close(self._to)
        self._reader.join(10)
        os.close(self._from)

    def _read(self) -> None:
        waiting = b""
        while new := os.read(self._from, 1 << 16):
            *whole, waiting = (waiting + new).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if "id" in message:
                    self._answers.put(message)
                else:
                    self._hear(message.get("method", ""), message.get("params", {}))

    def _hear(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(told["entry"]))

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """A command of the protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        try:
            answer = self._answers.get(timeout=200)
        except Empty:
            raise AssertionError(f"the browser did not answer to {method}") from None
        assert "error" not in answer, answer
        return dict(answer["result"])

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        """Go to a page; a width below 500 is a phone's."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        arrived = self.ask("Page.navigate", url=address)
        assert "errorText" not in arrived, arrived
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def open_drawn(self, page: Path, width: int = 1280, height: int = 900) -> None:
        """Open a file, and wait until its charts are drawn."""
        self.open(page.as_uri(), width, height)
        self.wait_for("document.documentElement.dataset.drawn")

    def value(self, script: str) -> Any:
        """What an expression is on the page."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = 120.0) -> Any:
        """What an expression is once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.value(script)):
            assert time.monotonic() < deadline, f"waited {timeout_s} s for {script}"
            time.sleep(0.1)
        return found

    def picture(self, file: Path, whole: bool = False) -> None:
        """Take a screenshot of what is seen, or of the `whole` page."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))
