"""A port of ours: whatever comes, few connections are open, nothing is logged, and who asks is answered."""

from __future__ import annotations

import asyncio
import http.client
import random
import resource
import select
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from qafel.errors import ConfigError
from qafel.http import Answer, HttpLimits, Request, listen, serving
from tests.crowding import crowd, still_open
from tests.deployment.processes import wait_for

LARGE = bytes(50_000_000)


async def ticks() -> AsyncGenerator[bytes, None]:
    while True:
        yield b"tick\n"
        await asyncio.sleep(0.01)


async def handle(request: Request) -> Answer:
    if request.path == "/broken":
        raise RuntimeError("a handler's fault")
    if request.path == "/large":
        return Answer(LARGE)
    return Answer(ticks() if request.path == "/ticks" else b"hello")


@contextmanager
def answering(limits: HttpLimits | None = None) -> Iterator[int]:
    """A server in a thread; its port."""
    at = listen("127.0.0.1", 0, "a test", ("port", "address"))
    port, loop, ended = at.getsockname()[1], asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with serving(at, handle, limits):
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
        assert not thread.is_alive()
        loop.close()


def ask(port: int, path: str = "/") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def say(port: int, words: bytes) -> bytes:
    """Everything that is answered to these bytes."""
    with socket.create_connection(("127.0.0.1", port), 60) as line:
        found = b""
        with suppress(OSError):  # it may be cut before all is said
            line.sendall(words)
            line.shutdown(socket.SHUT_WR)
            while data := line.recv(1 << 16):
                found += data
        return found


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nA: "])
def test_connections_that_only_wait_make_room_for_one_that_asks(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    limits = HttpLimits(ask_s=600)
    with answering(limits) as port, crowd(port, 1100, said) as held:
        assert ask(port) == (200, b"hello")
        wait_for(lambda: still_open(held) <= limits.connections, "the oldest to be closed")
        assert ask(port) == (200, b"hello")
    assert caplog.records == []


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nA: "])
def test_a_request_that_does_not_come_ends_its_connection(said: bytes) -> None:
    with answering(HttpLimits(ask_s=0.1)) as port, crowd(port, 10, said) as held:
        wait_for(lambda: still_open(held) == 0, "them to be closed")


def test_an_answer_that_nobody_reads_ends_its_connection() -> None:
    asked = b"GET /large HTTP/1.1\r\n\r\n"
    with answering(HttpLimits(answer_s=0.2)) as port, crowd(port, 10, asked) as held:
        wait_for(lambda: all(map(is_cut, held)), "them to be closed")
        assert ask(port) == (200, b"hello")


def is_cut(one: socket.socket) -> bool:
    """Whether the other end is gone, without reading what it said."""
    look = select.poll()
    look.register(one, 0)
    return bool(look.poll(0))


def test_a_stream_too_many_is_refused_in_words_until_another_ends() -> None:
    limits = HttpLimits(streams=5, streams_per_address=3)
    with answering(limits) as port, ExitStack() as streams:
        for _ in range(3):
            stream = streams.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            stream.sendall(b"GET /ticks HTTP/1.1\r\n\r\n")
            assert stream.recv(12) == b"HTTP/1.1 200"
        answer = say(port, b"GET /ticks HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"3 streams are open, 3 of them to 127.0.0.1" in answer
        assert ask(port) == (200, b"hello")
        if sys.platform == "linux":
            with socket.create_connection(("127.0.0.1", port), 60, ("127.0.0.2", 0)) as other:
                other.sendall(b"GET /ticks HTTP/1.1\r\n\r\n")
                assert other.recv(12) == b"HTTP/1.1 200", "another address has its own"
        streams.close()
        wait_for(lambda: b" 200 " in _first(port, b"GET /ticks HTTP/1.1\r\n\r\n"), "a place")


def _first(port: int, words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as line:
        line.sendall(words)
        return line.recv(20)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /?a=b HTTP/1.0\r\nHost: x\r\n\r\n", b"200"),
        (b"POST / HTTP/1.1\r\n\r\n", b"405"),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: b\nHost: x\r\n\r\n", b"400"),
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000, b"431"),
        (b"GET / HTTP/1.1\r\n", b""),
    ],
)
def test_what_is_no_request_is_told_so(words: bytes, code: bytes) -> None:
    with answering() as port:
        assert say(port, words)[9:12] in (code, b"")  # it may close before all was said
        assert ask(port) == (200, b"hello")


def test_no_bytes_disturb_it(caplog: pytest.LogCaptureFixture) -> None:
    chooser = random.Random(7)
    with answering() as port:
        for _ in range(200):
            words = bytearray(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(chooser.randrange(1, 6)):
                words[chooser.randrange(len(words))] = chooser.randrange(256)
            assert say(port, bytes(words))[9:12] in (b"200", b"400", b"405", b"")
    assert caplog.records == []


def test_a_fault_of_ours_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    with answering() as port:
        assert say(port, b"GET /broken HTTP/1.1\r\n\r\n") == b""
        assert ask(port) == (200, b"hello")
    assert "Could not answer" in caplog.text


@pytest.mark.parametrize(("descriptors", "most"), [(256, 32), (1024, 64), (65536, 64), (8, 2), (-1, 64)])
def test_a_port_takes_a_quarter_of_the_descriptors_at_most(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    limits = HttpLimits.of_process()
    assert (limits.connections, limits.streams) == (most, most)


def test_a_taken_port_is_a_sentence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(
            ConfigError, match=r"cannot serve it at 127.0.0.1:\d+ \(address already in use\): choose another `port`"
        ),
    ):
        listen("127.0.0.1", taken.getsockname()[1], "it", ("port", "address"))


def test_an_address_that_is_not_ours_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"cannot serve it at 203.0.113.9:0 .*: choose another `address`"):
        listen("203.0.113.9", 0, "it", ("port", "address"))
