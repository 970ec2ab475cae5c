"""What was synced is there again, whatever a crash left; what is damaged is refused, and left as it is."""

from __future__ import annotations

import errno
import logging
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qafel.deployment.server.journal import Journal, JournalReader, read_journal
from qafel.errors import DamagedJournal, DataError, OutputError

FIRST = "journal-000000000000.log"


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 370), noise=st.binary(max_size=30))
@example(cut=323, noise=b"")  # a header without its newline
def test_a_torn_tail_costs_only_itself_and_appending_goes_on(tmp_path: Path, cut: int, noise: bytes) -> None:
    folder = tmp_path / f"{cut}-{noise.hex()}"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    records = [bytes([number]) * 20 for number in range(6)]
    _fill(folder, records)
    (folder / "synced").unlink()  # as if the process was killed before the sync
    path = folder / FIRST
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)] + noise)
    left = path.read_bytes()
    reader = JournalReader(folder)
    survivors = [record.data for record in reader]
    assert survivors == records[: len(survivors)]
    assert len(survivors) >= 6 - cut // 52 - 1
    assert path.read_bytes() == left, "reading changed something"
    journal = reader.resume()
    journal.append(b"next")
    journal.close()
    assert list(read_journal(folder)) == [*survivors, b"next"]


def test_what_is_cut_off_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _fill(tmp_path, [b"first", b"second"])
    with (tmp_path / FIRST).open("ab") as file:
        file.write(b"a write that was interrupted")
    size = (tmp_path / FIRST).stat().st_size
    reader = JournalReader(tmp_path)
    assert [record.data for record in reader] == [b"first", b"second"]
    reader.resume().close()
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert f"{FIRST}: cut off 28 bytes from byte {size - 28}" in said.getMessage()
    assert (tmp_path / FIRST).stat().st_size == size - 28


@pytest.mark.parametrize("with_mark", [True, False])
def test_one_flipped_bit_costs_no_synced_record(tmp_path: Path, with_mark: bool) -> None:
    """Bits all over the newest file, one at a time: the journal is refused, or gives back every record."""
    records = [bytes([number]) * 9 for number in range(5)]
    _fill(tmp_path, records)
    if not with_mark:  # as after a power cut, or in a copy
        (tmp_path / "synced").unlink()
    path = tmp_path / FIRST
    whole = path.read_bytes()
    last = len(whole) - 9 - 49  # with no mark, a damaged last record looks like a torn one
    for bit in range(0, 8 * (len(whole) if with_mark else last), 5):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError) as refused:
            list(JournalReader(tmp_path))
        assert str(path) in str(refused.value)
        assert path.read_bytes() == damaged, "the bytes are kept"


def test_a_refusal_says_file_byte_and_what_to_do(tmp_path: Path) -> None:
    _fill(tmp_path, [bytes([number % 256]) * 20 for number in range(500)])
    path = tmp_path / FIRST
    data = bytearray(path.read_bytes())
    data[50 + 69 + 56] ^= 1
    path.write_bytes(data)
    for why in (f"{len(data)} bytes of it were synced", "valid records follow"):
        with pytest.raises(DamagedJournal) as refused:
            list(read_journal(tmp_path))
        said = str(refused.value)
        assert f"{path} is damaged at byte 119, in record 1, and {why}" in said
        assert f"truncate -s 119 {path}" in said
        (tmp_path / "synced").unlink(missing_ok=True)
    with path.open("r+b") as file:  # what the sentence says
        file.truncate(119)
    assert list(read_journal(tmp_path)) == [bytes(20)]


def test_synced_records_that_are_gone_are_missed(tmp_path: Path) -> None:
    """A file that was replaced by an older copy, or deleted, ends where a record ends."""
    _fill(tmp_path, [b"first", b"second", b"third"], {2})
    newest = tmp_path / "journal-000000000002.log"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:50])
    with pytest.raises(DamagedJournal, match=f"damaged at byte 50, in record 2, and {len(whole)} bytes of it were"):
        list(read_journal(tmp_path))
    newest.unlink()
    with pytest.raises(DamagedJournal, match="journal-000000000002"):
        list(read_journal(tmp_path))
    (tmp_path / FIRST).unlink()
    with pytest.raises(DamagedJournal, match="record 2"):
        list(read_journal(tmp_path, 3))


def test_records_of_another_journal_do_not_fit_in(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        _fill(tmp_path / name, [name.encode(), b"second", b"third", b"fourth"], {2})
    newest = "journal-000000000002.log"
    (tmp_path / "one" / newest).write_bytes((tmp_path / "other" / newest).read_bytes())
    with pytest.raises(DamagedJournal, match="damaged at byte 50, in record 2"):
        list(read_journal(tmp_path / "one"))


def test_a_damaged_mark_is_told_and_refuses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _fill(tmp_path, [b"first"])
    (tmp_path / "synced").write_bytes(b"000000000000 000000000000999 0123456789abcdef\n")
    assert list(read_journal(tmp_path)) == [b"first"]
    assert "synced is damaged" in caplog.text


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
    with pytest.raises(DataError, match="records 0 to 1"):
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
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [
        "journal-000000000003.log",
        "journal-000000000006.log",
    ]
    assert list(read_journal(tmp_path, 5)) == [bytes([number]) for number in range(5, 9)]


def test_a_crash_between_a_rotation_and_its_sync_costs_only_what_was_not_synced(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    journal.append(b"safe")
    journal.sync()
    journal.append(b"lost")
    journal.rotate()
    journal.append(b"lost too")
    journal._file.close()  # as a killed process does
    journal._synced.close()
    reader = JournalReader(tmp_path)
    assert [record.data for record in reader] == [b"safe"]
    journal = reader.resume()
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
        with pytest.raises(OutputError, match="No space left"):
            journal.sync()
    with pytest.raises(OutputError):
        journal.close()
    assert list(read_journal(tmp_path)) == []


def test_a_record_that_claims_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(b"\xff" * 40)
    reader = JournalReader(tmp_path)
    assert list(reader) == []
    reader.resume().close()
    assert (tmp_path / FIRST).stat().st_size == 50
