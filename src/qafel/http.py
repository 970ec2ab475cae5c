"""A small HTTP server with limits, for the metrics and the live page: GET, one answer per connection.

The server must not exhaust the descriptors, memory or processor time of its process. So it limits the number of
connections and the time of each. A new connection beyond the limit replaces the oldest one, so idle connections cannot
block requests. Endless answers (streams) have a separate limit; one too many is refused. Requests are not logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, final

from qafel.errors import ConfigError

TEXT: Final = "text/plain; charset=utf-8"
_MOST_HEAD_BYTES: Final = 16 << 10
_PIECE_BYTES: Final = 64 << 10
_WAITING: Final = 1024
_LINGER: Final = struct.pack("ii", 1, 0)  # close immediately and drop unread data
_ACCEPT_ROUNDS: Final = 3  # from a socket to its handler, asyncio takes two rounds of the loop
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")

log = logging.getLogger(__name__)


class Request(NamedTuple):
    """A GET request."""

    path: str
    """Without the query."""
    headers: Sequence[tuple[str, str]]
    """Names in lower case."""

    def header(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for found, value in self.headers if found == name]


class Answer(NamedTuple):
    """A response: bytes, or an endless stream of them."""

    content: bytes | AsyncGenerator[bytes, None]
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = MappingProxyType({})


Handler: TypeAlias = Callable[[Request], Awaitable[Answer]]


def refusal(status: HTTPStatus, sentence: str) -> Answer:
    return Answer(f"{sentence}\n".encode(), status=status)


@final
@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of a port."""

    connections: int = 64
    """Open connections, without streams."""
    streams: int = 64
    streams_per_address: int = 32
    ask_s: float = 5.0
    """Time for a request to arrive."""
    answer_s: float = 30.0
    """Time for an answer, or a piece of a stream, to be read."""

    @staticmethod
    def of_process() -> HttpLimits:
        """The default limits, but at most a quarter of this process's descriptors."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 64 if descriptors == resource.RLIM_INFINITY else max(2, min(64, descriptors // 8))
        return HttpLimits(most, most, most // 2)


def listen(address: str, port: int, what: str, options: tuple[str, str]) -> socket.socket:
    """Open a socket at an address of this machine. Port 0 means any free port.

    what     what is served, for the error
    options  the names of the arguments for port and address, for the error
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        number = error.errno or 0
        reason = (os.strerror(number) if number > 0 else str(error)).lower()
        hint = f"choose another `{options[0] if port else options[1]}`"
        raise ConfigError(f"cannot serve {what} at {address}:{port} ({reason}): {hint}") from None


@asynccontextmanager
async def serving(at: socket.socket, handler: Handler, limits: HttpLimits | None = None) -> AsyncIterator[None]:
    """A context that serves requests at a socket. It closes the socket and all connections at the end."""
    port = _Port(handler, limits or HttpLimits.of_process())
    # asyncio accepts up to `backlog` connections together. More wait in the kernel, without a descriptor.
    server = await asyncio.start_server(port.serve, sock=at, limit=_MOST_HEAD_BYTES, backlog=port.limits.connections)
    at.listen(_WAITING)
    try:
        yield
    finally:
        await stop_accepting(server)
        await port.end()


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a server once every accepted connection has reached its handler: asyncio would leak the others."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(_ACCEPT_ROUNDS):
        await asyncio.sleep(0)
    server.close()


@final
@dataclass(slots=True)
class _Port:
    handler: Handler
    limits: HttpLimits
    _open: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    """Connections, the oldest first."""
    _streams: dict[asyncio.Task[Any], str] = field(default_factory=dict)
    """Streams and their addresses."""

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. It closes with its task, even if the task is cancelled before its first step."""
        task = asyncio.create_task(self._serve(reader, writer))
        task.add_done_callback(partial(self._close, writer))
        self._open[task] = None
        if len(self._open) > self.limits.connections:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader)
            if not isinstance(answer.content, bytes):
                answer = self._begin_stream(answer, writer)
            await self._send(answer, writer)
        except (OSError, EOFError):  # closed or too slow; a timeout is an OSError
            pass
        except Exception as error:
            log.error("Could not answer a request.", exc_info=error)

    def _close(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._streams.pop(task, None)
        with suppress(OSError):  # already closed
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            async with asyncio.timeout(self.limits.ask_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too long.")
        request = _read(head)
        if isinstance(request, Answer):
            return request
        return await self.handler(request)

    def _begin_stream(self, answer: Answer, writer: asyncio.StreamWriter) -> Answer:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername")
        address, open_to = str(peer[0] if peer else ""), list(self._streams.values())
        if len(open_to) >= self.limits.streams or open_to.count(address) >= self.limits.streams_per_address:
            words = f"{len(open_to)} streams are open, {open_to.count(address)} of them to {address}. Close some first."
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, words)._replace(headers={"Retry-After": "10"})
        self._open.pop(task, None)
        self._streams[task] = address
        return answer

    async def _send(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        content, status = answer.content, answer.status
        headers = {"Content-Type": answer.content_type, "Connection": "close", **answer.headers}
        if isinstance(content, bytes):
            headers["Content-Length"] = str(len(content))
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        writer.write(head)
        if isinstance(content, bytes):
            async with asyncio.timeout(self.limits.answer_s):
                for start in range(0, len(content), _PIECE_BYTES):  # without a copy per connection
                    writer.write(content[start : start + _PIECE_BYTES])
                    await writer.drain()
                writer.close()
                await writer.wait_closed()
            return
        async with aclosing(content):
            async for piece in content:
                async with asyncio.timeout(self.limits.answer_s):
                    writer.write(piece)
                    await writer.drain()

    async def end(self) -> None:
        tasks = [*self._open, *self._streams]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _read(head: bytes) -> Request | Answer:
    """Parse a request, or return a refusal."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    asked, headers = _REQUEST_LINE.fullmatch(first), [_HEADER.fullmatch(line) for line in lines]
    if asked is None or None in headers:
        return refusal(HTTPStatus.BAD_REQUEST, "Expected an HTTP request.")
    if asked[1] != "GET":
        return refusal(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is allowed.")._replace(headers={"Allow": "GET"})
    named = [(header[1].lower(), header[2].strip()) for header in headers if header is not None]
    return Request(asked[2].partition("?")[0], named)
