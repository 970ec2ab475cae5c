"""Groups of comparable runs, their labels, and the visible part of the metric."""

import math

import numpy as np

from qafel.report import render_report
from qafel.report.groups import MetricView, groups_of, metric_view, run_labels
from qafel.runs.reading import Run


def view_of(runs: list[Run]) -> MetricView:
    (group,) = groups_of(runs)
    return metric_view(group)


def test_runs_of_one_name_get_labels_that_differ(make_run):
    runs = [
        Run.load(make_run("qafel", folder="a", seed=1)),
        Run.load(make_run("qafel", folder="b", seed=2)),
        Run.load(make_run("fedbuff", folder="c")),
        Run.load(make_run("fedbuff", folder="d")),
    ]
    assert run_labels(runs) == ("qafel · seed 1", "qafel · seed 2", "fedbuff · c", "fedbuff · d")
    assert len(set(run_labels([runs[0], runs[0]]))) == 2


def test_the_reference_is_the_first_fedbuff_else_the_first_and_came_to_its_end(make_run):
    qafel, fedbuff = Run.load(make_run("qafel")), Run.load(make_run("mushrooms-fedbuff"))
    diverged = Run.load(make_run("fedbuff", status="diverged"))
    killed = Run.load(make_run("killed", finished=False))
    expected = {(qafel, fedbuff, fedbuff): 1, (qafel, qafel): 0, (diverged, killed, qafel, fedbuff): 3}
    expected |= {(killed, diverged, qafel): 2, (killed, diverged): 1}
    assert {runs: groups_of(runs)[0].reference for runs in expected} == expected


def test_runs_of_one_kind_are_said_to_be_nothing_else(make_run):
    killed = Run.load(make_run("killed", finished=False, config={"task": {"name": "one of my own"}}))
    done = Run.load(make_run("done", metric_name="loss", config={"task": {"name": "one of my own"}}))
    (group,) = groups_of([killed, done])
    assert (group.metric, group.goal) == ("loss", "min")
    assert "Each kind" not in render_report([killed, done])


def test_a_suboptimality_over_decades_gets_a_log_axis_and_an_accuracy_a_linear_one(make_run):
    assert view_of([Run.load(make_run("a"))]).axis.log
    assert not view_of([Run.load(make_run("b", metric=[0.7, 0.5, 0.4]))]).axis.log
    accuracy = Run.load(make_run("c", metric=[0.01, 0.5, 0.9], metric_goal="max", metric_name="accuracy"))
    view = view_of([accuracy])
    low, high = view.axis.limits
    assert not view.axis.log
    assert (low < 0.01, high > 0.9, view.leaves) == (True, True, {})


def test_a_diverging_run_neither_stretches_the_view_nor_goes_unmentioned(make_run):
    good = Run.load(make_run("good"))
    bad = Run.load(make_run("bad", metric=[0.68, 0.5, 10.0, 1e3, 1e100]))
    view = view_of([good, bad])
    low, high = view.axis.log_limits
    assert 0.68 < high < 10
    assert low < 1e-4
    assert view.leaves == {1: 2}
    assert len(view.notes) == 1
    assert view.notes[0].startswith("▲ bad")
    assert "1.00e100" in view.notes[0]


def test_a_run_that_stops_being_finite_is_mentioned(make_run):
    view = view_of([Run.load(make_run("good")), Run.load(make_run("nan", metric=[0.68, 0.5, math.nan]))])
    assert [note.startswith("▲ nan") for note in view.notes] == [True]


def test_an_accuracy_that_collapses_below_all_bounds_is_clipped_from_below(make_run):
    goal = {"metric_goal": "max"}
    good = Run.load(make_run("good", metric=[0.1, 0.9], **goal))
    bad = Run.load(make_run("bad", metric=[0.1, -1e9], **goal))
    view = view_of([good, bad])
    assert -1 < view.edge < 0.1
    assert view.edge == view.axis.limits[0]
    assert list(view.leaves) == [1]


def test_runs_that_all_diverge_or_are_all_nan_still_have_a_view(make_run):
    view = view_of([Run.load(make_run("up", metric=[1.0, 10.0, 1e4]))])
    assert view.axis.limits[1] > 1e4
    assert view_of([Run.load(make_run("over", metric=[1.0, 10.0, 1e300]))]).edge < 1e8
    assert "Nothing to draw" in view_of([Run.load(make_run("nan", metric=[math.nan]))]).notes[0]


def test_an_exact_zero_does_not_forbid_the_log_axis(make_run):
    view = view_of([Run.load(make_run("a", metric=[*np.geomspace(0.68, 1e-6, 200), 0.0]))])
    assert view.axis.log
    assert view.axis.log_limits[0] > 0
    assert "zero" in view.notes[-1]


def test_settings_tell_runs_of_one_name_apart_if_they_are_few(make_run):
    runs = [
        Run.load(
            make_run(
                "qafel", folder=f"{rate}-{seed}", seed=seed, config={"seed": seed, "algorithm": {"client_lr": rate}}
            )
        )
        for rate in (0.5, 1.0)
        for seed in (0, 1)
    ]
    (group,) = groups_of(runs)
    assert [style.label for style in group.styles] == ["qafel · client_lr=0.5", "qafel · client_lr=1.0"]
