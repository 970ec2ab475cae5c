"""Files that last: a failed write says so in a sentence and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from qafel.errors import DataError, OutputError
from qafel.files import read_word, write_atomically, write_checked, write_word


def test_a_failed_write_leaves_no_half_file_behind(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OutputError, match="cannot write .*taken: Is a directory"):
        write_atomically(tmp_path / "taken", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write .*file/checkpoint: File exists"):
        write_checked(tmp_path / "file/checkpoint", "checkpoint", 1, b"data")


def test_a_word_lasts_and_any_flipped_bit_of_it_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "word"
    assert read_word(path) is None
    write_word(path, "1024")
    assert read_word(path) == "1024"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged"):
            read_word(path)
