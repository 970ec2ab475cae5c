"""Deployed runs on the live page: as the server's folder shows them, and as the broker tells of them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from qafel.cli.status import _BrokerRuns
from qafel.config import Config
from qafel.deployment.broker import LocalBroker
from qafel.deployment.keys import Access
from qafel.deployment.status import read_status
from qafel.watch.page import Painter
from qafel.watch.sources import Folders, FollowedRun, Watched
from tests.crowding import crowd, still_open
from tests.deployment.live import CONFIG, serving, taking_part, update
from tests.deployment.processes import wait_for
from tests.watch.test_page import words

TARGETED = Config.from_dict(CONFIG | {"evaluation": {"every": 1, "target": 1e-9}, "stop": {"server_steps": 100}})


async def seen(runs: _BrokerRuns, uploads: int) -> Watched:
    """The run, once the broker's word is of so many uploads."""
    async with asyncio.timeout(60):
        while not (found := [one for one in await runs.look() if one.live and one.live.uploads >= uploads]):
            await asyncio.sleep(0.05)
    return found[0]


def test_a_deployed_run_is_seen_by_its_folder_and_by_its_broker_alike(tmp_path: Path) -> None:
    async def deploy(access: Access) -> tuple[Watched, Watched]:
        async with serving(tmp_path / "run", access, TARGETED), taking_part(tmp_path, access, 3) as client:
            runs = _BrokerRuns(access, await read_status(access))
            for _ in range(7):
                await update(client)
            by_broker = await seen(runs, 7)
            async with asyncio.timeout(60):
                while not (by_folder := Folders([tmp_path]).look_now()[0]).live or by_folder.live.uploads < 7:
                    await asyncio.sleep(0.05)
            return by_folder, by_broker

    with LocalBroker(tmp_path / "broker") as broker:
        pair = asyncio.run(deploy(Access((broker.url,))))
    for one in pair:
        live = one.live
        assert live is not None
        assert (one.word, live.version, live.uploads) == ("running", 2, 7)
        assert (live.buffer_fill, live.buffer_size, live.target) == (1, 3, 1e-9)
        assert (live.clients, live.training_count, live.silent_count) == (5, 1, 0)
        assert set(live.training) == {"3"}
        assert (sum(live.staleness_histogram), live.share_done) == (7, 0.02)
        assert live.hidden_state_lag is not None
        text = words(Painter().picture([one]).figures)
        assert "buffer 1 of 3" in text
        assert "1 of 5 clients train, 0 silent" in text
    assert pair[0].rows >= 1
    both = Painter().picture(pair).figures
    assert both.count("<article") == 1, "by its run id it is one run"
    ended = FollowedRun(tmp_path / "run").look()
    assert ended.run_id == pair[0].run_id == pair[1].run_id != ""


@pytest.mark.slow
def test_a_broker_that_goes_is_told_of_and_one_that_comes_back_is_heard_again(tmp_path: Path) -> None:
    async def outlive(broker: LocalBroker) -> None:
        access = Access((broker.url,))
        async with serving(tmp_path / "run", access, TARGETED), taking_part(tmp_path, access, 3) as client:
            runs = _BrokerRuns(access, await read_status(access))
            await update(client)
            await seen(runs, 1)
            await asyncio.to_thread(broker.stop)
            async with asyncio.timeout(60):
                while not runs.note:
                    assert len(await runs.look()) == 1
                    await asyncio.sleep(0.05)
            assert "last received" in runs.note
            await asyncio.to_thread(broker.start)
            await update(client)
            await seen(runs, 2)
            assert runs.note == ""

    with LocalBroker(tmp_path / "broker") as broker:
        asyncio.run(outlive(broker))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_the_page_is_and_ends_quietly(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "qafel", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        line = watching.stdout.readline()
        assert line.startswith(f"watching {tmp_path} at http://127.0.0.1:")
        watching.send_signal(number)
        _, complaint = watching.communicate(timeout=600)
    assert complaint == ""
    assert watching.returncode == 0


@pytest.mark.timeout(180)
def test_streams_without_end_leave_the_page_to_others_and_fill_no_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qafel", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        port = int(watching.stdout.readline().split(":")[-1].split("/")[0])
        asked = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        try:
            with crowd(port, 1100, asked) as held:
                wait_for(lambda: still_open(held) <= 64, "most to be refused")
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=600) as page:
                    assert b"Runs, live" in page.read()
                with pytest.raises(urllib.error.HTTPError, match="503"):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=600)
            wait_for(lambda: _first_of_events(port) == b"retry: 2000\n", "a place")
        finally:
            watching.terminate()
            said, complaint = watching.communicate(timeout=600)
    assert (said, complaint) == ("", "")


def _first_of_events(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=600) as events:
            return bytes(events.readline())
    except urllib.error.HTTPError as error:
        return error.read()
