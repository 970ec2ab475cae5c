"""The live state of a run: written for readers, removed or marked "stopped" at the end, never in the way."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from qafel.errors import DataError
from qafel.runs.directory import RunDirectory
from qafel.runs.live import LIVE_FILE, MOST_STALENESS, LiveState, Rate, read_live, shorten, write_live

STATE = LiveState(
    status="running",
    at=1000.0,
    version=3,
    uploads=31,
    upload_bytes_total=310,
    broadcast_bytes_total=30,
    wall_s=2.0,
    training={"7": 2},
    silent={"8": None, "9": 12.5},
    rejected={"stale": 1},
)


def test_a_state_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_live(tmp_path, STATE)
    assert read_live(tmp_path) == STATE


def test_what_is_not_finite_is_left_out_of_the_json(tmp_path: Path) -> None:
    write_live(tmp_path, replace(STATE, metric=math.nan, hidden_state_lag=math.inf))
    found = read_live(tmp_path)
    assert found is not None
    assert (found.metric, found.hidden_state_lag) == (None, None)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"status": "running"}', b"\xff\xfe"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LIVE_FILE).write_bytes(content)
    with pytest.raises(DataError, match=LIVE_FILE):
        read_live(tmp_path)


def test_without_a_file_there_is_no_state(tmp_path: Path) -> None:
    assert read_live(tmp_path) is None


def test_a_field_of_a_newer_version_does_no_harm() -> None:
    later = json.loads(STATE.to_bytes()) | {"mood": "cheerful"}
    assert LiveState.from_bytes(json.dumps(later).encode()) == STATE


def test_a_finished_run_leaves_no_file_and_a_broken_off_one_says_stopped(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.on_live(STATE)
    directory.on_end(None)
    found = read_live(tmp_path)
    assert found is not None
    assert (found.status, found.uploads) == ("stopped", 31)
    directory.on_end({"status": "finished"})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_file_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    write_live(tmp_path / "gone", STATE)
    RunDirectory(tmp_path / "gone").on_end(None)


def test_a_long_histogram_keeps_its_sum() -> None:
    histogram = list(range(3 * MOST_STALENESS))
    assert len(shorten(histogram)) == MOST_STALENESS + 1
    assert sum(shorten(histogram)) == sum(histogram)
    assert shorten([1, 2]) == [1, 2]


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate(over_s=10.0)
    assert rate.mark(0.0, 0) == 0.0
    for second in range(1, 20):
        now = rate.mark(float(second), 100 * second)
    assert now == pytest.approx(100)
    for second in range(20, 40):
        now = rate.mark(float(second), 1900)
    assert now == 0.0
