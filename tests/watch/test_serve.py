"""The page's server: on this machine alone, for its own page alone; and it goes on telling what changes."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import pytest

from qafel import watch as serve
from qafel.http import HttpLimits, listen
from qafel.http import serving as answering_at
from qafel.watch.sources import Watched
from tests.watch.states import live_state, watched


class Changing:
    """A source whose only run has one upload more at every look."""

    note = ""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.looks = 0
        self._delay_s = delay_s

    async def look(self) -> Sequence[Watched]:
        self.looks += 1
        await asyncio.sleep(self._delay_s)
        return [watched(live=live_state(uploads=self.looks))]


@contextmanager
def serving(source: Changing, hosts: Sequence[str] = serve.LOOPBACK, limits: HttpLimits | None = None) -> Iterator[int]:
    """A real server in a thread; its port."""
    at = listen("127.0.0.1", 0, "the page", ("port", "address"))
    port, loop, ended = at.getsockname()[1], asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with answering_at(at, serve.answering(serve.Board([source], every_s=0.05), hosts), limits):
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        assert not thread.is_alive(), "an open stream of events keeps the server from ending"
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextmanager
def asking(port: int, path: str = "/", method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"host": f"127.0.0.1:{port}"} | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        with connection.getresponse() as answer:
            yield answer


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """The answer's code and content."""
    with asking(port, path, method, **headers) as answer:
        return answer.status, answer.read()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(Changing()) as port:
        yield port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:99", "[::1]:8765", "localhost."])
def test_who_asks_for_this_machine_gets_the_page(port, host):
    code, content = ask(port, host=host)
    assert code == 200
    assert b"Runs, live" in content


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:8765", "", "10.0.0.1", "localhost@evil.example", "[::2]"],
)
@pytest.mark.parametrize("path", ["/", "/events", "/nothing"])
def test_a_foreign_host_is_refused(port, host, path):
    code, content = ask(port, path, host=host)
    assert code == 421
    assert b"mine" not in content


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://"])
def test_a_foreign_origin_is_refused(port, origin):
    code, content = ask(port, "/events", origin=origin)
    assert code == 403
    assert b"event" not in content


def test_the_pages_own_origin_may_ask_and_nothing_lets_others_read(port):
    with asking(port, "/events", origin=f"http://127.0.0.1:{port}") as answer:
        assert answer.status == 200
        told = {name.lower(): value for name, value in answer.getheaders()}
    assert told["content-type"].startswith("text/event-stream")
    assert told["content-security-policy"] == "frame-ancestors 'none'"
    assert told["cross-origin-resource-policy"] == "same-origin"
    assert told["cache-control"] == "no-store"
    assert not any(name.startswith("access-control") for name in told)


def test_another_name_can_be_allowed():
    with serving(Changing(), [*serve.LOOPBACK, "box.example"]) as port:
        assert ask(port, host="box.example:8765")[0] == 200
        assert ask(port, host="fox.example")[0] == 421


def test_there_is_nothing_but_the_page_and_only_to_read(port):
    assert ask(port, "/etc/passwd")[0] == 404
    assert ask(port, method="POST")[0] == 405


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    name = ""
    while line := answer.readline().decode():
        field, _, value = line.rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, value


def test_events_tell_everything_at_first_and_then_what_changes(port):
    with asking(port, "/events") as answer:
        heard = events(answer)
        first = [next(heard) for _ in range(4)]
        later = [next(heard) for _ in range(6)]
    assert [name for name, _ in first] == ["hello", "figures", "charts", "time"]
    assert abs(float(first[3][1]) - time.time()) < 100
    assert {chart["key"] for chart in json.loads(first[2][1])} >= {"uploads", "bytes"}
    assert {name for name, _ in later} == {"figures", "time"}, "the charts have not changed"
    figures = [json.loads(data) for name, data in [first[1], *later] if name == "figures"]
    assert len(set(figures)) == len(figures)


def test_however_many_watch_the_runs_are_looked_at_once():
    source = Changing(delay_s=0.02)
    with serving(source) as port, ExitStack() as open_streams:
        heard = [events(open_streams.enter_context(asking(port, "/events"))) for _ in range(5)]
        told = [[next(one) for _ in range(10)] for one in heard]
    assert len(told) == 5
    assert source.looks < 40


@pytest.mark.parametrize(
    ("address", "own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.1.1.1", False)],
)
def test_what_only_this_machine_reaches(address, own):
    assert serve.is_loopback(address) is own
