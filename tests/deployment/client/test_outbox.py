"""Numbers of uploads: none is used twice, none on its way is overtaken, none is learnt that leaves no room for more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from qafel.algorithm import Algorithm, Client, Held, HiddenState, LocalTraining, Message, method
from qafel.algorithm.admission import WINDOW, ReplayWindows
from qafel.algorithm.messages import checksum_of
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import ClientEvent, DeploymentClient
from qafel.deployment.client.outbox import Outbox
from qafel.deployment.client.state import ClientState, Kept
from qafel.deployment.connection import Stored
from qafel.deployment.keys import Access, Signer
from qafel.deployment.messages import Agreement, Receipt
from qafel.deployment.names import Names
from qafel.errors import ConfigError, DuplicateUpload
from qafel.params import Vector
from qafel.rng import Stream

SIZE = 64
CHECKSUM = 7
FRAME = bytes(60) + CHECKSUM.to_bytes(4, "little")


def _algorithm() -> Algorithm:
    return method("fedbuff", server_lr=1.0, local=LocalTraining(0.1, 1), buffer_size=3)


def _outbox(window: int = 8) -> Outbox:
    return Outbox("qafel.live.upload.0", "id", Signer(None), window, lambda *_: None, asyncio.Event())


def _hear(outbox: Outbox, receipt: Receipt) -> None:
    asyncio.run(outbox.on_receipt(Stored("qafel.live.receipt.0", receipt.to_bytes(), {})))


def test_an_upload_that_does_not_get_through_holds_back_those_it_could_not_follow() -> None:
    outbox, server = _outbox(), ReplayWindows()
    outbox.add(5, FRAME)
    for number in range(6, 5 + WINDOW):
        assert outbox.has_room(number)
        outbox.add(number, FRAME)
        server.windows[0] = server.check(0, number)
        _hear(outbox, Receipt(accepted=[(number, 0, CHECKSUM)]))
    assert not outbox.has_room(5 + WINDOW)
    server.check(0, 5)  # sent again, it is taken
    _hear(outbox, Receipt(accepted=[(5, 0, CHECKSUM)]))
    assert outbox.has_room(5 + WINDOW)


def test_the_window_bounds_how_many_are_on_their_way() -> None:
    outbox = _outbox(window=2)
    for number in range(2):
        assert outbox.has_room(number)
        outbox.add(number, b"x")
    assert not outbox.has_room(2)


@pytest.fixture
def client(tmp_path: Path) -> Any:
    with ClientState(tmp_path) as state:
        yield _client(state)


def _client(state: ClientState) -> DeploymentClient:
    core = Client(0, HiddenState.of(np.zeros(4, np.float32)), _algorithm(), 7)
    agreement, kept = cast(Agreement, SimpleNamespace(run_id="id")), Kept(core.hidden_state, Held(0))
    return DeploymentClient(core, kept, _train, state, agreement, Names("live"), Access(()), ClientSettings())


def _train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
    return start.vector + np.float32(1)


def test_a_client_counts_what_it_has_begun(client: DeploymentClient) -> None:
    oldest = client.begin()
    client.outbox.add(oldest.sequence, b"x")
    for _ in range(WINDOW - 1):
        assert client._has_room()
        client.begin()
    assert not client._has_room()


@pytest.mark.parametrize("highest", [2**31, 2**32 - 2, 2**32 - 1, 10**30])
def test_a_false_receipt_cannot_use_up_the_numbers(client: DeploymentClient, highest: int) -> None:
    _hear(client.outbox, Receipt(duplicate=[0], last=(highest, 0)))
    start = client.begin()
    assert Message.from_bytes(client.finish(start, _train).upload).sequence == 0


def test_a_false_receipt_of_an_update_that_was_never_sent_cannot_use_up_the_numbers(client: DeploymentClient) -> None:
    _hear(client.outbox, Receipt(accepted=[(2**31, 0, CHECKSUM), (10**30, 0, CHECKSUM)]))
    start = client.begin()
    assert Message.from_bytes(client.finish(start, _train).upload).sequence == 0


def test_two_equally_fast_processes_with_one_number_both_count(tmp_path: Path) -> None:
    with ClientState(tmp_path / "one") as first, ClientState(tmp_path / "other") as second:
        one, other = _client(first), _client(second)
        other.core.hidden_state = HiddenState.of(np.ones(4, np.float32))
        server = ReplayWindows()
        for _ in range(40):
            started = [(each, each.begin()) for each in (one, other)]
            for each, start in started:
                asyncio.run(each.send(start, each.finish(start, _train)))
                data, number = each.outbox._pending[start.sequence].data, start.sequence
                try:
                    server.windows[0] = server.check(0, number)
                    receipt = Receipt(accepted=[(number, 0, checksum_of(data))])
                except DuplicateUpload:
                    receipt = Receipt(duplicate=[number], last=(number, 0))
                for hears in (one, other):
                    _hear(hears.outbox, receipt)
        assert min(one.outbox.counts["accepted"], other.outbox.counts["accepted"]) >= 10


def test_failures_and_abandoned_updates_are_not_reported_as_rejected(client: DeploymentClient) -> None:
    events: list[ClientEvent] = []
    client._on_event = events.append
    client.outbox.counts.update({"accepted": 5, "duplicate": 2, "failed": 3, "abandoned": 4, "norm": 1})
    client._report_progress("")
    assert (events[0]["accepted"], events[0]["repeated"], events[0]["rejected"]) == (5, 2, 1)


def test_a_client_that_lost_its_folder_may_be_told_to_skip_far(client: DeploymentClient) -> None:
    _hear(client.outbox, Receipt(duplicate=[0], last=(1_000_000, 0)))
    assert client.begin().sequence == 1_000_001


def test_what_is_saved_while_a_new_run_begins_belongs_to_the_old_one(client: DeploymentClient) -> None:
    now = client._now_held()
    client.follower.held_run_id = "new"
    client._save(now)
    assert client._state.load("new", 4, _algorithm()) is None
    assert client._state.load("id", 4, _algorithm()) is not None


def test_a_client_never_uses_a_number_twice_even_if_killed(tmp_path: Path) -> None:
    used: list[int] = []
    for taken in (3, 20, 1):
        with ClientState(tmp_path) as state:  # left without giving back, as a kill does
            used += [state.take_sequence() for _ in range(taken)]
    assert len(used) == len(set(used))
    with ClientState(tmp_path) as state:
        state.skip_to(1000)
        assert state.take_sequence() == 1000
        state.give_back()
    with ClientState(tmp_path) as state:
        assert state.take_sequence() == 1001


def test_a_client_keeps_its_hidden_state_and_knows_another_runs(tmp_path: Path) -> None:
    held = HiddenState.of(np.zeros(SIZE, np.float32), 5)
    with ClientState(tmp_path) as state:
        state.save("run-a", Kept(held, Held(700)))
        loaded = state.load("run-a", SIZE, _algorithm())
        assert loaded is not None
        assert (loaded.hidden_state.version, loaded.hidden_state.digest, loaded.held) == (5, held.digest, Held(700))
        assert state.load("run-b", SIZE, _algorithm()) is None
        assert state.load("run-a", SIZE + 1, _algorithm()) is None
        (tmp_path / "hidden-state").write_bytes(b"run-a\nrubbish")
        assert state.load("run-a", SIZE, _algorithm()) is None
    with ClientState(tmp_path), pytest.raises(ConfigError, match="another client"), ClientState(tmp_path):
        pass


def test_a_flipped_bit_never_makes_a_client_use_a_number_twice(tmp_path: Path) -> None:
    with ClientState(tmp_path) as state:
        state.skip_to(5024)
        state.take_sequence()
    path = tmp_path / "sequence"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="delete the client's folder"), ClientState(tmp_path):
            pass


def test_where_receipts_take_long_an_upload_is_sent_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a thousand clients whose receipts take four seconds would send everything twice."""
    now, sent = [0.0], []

    class Line:
        part_bytes = 1000

        async def send(self, subject: str, data: bytes, headers: object) -> None:
            sent.append(now[0])

    async def updates() -> list[list[float]]:
        outbox = Outbox("s", "run", Signer(None), 8, lambda *_: None, asyncio.Event())
        times = []
        for sequence in range(20):
            sent.clear()
            outbox.add(sequence, b"x")
            pending, added = outbox._pending[sequence], now[0]
            while now[0] < added + 4.0:  # when its receipt comes
                if pending.due <= now[0]:
                    await outbox._send(Line(), sequence, pending)  # type: ignore[arg-type]
                now[0] += 0.5
            outbox._settle(sequence, "accepted", "", 0)
            times.append([moment - added for moment in sent])
        return times

    monkeypatch.setattr("qafel.deployment.client.outbox.time.monotonic", lambda: now[0])
    first, *_, last = asyncio.run(updates())
    assert first == [0.0, 3.5]
    assert last == [0.0]
