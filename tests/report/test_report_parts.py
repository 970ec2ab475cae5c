"""Numbers, labels, thinning and the choice of axes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qafel.drawing.styles import labels_of, short_labels, styles_of, thin
from qafel.report.groups import MetricView, groups_of, metric_view
from qafel.runs.reading import Run
from qafel.text import human_bytes, human_count, human_metric, human_rate, human_ratio, human_seconds


def view_of(runs: list[Run]) -> MetricView:
    (group,) = groups_of(runs)
    return metric_view(group)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (human_bytes(0), "0 B"),
        (human_bytes(999), "999 B"),
        (human_bytes(999_999), "1.00 MB"),
        (human_bytes(12_345_678), "12.3 MB"),
        (human_bytes(math.nan), "–"),
        (human_count(9_999), "9,999"),
        (human_count(100_000), "100 k"),
        (human_count(6.02), "6.02"),
        (human_rate(3205.1), "3.21 k/s"),
        (human_metric(1.204e-4), "1.20e-4"),
        (human_metric(0.9123), "0.912"),
        (human_metric(math.nan), "NaN"),
        (human_metric(math.inf), "∞"),
        (human_metric(-1.5e6), "-1.50e6"),
        (human_ratio(0.1311), "0.131×"),
        (human_ratio(1.0), "1×"),
        (human_seconds(31.24), "31.2 s"),
        (human_seconds(125), "2 min 5 s"),
        (human_seconds(7384), "2 h 3 min"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected


# A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(st.lists(st.floats(width=32), min_size=1, max_size=3000), st.integers(12, 400))
def test_thinning_keeps_ends_extremes_and_the_limit(values, limit):
    column = np.array(values, dtype=np.float64)
    rows = thin(column, limit)
    assert rows[0] == 0
    assert rows[-1] == len(column) - 1
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= limit + 8
    finite = column[np.isfinite(column)]
    if finite.size:
        assert {finite.min(), finite.max()} <= set(column[rows])
    assert np.isfinite(column).all() == np.isfinite(column[rows]).all()


def test_thinning_is_the_same_every_time_and_finer_at_the_start():
    column = np.random.default_rng(1).normal(size=10_000)
    rows = thin(column, 1200)
    assert np.array_equal(rows, thin(column, 1200))
    assert (rows < 100).sum() > 5 * (rows > 9_900).sum()


def test_runs_of_one_name_get_labels_that_differ(make_run):
    runs = [
        Run.load(make_run("qafel", folder="a", seed=1)),
        Run.load(make_run("qafel", folder="b", seed=2)),
        Run.load(make_run("fedbuff", folder="c")),
        Run.load(make_run("fedbuff", folder="d")),
    ]
    assert labels_of(runs) == ("qafel · seed 1", "qafel · seed 2", "fedbuff · c", "fedbuff · d")
    assert len(set(labels_of([runs[0], runs[0]]))) == 2


def test_no_two_of_twenty_eight_runs_look_alike(make_run):
    run = Run.load(make_run())
    assert len({(style.colour, style.dash) for style in styles_of([run] * 28)}) == 28


def test_the_reference_is_the_first_fedbuff_else_the_first_and_came_to_its_end(make_run):
    qafel, fedbuff = Run.load(make_run("qafel")), Run.load(make_run("mushrooms-fedbuff"))
    diverged = Run.load(make_run("fedbuff", status="diverged"))
    killed = Run.load(make_run("killed", finished=False))
    expected = {(qafel, fedbuff, fedbuff): 1, (qafel, qafel): 0, (diverged, killed, qafel, fedbuff): 3}
    expected |= {(killed, diverged, qafel): 2, (killed, diverged): 1}
    assert {runs: groups_of(runs)[0].reference for runs in expected} == expected


def test_long_labels_lose_what_they_share_and_stay_different():
    ends = ("qafel", "fedbuff")
    labels = [f"a-recipe-with-a-very-long-name-{end}-and-so-on-every100 · seed 0" for end in ends]
    assert short_labels(labels) == ends
    assert short_labels(["short", "a"]) == ("short", "a")


@patient
@given(st.lists(st.text("ab-· ", max_size=60), unique=True, min_size=1, max_size=6), st.integers(12, 50))
def test_shortened_labels_differ_and_fit(labels, most):
    short = short_labels(labels, most)
    assert len(set(short)) == len(labels)
    assert all(len(label) <= most for label in short)


def test_a_suboptimality_over_decades_gets_a_log_axis_and_an_accuracy_a_linear_one(make_run):
    assert view_of([Run.load(make_run("a"))]).log
    assert not view_of([Run.load(make_run("b", metric=[0.7, 0.5, 0.4]))]).log
    accuracy = Run.load(make_run("c", metric=[0.01, 0.5, 0.9], metric_goal="max", metric_name="accuracy"))
    view = view_of([accuracy])
    assert not view.log
    assert (view.low < 0.01, view.high > 0.9, view.exits) == (True, True, ())


def test_a_diverging_run_neither_stretches_the_view_nor_goes_unmentioned(make_run):
    good = Run.load(make_run("good"))
    bad = Run.load(make_run("bad", metric=[0.68, 0.5, 10.0, 1e3, 1e300]))
    view = view_of([good, bad])
    assert 0.68 < view.high < 10
    assert view.low < 1e-4
    assert [(leaving.run, leaving.row) for leaving in view.exits] == [(1, 2)]
    assert view.notes == ("bad leaves the view at 20 uploads and reaches 1.00e300.",)


def test_a_run_that_stops_being_finite_is_mentioned(make_run):
    view = view_of([Run.load(make_run("good")), Run.load(make_run("nan", metric=[0.68, 0.5, math.nan]))])
    assert view.notes == ("nan stops being finite at 20 uploads.",)


def test_an_accuracy_that_collapses_below_all_bounds_is_clipped_from_below(make_run):
    goal = {"metric_goal": "max"}
    good = Run.load(make_run("good", metric=[0.1, 0.9], **goal))
    bad = Run.load(make_run("bad", metric=[0.1, -1e9], **goal))
    view = view_of([good, bad])
    assert -1 < view.low < 0.1
    assert view.edge == view.low
    assert view.exits[0].run == 1


def test_runs_that_all_diverge_or_are_all_nan_still_have_a_view(make_run):
    view = view_of([Run.load(make_run("up", metric=[1.0, 10.0, 1e4]))])
    assert view.high > 1e4
    assert view_of([Run.load(make_run("over", metric=[1.0, 10.0, 1e300]))]).high < 1e8
    assert "nothing to draw" in view_of([Run.load(make_run("nan", metric=[math.nan]))]).notes[0]


def test_an_exact_zero_does_not_forbid_the_log_axis(make_run):
    view = view_of([Run.load(make_run("a", metric=[*np.geomspace(0.68, 1e-6, 200), 0.0]))])
    assert view.log
    assert view.low > 0
    assert "zero" in view.notes[-1]
