"""Checkpoint and journal give back the server exactly; what was synced is there again, whatever a crash left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import Algorithm, Batch, Checkpoint, Client, HiddenState, LocalTraining, Message, Server, method
from qafel.algorithm.admission import ReplayWindows
from qafel.deployment.server import DefenceSettings
from qafel.deployment.server import ledger as ledger_module
from qafel.deployment.server.defence import UploadChecker
from qafel.deployment.server.intake import Intake, UploadGroup
from qafel.deployment.server.ledger import ClientShare, Ledger, UploadNote
from qafel.errors import ConfigError, DataError, DuplicateUpload, NonFiniteVector
from qafel.params import Vector
from qafel.rng import Stream
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint
from tests.crafted import other_arrays, other_values, with_array
from tests.deployment.live import replay
from tests.uploads import receive

SIZE = 64


def _algorithm() -> Algorithm:
    return method(
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
    return Ledger.open(folder, _initial, _algorithm(), 7, size=SIZE, history=50)


def _train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
    return (start.vector - 0.1 * stream.generator().standard_normal(SIZE)).astype(np.float32)


def _uploads(count: int) -> list[bytes]:
    """From a client that follows a run of its own."""
    server = replay(Path("nowhere"), _initial(), _algorithm(), 7)
    client = Client(0, HiddenState.of(_initial()), _algorithm(), 7)
    uploads = []
    for _ in range(count):
        uploads.append(client.update(_train).upload)
        if (broadcast := receive(server, uploads[-1])) is not None:
            client.receive(broadcast)
    return uploads


@pytest.mark.parametrize("checkpoint_every", [1000, 4, 1])
def test_a_killed_server_goes_on_bit_for_bit(tmp_path: Path, checkpoint_every: int) -> None:
    uploads = _uploads(20)
    broadcasts = []
    for part in (uploads[:7], uploads[7:8], uploads[8:]):
        with _open(tmp_path) as ledger:  # a new process each time; nothing is saved at the end but what was synced
            for upload in part:
                ledger.take(upload, Message.from_bytes(upload))
                if (broadcast := ledger.step_if_due()) is not None:
                    broadcasts.append(broadcast)
                if (write := ledger.begin_checkpoint(checkpoint_every, lambda: ({0: 1.0}, ()))) is not None:
                    write()
                    ledger.drop_old_journal()
            ledger.journal.sync()
            held = ledger.server
    uninterrupted = replay(Path("nowhere"), _initial(), _algorithm(), 7)
    expected = [broadcast for upload in uploads if (broadcast := receive(uninterrupted, upload)) is not None]
    assert broadcasts == expected
    assert np.array_equal(held.model, uninterrupted.model)
    assert held.hidden_state.digest == uninterrupted.hidden_state.digest
    assert len(list(tmp_path.glob("checkpoint-*"))) <= 2


def _run_with_checkpoints(folder: Path) -> int:
    """Twelve uploads with checkpoints at 4, 8 and 12, of which two are kept, and a step more; the digest of x̂."""
    with _open(folder) as ledger:
        for upload in _uploads(15):
            ledger.take(upload, Message.from_bytes(upload))
            ledger.step_if_due()
            if (write := ledger.begin_checkpoint(4)) is not None:
                ledger.journal.sync()
                write()
                ledger.drop_old_journal()
        return ledger.server.hidden_state.digest


def _flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 4
    path.write_bytes(data)


def _newest(folder: Path) -> Path:
    return sorted(folder.glob("checkpoint-*.qafel"))[-1]


def test_a_flipped_bit_in_the_newest_checkpoint_costs_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = _run_with_checkpoints(tmp_path)
    whole, newest = _newest(tmp_path).read_bytes(), _newest(tmp_path)
    for byte in (0, 17, 19, 30, len(whole) // 4, len(whole) // 2, len(whole) - 300, len(whole) - 1):
        _flip(newest, byte)
        damaged = newest.read_bytes()
        with _open(tmp_path) as ledger:
            assert (ledger.server.hidden_state.digest, ledger.traffic.uploads) == (digest, 15)
        assert f"Cannot use {newest}" in caplog.text
        assert newest.with_suffix(".unused").read_bytes() == damaged
        newest.write_bytes(whole)
        caplog.clear()


def test_rows_survive_kills_and_a_damaged_log_gives_the_checkpoint_before_or_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CA²FL keeps a payload of each client; a checkpoint appends those that changed."""
    clients, algorithm = 9, method("ca2fl", local=LocalTraining(0.1, 1), buffer_size=3, client_quantizer="qsgd:4")

    def opened(folder: Path) -> AbstractContextManager[Ledger]:
        return Ledger.open(folder, _initial, algorithm, 7, size=SIZE, clients=clients)

    def upload(number: int, sequence: int, ledger: Ledger) -> None:
        sender = Client(number, ledger.server.hidden_state, algorithm, 7, sequence=sequence)
        frame = sender.update(_train).upload
        ledger.take(frame, Message.from_bytes(frame))
        ledger.step_if_due()
        if (write := ledger.begin_checkpoint(9)) is not None:
            ledger.journal.sync()
            write()

    digests, sizes = [], []
    for folder, kills in ((tmp_path / "whole", 1), (tmp_path / "killed", 6)):
        for kill in range(kills):
            with opened(folder) as ledger:
                for number in range(54 // kills * kill, 54 // kills * (kill + 1)):
                    upload(number % clients if number < 27 else number % 3, number, ledger)
                    sizes.append(sum(path.stat().st_size for path in folder.glob("rows-*.qafel")))
                ledger.journal.sync()
        digests.append(ledger.server.hidden_state.digest)
    assert digests[0] == digests[1]
    grown = [after - before for before, after in pairwise(sizes[:54]) if after > before]
    assert max(grown[3:]) < 0.5 * grown[1], "three clients changed their rows, not nine"
    newest = max((tmp_path / "whole").glob("rows-*.qafel"))
    sound = newest.read_bytes()
    newest.write_bytes(sound[:-1])
    with opened(tmp_path / "whole") as ledger:
        assert ledger.server.hidden_state.digest == digests[0]
    assert "truncated" in caplog.text
    for path in (tmp_path / "killed").glob("rows-*.qafel"):
        path.unlink()
    for path in (tmp_path / "killed").glob("journal-*"):
        if path != max((tmp_path / "killed").glob("journal-*")):
            path.unlink()
    with pytest.raises(DataError, match="missing"), opened(tmp_path / "killed"):
        pass


def _model(saved: Checkpoint) -> None:
    saved.arrays["model"][3] += 1


def _nan(saved: Checkpoint) -> None:
    saved.arrays["model"][3] = np.nan


def _windows(saved: Checkpoint) -> None:
    saved.arrays["seen.highest"][0] += 1


def _buffer(saved: Checkpoint) -> None:
    saved.arrays["accumulator.total"][0] += 1


def _count(saved: Checkpoint) -> None:
    saved.values["traffic"]["uploads"] -= 1


@pytest.mark.parametrize("damage", [_model, _nan, _windows, _buffer, _count])
def test_a_checkpoint_after_which_the_journal_fails_is_passed_over(
    tmp_path: Path, damage: Callable[[Checkpoint], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Flipped in memory, before the checksum was made: only the replay can tell."""
    digest = _run_with_checkpoints(tmp_path)
    newest = _newest(tmp_path)
    saved = read_checkpoint(newest)
    damage(saved)
    write_checkpoint(newest, saved)
    with _open(tmp_path) as ledger:
        assert (ledger.server.hidden_state.digest, ledger.traffic.uploads) == (digest, 15)
    assert f"Cannot use {newest}" in caplog.text


@pytest.mark.parametrize("theirs", [15, 18])
def test_another_runs_checkpoint_is_passed_over_be_it_as_long_or_longer(
    tmp_path: Path, theirs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As shown: put in the folder, it took the place of all that was counted there, without a word."""
    for name, count, weight in (("theirs", theirs, 0.5), ("ours", 15, 1.0)):
        with _open(tmp_path / name) as ledger:
            for upload in _uploads(count):
                ledger.take(upload, Message.from_bytes(upload), UploadNote.of(weight))
                ledger.step_if_due()
                if (write := ledger.begin_checkpoint(3)) is not None:
                    ledger.journal.sync()
                    write()
            digest = ledger.server.hidden_state.digest
    newest = _newest(tmp_path / "theirs")
    shutil.copy(newest, tmp_path / "ours" / newest.name)
    with _open(tmp_path / "ours") as ledger:
        assert (ledger.server.hidden_state.digest, ledger.traffic.uploads) == (digest, 15)
    assert newest.name in caplog.text


def test_a_run_without_a_sound_checkpoint_is_refused_in_a_sentence(tmp_path: Path) -> None:
    _run_with_checkpoints(tmp_path)
    for path in tmp_path.glob("checkpoint-*.qafel"):
        _flip(path, 100)
    with (
        pytest.raises(DataError, match=r"000016\.qafel: .* is damaged"),
        _open(tmp_path),
    ):
        pass
    assert len(list(tmp_path.glob("checkpoint-*.qafel"))) == 2, "nothing is changed"


def test_a_run_that_diverged_goes_on_from_the_last_good_state(tmp_path: Path) -> None:
    uploads = _uploads(14)
    with _open(tmp_path) as ledger:
        for upload in uploads[:11]:
            ledger.take(upload, Message.from_bytes(upload))
            ledger.step_if_due()
        model = ledger.server.model.copy()
        ledger.server.server_rule.lr = np.inf
        ledger.take(uploads[11], Message.from_bytes(uploads[11]))
        with pytest.raises(NonFiniteVector):
            ledger.step_if_due()
        assert np.array_equal(ledger.server.model, model), "the last good model stays"
        assert ledger.begin_checkpoint(1) is None, "nothing of it is saved"
    assert not list(tmp_path.glob("checkpoint-*"))
    with _open(tmp_path) as ledger:
        assert ledger.traffic.uploads == 11
        assert np.array_equal(ledger.server.model, model)
        for upload in uploads[11:]:
            ledger.take(upload, Message.from_bytes(upload))
            ledger.step_if_due()
        assert ledger.server.version == 4


def test_large_uploads_bring_a_checkpoint_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart receives the journal again: it must not have grown to any size."""
    uploads = _uploads(6)
    monkeypatch.setattr(ledger_module, "_JOURNAL_BYTES", 3 * len(uploads[0]))
    with _open(tmp_path) as ledger:
        due = []
        for upload in uploads:
            ledger.take(upload, Message.from_bytes(upload))
            ledger.step_if_due()
            due.append(ledger.begin_checkpoint(1000) is not None)
    assert due == [False, False, True] * 2


def test_an_upload_counts_once_over_restarts(tmp_path: Path) -> None:
    uploads = _uploads(2)
    with _open(tmp_path) as ledger:
        ledger.take(uploads[0], Message.from_bytes(uploads[0]))
        ledger.step_if_due()
    with _open(tmp_path) as ledger:
        with pytest.raises(DuplicateUpload):
            ledger.take(uploads[0], Message.from_bytes(uploads[0]))
        ledger.take(uploads[1], Message.from_bytes(uploads[1]))
        ledger.step_if_due()
        assert ledger.traffic.uploads == 2


def test_the_last_broadcasts_are_made_again_for_a_broker_that_lost_them(tmp_path: Path) -> None:
    with _open(tmp_path) as ledger:
        for upload in _uploads(9):
            ledger.take(upload, Message.from_bytes(upload))
            ledger.step_if_due()
        before = list(ledger.broadcasts)
    with _open(tmp_path) as ledger:
        assert list(ledger.broadcasts) == before
        assert [version for version, _ in before] == [0, 1, 2]


def test_two_servers_cannot_use_one_folder(tmp_path: Path) -> None:
    with _open(tmp_path), pytest.raises(ConfigError, match="another server"), _open(tmp_path):
        pass


def test_a_flipped_bit_in_the_runs_identity_is_refused_and_in_the_epoch_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _open(tmp_path) as ledger:
        identity = ledger.run_id
        ledger.begin_epoch(7)
    for name in ("run-id", "epoch"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        if name == "run-id":
            with pytest.raises(DataError, match="run-id is damaged: restore it from a copy, or"), _open(tmp_path):
                pass
            (tmp_path / name).write_bytes(whole)
    with _open(tmp_path) as ledger:
        assert (ledger.run_id, ledger.epoch) == (identity, 0)
    assert "epoch is damaged" in caplog.text


def test_what_clients_sent_can_be_read_by_the_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with _open(tmp_path / "state") as ledger:
            for upload in _uploads(4):
                ledger.take(upload, Message.from_bytes(upload))
                ledger.step_if_due()
            ledger.begin_checkpoint(1)
            ledger.journal.sync()
            ledger.quarantine("odd", b"frame")
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    files = [*(tmp_path / "state").glob("journal-*"), tmp_path / "state" / "synced"]
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


ALGORITHMS: dict[str, dict[str, Any]] = {
    "qafel": {"method": "qafel", "server_momentum": 0.3},
    "fedbuff": {"method": "fedbuff", "client_quantizer": "none", "server_quantizer": "none"},
    "fedasync": {"method": "fedasync", "client_quantizer": "none", "server_quantizer": "none", "buffer_size": 1},
    "memory": {"method": "qafel", "downlink": {"name": "memory", "rate": 0.5}},
    "median": {"method": "qafel", "accumulator": "median"},
}


_OTHERS = [pytest.param(name, marks=pytest.mark.faults) for name in ALGORITHMS if name != "memory"]


@pytest.fixture(params=["memory", *_OTHERS])
def crafted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Algorithm, Checkpoint, bytes]:
    """A folder with one checkpoint in the middle of a buffer, the algorithm, the checkpoint and the model."""
    quantizers = {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
    settings = {"server_lr": 0.5, "client_lr": 0.1, "local_steps": 1, "buffer_size": 3, **quantizers}
    chosen = settings | ALGORITHMS[request.param]
    algorithm = method(chosen.pop("method"), **chosen)
    with Ledger.open(tmp_path, _initial, algorithm, 7, size=SIZE) as ledger:
        clients = [Client(number, HiddenState.of(_initial()), algorithm, 7) for number in range(3)]
        for turn in range(8):
            upload = clients[turn % 3].update(_train).upload
            ledger.take(upload, Message.from_bytes(upload), UploadNote.of(1.0, 1.0, 2.0, 5))
            if (broadcast := ledger.step_if_due()) is not None:
                for client in clients:
                    client.receive(broadcast)
        ledger.journal.sync()
        write = ledger.begin_checkpoint(1, lambda: ({0: 1.0, 1: 2.0}, [ClientShare(0, 1.0, 0.5, 0.25)]))
        assert write is not None
        write()
        saved = read_checkpoint(_newest(tmp_path))
        return tmp_path, algorithm, saved, ledger.server.model.tobytes()


@pytest.mark.parametrize("what", ["arrays", "values"])
def test_a_crafted_checkpoint_is_not_used(crafted: tuple[Path, Algorithm, Checkpoint, bytes], what: str) -> None:
    """The journal gives the state again; without its first records, the server refuses to start."""
    folder, algorithm, checkpoint, model = crafted
    path, first = _newest(folder), folder / "journal-000000000000.log"
    mutants = other_arrays(checkpoint, ["extra", "memory"]) if what == "arrays" else other_values(checkpoint)
    taken = []
    for word, mutant in mutants:
        try:
            write_checkpoint(path, mutant)
        except (TypeError, ValueError):  # which no file can hold
            continue
        with suppress(DataError), _moved(first), Ledger.open(folder, _initial, algorithm, 7, size=SIZE) as ledger:
            assert ledger.server.model.tobytes() == model, word
            taken.append(word)
        path.with_suffix(".unused").unlink(missing_ok=True)
        for other in folder.glob("journal-*.log"):
            if other != first and not other.stat().st_size:
                other.unlink()
    assert [word for word in taken if what == "arrays"] == []
    if what == "arrays":
        write_checkpoint(path, with_array(checkpoint, "model", checkpoint.arrays["model"][:1]))
        with Ledger.open(folder, _initial, algorithm, 7, size=SIZE) as ledger:
            assert ledger.server.model.tobytes() == model


@contextmanager
def _moved(path: Path) -> Iterator[None]:
    """A context in which a file is gone."""
    beside = path.with_suffix(".beside")
    path.rename(beside)
    try:
        yield
    finally:
        beside.rename(path)


def _kill_before_the_step(folder: Path, count: int) -> None:
    """Take uploads until one closes a batch, and end as a kill does between that upload's record and its step's."""
    with _open(folder) as ledger:
        for upload in _uploads(count):
            ledger.step_if_due()
            ledger.take(upload, Message.from_bytes(upload))
        assert ledger._batch is not None


def test_a_step_that_a_kill_prevented_is_made_at_the_next_start(tmp_path: Path) -> None:
    _kill_before_the_step(tmp_path, 6)
    expected = replay(Path("nowhere"), _initial(), _algorithm(), 7)
    broadcasts = [broadcast for upload in _uploads(6) if (broadcast := receive(expected, upload)) is not None]
    for _ in range(2):  # the second start finds the step in the journal
        with _open(tmp_path) as ledger:
            assert (ledger.server.version, ledger.traffic.uploads) == (2, 6)
            assert ledger.server.hidden_state.digest == expected.hidden_state.digest
            assert [broadcast for _, broadcast in ledger.broadcasts] == broadcasts


def test_a_step_that_a_kill_prevented_and_that_diverges_is_given_up_with_the_upload_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kill_before_the_step(tmp_path, 6)
    step = ledger_module.Server.step

    def diverges(server: Server, batch: Batch) -> bytes:
        if server.version == 1:
            raise NonFiniteVector("server model 2")
        return step(server, batch)

    with monkeypatch.context() as broken:
        broken.setattr(ledger_module.Server, "step", diverges)
        with _open(tmp_path) as ledger:
            assert (ledger.server.version, ledger.traffic.uploads) == (1, 5)
            write = ledger.begin_checkpoint(0)
            assert write is not None
            ledger.journal.sync()
            write()
    uploads = _uploads(8)
    with _open(tmp_path) as ledger:
        ledger.take(uploads[5], Message.from_bytes(uploads[5]))  # it was not counted, so it is not a duplicate
        assert ledger.step_if_due() is not None
        digest = ledger.server.hidden_state.digest
    with _open(tmp_path) as ledger:
        assert (ledger.server.hidden_state.digest, ledger.server.version, ledger.traffic.uploads) == (digest, 2, 6)


def test_each_check_of_an_upload_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the message to the buffer: its form, and whether it was counted before."""
    calls: list[str] = []
    for owner, name in ((Message, "check"), (ReplayWindows, "check")):
        whole = getattr(owner, name)

        def counted(*arguments: object, whole: Callable[..., object] = whole, owner: type = owner) -> object:
            calls.append(owner.__name__)
            return whole(*arguments)

        monkeypatch.setattr(owner, name, counted)
    (frame,) = _uploads(1)
    calls.clear()
    with _open(tmp_path) as ledger:
        checker = UploadChecker(_algorithm(), DefenceSettings(), 1)
        intake = Intake(ledger, checker)
        group = UploadGroup()
        intake.take(SimpleNamespace(subject="q.r.upload.0", data=frame, headers={}), group, 0.0)  # type: ignore[arg-type]
        assert group.accepted == 1
    assert sorted(calls) == ["Message", "ReplayWindows"]
