"""What was synced is there again, whatever a crash left behind it."""

from __future__ import annotations

import errno
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qafel.deployment.server.ledger import Journal, read_journal
from qafel.errors import DataError, OutputError


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
@given(cut=st.integers(0, 200), noise=st.binary(max_size=30))
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
