"""What is said of a run's state, and how long it will take."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from qafel.runs.live import Rate
from qafel.watch.sources import Watched, seconds_left, seconds_to_target, seen_once, uploads_to_target
from tests.watch.states import live_state, watched


@pytest.mark.parametrize(
    ("live", "heard_s", "summary", "word"),
    [
        (live_state(), 1.0, None, "running"),
        (live_state(), 75.0, None, "silent for 75 s"),
        (live_state(status="stopped"), 75.0, None, "stopped"),
        (live_state(status="not genuine"), 0.0, None, "not genuine"),
        (None, 1.0, None, "running"),
        (None, 3600.0 * 24, None, "silent for 24 h 0 min"),
        (None, 3600.0, {"status": "diverged"}, "diverged"),
        (None, 3600.0, {}, "finished"),
    ],
)
def test_the_state_in_a_word(live, heard_s, summary, word):
    assert watched(live=live, heard_s=heard_s, summary=summary).word == word


UPLOADS = np.arange(10.0, 1000.0, 10.0)


@pytest.mark.parametrize("target", [0.7, 0.8])
def test_an_accuracy_that_grows_with_the_logarithm_is_foreseen_exactly(target):
    foreseen = uploads_to_target(UPLOADS, 0.1 * np.log(UPLOADS), target, "max")
    assert foreseen == pytest.approx(math.exp(10 * target))


def test_a_loss_that_falls_with_a_power_is_foreseen_exactly():
    assert uploads_to_target(UPLOADS, 3 / np.sqrt(UPLOADS), 0.05, "min") == pytest.approx(3600)


def test_a_metric_that_does_not_come_nearer_never_arrives():
    assert uploads_to_target(UPLOADS, 0.5 - 0.01 * np.log(UPLOADS), 0.9, "max") == math.inf
    assert uploads_to_target(UPLOADS, np.full(99, 0.5), 0.9, "max") == math.inf
    assert uploads_to_target(UPLOADS, 0.001 * np.log(UPLOADS), 0.9, "max") == math.inf, "so slow that nobody waits"


@pytest.mark.parametrize("metric", [[], [0.1] * 5, [math.nan] * 99])
def test_too_little_tells_nothing(metric):
    assert math.isnan(uploads_to_target(UPLOADS[: len(metric)], np.array(metric), 0.9, "max"))


def test_the_time_to_the_target_follows_from_the_present_rate():
    # 0.1 · ln(uploads) = 0.85 after 4,915 uploads, of which 400 are done, at 20 a second.
    assert seconds_to_target(watched(live=live_state())) == pytest.approx((math.exp(8.5) - 400) / 20, rel=1e-6)
    assert math.isnan(seconds_to_target(watched(live=live_state(updates_per_s=0.0))))
    assert math.isnan(seconds_to_target(watched(live=None)))
    assert math.isnan(seconds_to_target(watched(live=live_state(), summary={})))


def test_the_time_to_the_end_is_at_the_pace_of_the_last_minute():
    state, pace = live_state(at=1000.0, share_done=0.1, wall_s=50.0), Rate(60.0, least_s=3.0)
    assert seconds_left(state, pace) == pytest.approx(450), "at first, at the pace since the beginning"
    for second in range(1, 100):
        left = seconds_left(replace(state, at=1000.0 + second, share_done=0.1 + 0.001 * second), pace)
    assert left == pytest.approx(801, rel=0.01)
    begun_again = replace(state, at=1200.0, share_done=0.05, wall_s=5.0)
    assert seconds_left(begun_again, pace) == pytest.approx(95)
    assert math.isnan(seconds_left(replace(begun_again, at=1210.0), pace)), "no progress"
    assert math.isnan(seconds_left(replace(state, share_done=None), pace))


def seen(key: str, run_id: str = "", **changes) -> Watched:
    found = watched(key, live_state(run_id=run_id))
    return replace(found, run=replace(found.run, summary={**found.run.summary, "run_id": run_id}), **changes)


def test_a_run_that_is_seen_twice_is_shown_once():
    folder, told = seen("runs/mine", "1f"), seen("nats://here/mine", "1f")
    others = [seen("nats://here/other", "2e"), seen("runs/simulated"), seen("runs/another")]
    assert seen_once([folder, told, *others]) == [folder, *others], "the folder knows all rows"


def test_of_a_run_that_is_seen_twice_a_silent_copy_is_not_shown():
    copy, told = seen("backup/mine", "1f", heard_s=1e6), seen("nats://here/mine", "1f")
    assert seen_once([copy, told]) == [told]
    damaged = seen("runs/mine", "1f", damaged=True)
    assert seen_once([damaged, told]) == [told]
    assert seen_once([copy, seen("nats://here/mine", "1f", heard_s=1e6)]) == [copy]
