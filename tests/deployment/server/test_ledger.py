"""Checkpoint and journal give back the server exactly."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from qafel.algorithm import Algorithm, Client, HiddenState, LocalTraining, Message, wire
from qafel.deployment.client.outbox import ClientState
from qafel.deployment.server import ledger as ledger_module
from qafel.deployment.server.ledger import Ledger, replay
from qafel.errors import ConfigError, DuplicateUpload
from qafel.params import Vector
from qafel.rng import Stream

SIZE = 64


def _algorithm() -> Algorithm:
    return wire(
        "qafel",
        server_lr=0.5,
        server_momentum=0.3,
        local=LocalTraining(0.1, 1),
        buffer_size=3,
        client_quantizer="qsgd:4",
        server_quantizer="qsgd:4",
    )


def _initial() -> Vector:
    return np.linspace(-1, 1, SIZE, dtype=np.float32)


def _open(folder: Path) -> AbstractContextManager[Ledger]:
    return Ledger.open(folder, _initial, _algorithm(), 7, history=50)


def _train(start: Vector, stream: Stream) -> Vector:
    return (start - 0.1 * stream.generator().standard_normal(SIZE)).astype(np.float32)


def _uploads(count: int) -> list[bytes]:
    """From a client that follows a run of its own."""
    server = replay(Path("nowhere"), _initial(), _algorithm(), 7)
    client = Client(0, HiddenState.of(_initial()), _algorithm(), 7)
    uploads = []
    for _ in range(count):
        uploads.append(client.update(_train))
        if (broadcast := server.receive(Message.from_bytes(uploads[-1])).broadcast) is not None:
            client.receive(broadcast)
    return uploads


@pytest.mark.parametrize("checkpoint_every", [1000, 4, 1])
def test_a_killed_server_goes_on_bit_for_bit(tmp_path: Path, checkpoint_every: int) -> None:
    uploads = _uploads(20)
    broadcasts = []
    for part in (uploads[:7], uploads[7:8], uploads[8:]):
        with _open(tmp_path) as ledger:  # a new process each time; nothing is saved at the end but what was synced
            for upload in part:
                if (broadcast := ledger.take(upload, Message.from_bytes(upload)).broadcast) is not None:
                    broadcasts.append(broadcast)
                if (write := ledger.begin_checkpoint(checkpoint_every, {0: 1.0})) is not None:
                    write()
                    ledger.drop_old_journal()
            ledger.journal.sync()
            held = ledger.server
    uninterrupted = replay(Path("nowhere"), _initial(), _algorithm(), 7)
    expected = [
        broadcast
        for upload in uploads
        if (broadcast := uninterrupted.receive(Message.from_bytes(upload)).broadcast) is not None
    ]
    assert broadcasts == expected
    assert np.array_equal(held.model, uninterrupted.model)
    assert held.hidden_state.digest == uninterrupted.hidden_state.digest
    assert len(list(tmp_path.glob("checkpoint-*"))) <= 2


def test_the_newest_checkpoint_may_be_damaged(tmp_path: Path) -> None:
    uploads = _uploads(12)
    with _open(tmp_path) as ledger:
        for upload in uploads:
            ledger.take(upload, Message.from_bytes(upload))
            if (write := ledger.begin_checkpoint(4, {})) is not None:
                write()
                ledger.drop_old_journal()
        digest = ledger.server.hidden_state.digest
    newest = sorted(tmp_path.glob("checkpoint-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-8])
    with _open(tmp_path) as ledger:
        assert ledger.server.hidden_state.digest == digest
        assert ledger.traffic.uploads == 12


def test_large_uploads_bring_a_checkpoint_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart receives the journal again: it must not have grown to any size."""
    uploads = _uploads(6)
    monkeypatch.setattr(ledger_module, "_JOURNAL_BYTES", 3 * len(uploads[0]))
    with _open(tmp_path) as ledger:
        due = []
        for upload in uploads:
            ledger.take(upload, Message.from_bytes(upload))
            due.append(ledger.begin_checkpoint(1000, {}) is not None)
    assert due == [False, False, True] * 2


def test_an_upload_counts_once_over_restarts(tmp_path: Path) -> None:
    uploads = _uploads(2)
    with _open(tmp_path) as ledger:
        ledger.take(uploads[0], Message.from_bytes(uploads[0]))
    with _open(tmp_path) as ledger:
        with pytest.raises(DuplicateUpload):
            ledger.take(uploads[0], Message.from_bytes(uploads[0]))
        ledger.take(uploads[1], Message.from_bytes(uploads[1]))
        assert ledger.traffic.uploads == 2


def test_the_last_broadcasts_are_made_again_for_a_broker_that_lost_them(tmp_path: Path) -> None:
    with _open(tmp_path) as ledger:
        for upload in _uploads(9):
            ledger.take(upload, Message.from_bytes(upload))
        before = list(ledger.broadcasts)
    with _open(tmp_path) as ledger:
        assert list(ledger.broadcasts) == before
        assert [version for version, _ in before] == [0, 1, 2]


def test_two_servers_cannot_use_one_folder(tmp_path: Path) -> None:
    with _open(tmp_path), pytest.raises(ConfigError, match="another server"), _open(tmp_path):
        pass


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
    held = HiddenState.of(_initial(), 5)
    with ClientState(tmp_path) as state:
        state.save("run-a", held)
        loaded = state.load("run-a", SIZE, _algorithm())
        assert loaded is not None
        assert (loaded.version, loaded.digest) == (5, held.digest)
        assert state.load("run-b", SIZE, _algorithm()) is None
        assert state.load("run-a", SIZE + 1, _algorithm()) is None
        (tmp_path / "hidden-state").write_bytes(b"run-a\nrubbish")
        assert state.load("run-a", SIZE, _algorithm()) is None
    with ClientState(tmp_path), pytest.raises(ConfigError, match="another client"), ClientState(tmp_path):
        pass
