"""Files that last: a failed write says so in a sentence and leaves nothing behind."""

from __future__ import annotations

import pytest

from qafel.errors import OutputError
from qafel.files import write_atomically, write_checked


def test_a_failed_write_leaves_no_half_file_behind(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OutputError, match="cannot write .*taken: Is a directory"):
        write_atomically(tmp_path / "taken", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write .*file/checkpoint: File exists"):
        write_checked(tmp_path / "file/checkpoint", "checkpoint", 1, b"data")
