"""A live page of runs, from run directories or a broker, for a browser.

sources  watched runs, forecasts of their duration, and where they come from: folders, or reported states
page     the page: a card per run, and the report's charts

This module is the page's server: the page with its first state, then server-sent events with changes.

A request must name a host of this machine or an allowed one, and must not come from another site's page. Otherwise any
web page could read runs here, through a host name that resolves to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Final, final
from urllib.parse import urlsplit

from qafel.http import Answer, Handler, Request, refusal, serving
from qafel.version import __version__
from qafel.watch.page import Painter, Picture
from qafel.watch.sources import Source

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_EVERY_S: Final = 1.0
_REST: Final = 9.0
"""Pause this many times as long as the last update took, so that updates use at most a tenth of a core."""
_LONGEST_REST_S: Final = 10.0
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@final
class Board:
    """The page's content, updated at most once a second for all readers, and only while there are readers."""

    def __init__(self, sources: Sequence[Source], where: str = "", every_s: float = _EVERY_S) -> None:
        self._sources, self._where, self._every_s = sources, where, every_s
        self._painter = Painter()
        self._looking: asyncio.Task[Picture] | None = None
        self._drawing: asyncio.Task[bytes] | None = None
        self._drawn: Picture | None = None
        self._good_until = 0.0

    async def picture(self) -> Picture:
        """The newest picture. An update continues if its first reader has left."""
        if self._looking is None or (self._looking.done() and time.monotonic() >= self._good_until):
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def page(self) -> bytes:
        """The whole page, drawn once per picture."""
        picture = await self.picture()
        if self._drawing is None or picture is not self._drawn:
            self._drawn = picture
            self._drawing = asyncio.create_task(asyncio.to_thread(lambda: picture.whole_page().encode()))
        return await asyncio.shield(self._drawing)

    async def _look(self) -> Picture:
        began = time.process_time()
        seen = [one for source in self._sources for one in await source.look()]
        notes = [source.note for source in self._sources if source.note]
        picture = await asyncio.to_thread(self._painter.picture, seen, notes, self._where)
        rest_s = min(_LONGEST_REST_S, _REST * (time.process_time() - began))
        self._good_until = time.monotonic() + max(0.9 * self._every_s, rest_s)
        return picture

    async def events(self) -> AsyncGenerator[bytes, None]:
        """An endless stream for a browser: everything first, then changes, and the time."""
        figures = charts = None
        yield b"retry: 2000\n\n" + _event("hello", software())
        while True:
            picture = await self.picture()
            if picture.figures != figures:
                figures = picture.figures
                yield _event("figures", json.dumps(figures, ensure_ascii=False))
            if picture.charts != charts:
                charts = picture.charts
                yield _event("charts", charts)
            yield _event("time", f"{time.time():.3f}")
            await asyncio.sleep(self._every_s)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


@cache
def software() -> str:
    """The version of the page. A page of another version reloads itself."""
    parts = [files(__package__).joinpath(name).read_bytes() for name in ("live.js", "live.css")]
    return f"{__version__}-{hashlib.sha256(b''.join(parts)).hexdigest()[:12]}"


def answering(board: Board, hosts: Iterable[str] = LOOPBACK) -> Handler:
    """Serve the page and its events to requests for one of the `hosts` that do not come from another site's page."""
    known = frozenset(host.lower().strip("[]").rstrip(".") for host in hosts)

    async def answer(request: Request) -> Answer:
        asked = request.header("host")
        if len(asked) != 1 or _host(f"//{asked[0]}") not in known:
            words = "This host name is not allowed. `qafel watch --allow-host NAME` allows it."
            return refusal(HTTPStatus.MISDIRECTED_REQUEST, words)
        if any(_host(origin) not in known for origin in request.header("origin")):
            return refusal(HTTPStatus.FORBIDDEN, "Pages of other sites may not read this.")
        if request.path == "/":
            return Answer(await board.page(), "text/html; charset=utf-8", headers=_HEADERS)
        if request.path == "/events":
            return Answer(board.events(), "text/event-stream; charset=utf-8", headers=_HEADERS)
        return refusal(HTTPStatus.NOT_FOUND, "Not found. The page is at /.")

    return answer


def _host(address: str) -> str | None:
    """The host in an address, without port and brackets; None if there is none, as for the origin "null"."""
    with suppress(ValueError):
        host = urlsplit(address).hostname
        return None if host is None else host.rstrip(".")
    return None


def is_loopback(address: str) -> bool:
    """Whether an address is reachable only from this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def serve(
    sources: Sequence[Source],
    at: socket.socket,
    *,
    where: str = "",
    allow_hosts: Sequence[str] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve the page at a socket, until a signal ends it.

    where        describes the sources on the page
    allow_hosts  allowed host names besides this machine's
    ready        called when the server accepts requests
    """
    hosts = (*LOOPBACK, at.getsockname()[0], *allow_hosts)

    async def run() -> None:
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        async with serving(at, answering(Board(sources, where), hosts)):
            ready()
            await ended.wait()

    asyncio.run(run())
