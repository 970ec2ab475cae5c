"""Who hears of a run: every listener hears of its end."""

from __future__ import annotations

import threading

import pytest

from qafel.runs.reading import Run
from tests.running import run
from tests.runs.test_directory import short


class Failing:
    """A listener that fails at the given moments."""

    def __init__(self, row: bool = False, end: bool = False) -> None:
        self.row, self.end, self.heard = row, end, []

    def on_row(self, row):
        if self.row and row.version:
            raise RuntimeError("at a row")

    def on_end(self, summary):
        self.heard.append(summary and summary["status"])
        if self.end:
            raise RuntimeError("at the end")


def test_every_listener_hears_of_the_end_even_if_another_fails_there(tmp_path):
    first, second = Failing(end=True), Failing()
    with pytest.raises(RuntimeError, match="at the end"):
        run(short(), tmp_path / "run", [first, second])
    assert first.heard == second.heard == ["finished"]
    assert Run.load(tmp_path / "run").finished


def test_a_run_that_a_listener_breaks_off_keeps_its_rows_and_leaves_no_thread_or_lock(tmp_path):
    threads, first, second = set(threading.enumerate()), Failing(row=True, end=True), Failing()
    with pytest.raises(RuntimeError, match="at the end"):
        run(short(), tmp_path / "run", [first, second])
    assert first.heard == second.heard == [None]
    assert not Run.load(tmp_path / "run").finished
    assert threads.issuperset(threading.enumerate())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
