"""Checkpoint and journal give back the server exactly; what was synced is there again, whatever a crash left."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qafel.algorithm import Algorithm, Client, HiddenState, LocalTraining, Message, wire
from qafel.deployment.server import ledger as ledger_module
from qafel.deployment.server.ledger import Journal, Ledger, read_journal
from qafel.errors import ConfigError, DataError, DuplicateUpload, OutputError
from qafel.params import Vector
from qafel.rng import Stream
from tests.deployment.live import replay

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


def _fill(folder: Path, records: list[bytes], rotate_at: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    journal = Journal(folder, 0)
    for number, record in enumerate(records):
        if number in rotate_at:
            journal.rotate()
        journal.append(record)
    journal.close()


def test_records_come_back_in_order_from_any_number_and_over_files(tmp_path: Path) -> None:
    records = [bytes([number]) * number for number in range(10)]
    _fill(tmp_path, records, {3, 7})
    assert list(read_journal(tmp_path)) == records
    assert list(read_journal(tmp_path, 5)) == records[5:]
    assert list(read_journal(tmp_path, 10)) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 210), noise=st.binary(max_size=30))
@example(cut=193, noise=b"")  # a header without its newline
def test_a_torn_tail_costs_only_itself_and_appending_goes_on(tmp_path: Path, cut: int, noise: bytes) -> None:
    folder = tmp_path / f"{cut}-{noise.hex()}"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    records = [bytes([number]) * 20 for number in range(6)]
    _fill(folder, records)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)] + noise)
    survivors = list(read_journal(folder))
    assert survivors == records[: len(survivors)]
    assert len(survivors) >= 6 - cut // 32 - 1
    journal = Journal(folder, len(survivors))
    journal.append(b"next")
    journal.close()
    assert list(read_journal(folder)) == [*survivors, b"next"]


def test_damage_that_others_follow_is_an_error(tmp_path: Path) -> None:
    _fill(tmp_path, [b"first", b"second", b"third"], {2})
    path = tmp_path / "journal-000000000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        list(read_journal(tmp_path))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    _fill(tmp_path, [b"first", b"second", b"third"], {2})
    (tmp_path / "journal-000000000000.log").unlink()
    with pytest.raises(DataError, match="lacks records 0 to 1"):
        list(read_journal(tmp_path))


def test_files_before_a_checkpoint_can_be_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    for number in range(9):
        if number in (3, 6):
            journal.rotate()
        journal.append(bytes([number]))
    journal.sync()
    journal.drop_before(5)
    journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal-000000000003.log", "journal-000000000006.log"]
    assert list(read_journal(tmp_path, 5)) == [bytes([number]) for number in range(5, 9)]


def test_a_crash_between_a_rotation_and_its_sync_costs_only_what_was_not_synced(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    journal.append(b"safe")
    journal.sync()
    journal.append(b"lost")
    journal.rotate()
    journal.append(b"lost too")
    journal._file.close()  # as a killed process does
    assert list(read_journal(tmp_path)) == [b"safe"]
    journal = Journal(tmp_path, 1)
    journal.append(b"next")
    journal.close()
    assert list(read_journal(tmp_path)) == [b"safe", b"next"]


class _Disk:
    """A file on a disk that takes little at once, and in the end nothing."""

    def __init__(self, file: FileIO, room: int) -> None:
        self.file, self.room = file, room
        self.fileno, self.close = file.fileno, file.close

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: min(7, self.room)])
        self.room -= written
        return written


def test_a_short_write_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    journal._file = _Disk(journal._file, 1000)  # type: ignore[assignment]
    journal.append(b"a record that takes several writes")
    journal.close()
    assert list(read_journal(tmp_path)) == [b"a record that takes several writes"]


def test_after_a_failed_write_nothing_counts_as_safe(tmp_path: Path) -> None:
    """Whoever asks next must not believe that the records went with somebody else's sync."""
    journal = Journal(tmp_path, 0)
    journal._file = _Disk(journal._file, 20)  # type: ignore[assignment]
    journal.append(b"a record of more than twenty bytes")
    for _ in range(2):
        with pytest.raises(OutputError, match="No space left on device; free some space"):
            journal.sync()
    with pytest.raises(OutputError):
        journal.close()
    assert list(read_journal(tmp_path)) == []


def test_a_record_that_claims_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    (tmp_path / "journal-000000000000.log").write_bytes(b"\xff" * 40)
    assert list(read_journal(tmp_path)) == []
    assert (tmp_path / "journal-000000000000.log").stat().st_size == 0
