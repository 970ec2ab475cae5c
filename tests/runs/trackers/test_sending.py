"""A tracker receives rows in a thread: whatever it does, the run continues and missing rows are sent later."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from qafel.runs import trackers
from qafel.runs.trackers import NOTHING, Position, Track, TrackedRun, TrackerListener
from tests.runs.test_directory import row


class Recording:
    """A tracker whose methods fail a number of times, then record their arguments."""

    def __init__(self, has=NOTHING, **failures):
        self.has, self.failures, self.rows, self.ends = has, failures, [], []

    def fail(self, method):
        if self.failures.get(method, 0):
            self.failures[method] -= 1
            raise OSError(f"{method} failed\nand more")

    def begin(self):
        self.fail("begin")
        return self.has

    def log(self, rows):
        self.fail("log")
        self.rows += [row["uploads"] for row in rows]

    def end(self, summary):
        self.fail("end")
        self.ends.append(summary)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(trackers, "AGAIN_S", 0.05)


def tell(tracker, uploads, ready=lambda: True, make=None):
    """What was said by a run with rows at these uploads, which ends when it is `ready`."""
    said, first = [], row()
    run = TrackedRun(Path("none"), {"name": "x"}, "accuracy", False, Track())
    listener = TrackerListener("mlflow", make or (lambda: tracker), run, said.append)
    for number in uploads:
        listener.on_row(replace(first, uploads=number, version=number))
    while not ready():
        time.sleep(0.01)
    listener.on_end({"status": "finished"})
    return said


def test_every_row_and_the_end_are_told_in_order_and_no_thread_is_left():
    tracker, threads = Recording(), set(threading.enumerate())
    assert tell(tracker, range(50)) == []
    assert tracker.rows == list(range(50))
    assert tracker.ends == [{"status": "finished"}]
    assert threads.issuperset(threading.enumerate())


def test_rows_that_it_has_already_are_not_told_again():
    tracker = Recording(has=Position(7, 7))
    tell(tracker, range(10))
    assert tracker.rows == [8, 9]


def test_of_many_rows_it_hears_ever_fewer_and_the_last():
    tracker = Recording()
    tell(tracker, range(9_999))
    assert tracker.rows[:1000] == list(range(1000))
    assert tracker.rows == sorted(set(tracker.rows))
    assert tracker.rows[-1] == 9_998
    assert 2000 < len(tracker.rows) < 2500


@pytest.mark.parametrize("method", ["begin", "log"])
def test_a_failure_is_said_once_and_what_it_lacks_is_told_when_it_is_back(method):
    tracker = Recording(**{method: 2})
    said = tell(tracker, range(20), ready=lambda: len(tracker.rows) == 20)
    assert len(said) == 1
    assert f"OSError: {method} failed" in said[0]
    assert tracker.rows == list(range(20))
    assert tracker.ends


def test_a_library_that_does_not_load_is_said_and_harms_nothing():
    def broken():
        raise ImportError("no such symbol")

    (said,) = tell(None, range(3), make=broken)
    assert "ImportError: no such symbol" in said


def test_a_tracker_that_never_answers_is_left_alone(monkeypatch):
    monkeypatch.setattr(trackers, "END_S", 0.1)
    never = threading.Event()

    class Hanging(Recording):
        def log(self, rows):
            never.wait()

    (said,) = tell(Hanging(), range(3))
    assert "mlflow" in said
    never.set()
