"""The live page's server: the page with its first state, then server-sent events with what changes.

Who may ask: a request names a host that is this machine's own (or was allowed), or it is refused, and so is one that a
page from elsewhere makes. Else any web page could read runs here, by a name of its own that leads to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Final, final
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qafel.errors import ConfigError
from qafel.version import __version__
from qafel.watch.page import Painter, Picture
from qafel.watch.sources import Source

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_EVERY_S: Final = 1.0
_REST: Final = 9.0
"""To look and to draw takes at most a tenth of a core: it rests so many times as long as it worked."""
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
    """What the page shows, looked up at most once a second, however many ask; and not at all if nobody does."""

    def __init__(self, sources: Sequence[Source], where: str = "", every_s: float = _EVERY_S) -> None:
        self._sources, self._where, self._every_s = sources, where, every_s
        self._painter = Painter()
        self._looking = asyncio.Lock()
        self._picture: Picture | None = None
        self._good_until = 0.0

    async def picture(self) -> Picture:
        async with self._looking:
            if self._picture is None or time.monotonic() >= self._good_until:
                began = time.process_time()
                self._picture = await self._look()
                rest_s = min(_LONGEST_REST_S, _REST * (time.process_time() - began))
                self._good_until = time.monotonic() + max(0.9 * self._every_s, rest_s)
            return self._picture

    async def _look(self) -> Picture:
        seen = [one for source in self._sources for one in await source.look()]
        notes = [source.note for source in self._sources if source.note]
        return await asyncio.to_thread(self._painter.picture, seen, notes, self._where)

    async def events(self, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
        """What a browser hears, until `ended`: everything at first, then what has changed, and the time."""
        figures = charts = None
        yield b"retry: 2000\n\n" + _event("hello", software())
        while not ended():
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
    """Which version of the page this is: a page that another version sent loads itself again."""
    parts = [files(__package__).joinpath(name).read_bytes() for name in ("live.js", "live.css")]
    return f"{__version__}-{hashlib.sha256(b''.join(parts)).hexdigest()[:12]}"


@final
class OnlyFor:
    """Lets requests through that name one of the `hosts`, and that no page from elsewhere makes."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().strip("[]").rstrip(".") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ConfigError(f"this page is served by HTTP alone, not by {scope['type']}")
        headers = Headers(scope=scope)
        asked, origins = headers.getlist("host"), headers.getlist("origin")
        if len(asked) != 1 or _host(f"//{asked[0]}") not in self._hosts:
            words = "This page answers only to its own host's name. `qafel watch --allow-host NAME` allows another."
            await PlainTextResponse(words, 421)(scope, receive, send)
        elif any(_host(origin) not in self._hosts for origin in origins):
            await PlainTextResponse("Pages from elsewhere may not read this.", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, _with_headers(send))


def _host(address: str) -> str | None:
    """The host in an address, without port and brackets; None if there is none, as in the origin "null"."""
    with suppress(ValueError):
        host = urlsplit(address).hostname
        return None if host is None else host.rstrip(".")
    return None


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            told = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *told]}
        await send(message)

    return sending


def make_app(board: Board, hosts: Iterable[str] = LOOPBACK, ended: Callable[[], bool] = lambda: False) -> ASGIApp:
    """The page and its events, for requests to one of the `hosts`; events end when `ended` says so."""

    async def whole_page(_: Request) -> HTMLResponse:
        picture = await board.picture()
        return HTMLResponse(await asyncio.to_thread(picture.whole_page))

    async def events(_: Request) -> StreamingResponse:
        return StreamingResponse(board.events(ended), media_type="text/event-stream")

    return OnlyFor(Starlette(routes=[Route("/", whole_page), Route("/events", events)]), hosts)


def listen(address: str, port: int) -> socket.socket:
    """A socket at an address of this machine; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        number = error.errno or 0
        reason = (os.strerror(number) if number > 0 else str(error)).lower()
        hint = "choose another `port`" if port else "choose another `address`"
        raise ConfigError(f"cannot serve the page at {address}:{port} ({reason}): {hint}") from None


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
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
    """Serve the page of these sources at a socket, until a signal ends it.

    `where` says in the page's words where runs are looked for; besides this machine's own names, the page answers to
    those of `allow_hosts`; `ready` is called when requests are heard.
    """
    hosts = (*LOOPBACK, at.getsockname()[0], *allow_hosts)

    async def run() -> None:
        server: uvicorn.Server | None = None

        def ended() -> bool:
            return server is not None and server.should_exit

        app = make_app(Board(sources, where), hosts, ended)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                http="h11",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=3,
            )
        )
        ready()
        await server.serve(sockets=[at])

    asyncio.run(run())
