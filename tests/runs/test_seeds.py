"""Runs that differ only by seed are found, and their figures and curves are means with a spread."""

import math

import numpy as np
import pytest

from qafel.report.groups import repeats_of
from qafel.runs.reading import Run, Spread, mean_curve


def test_a_spread_knows_what_is_not_finite():
    spread = Spread.of([1.0, math.inf])
    assert spread.mean == math.inf
    assert Spread.of([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 1.0, 3.0, 3)
    assert math.isnan(Spread.of([]).mean)
    assert math.isnan(Spread.of([1.0]).std), "one seed has no spread"


def test_ranges_that_touch_are_not_apart():
    assert Spread.of([1, 2]).apart_from(Spread.of([3, 4]))
    assert Spread.of([3, 4]).apart_from(Spread.of([1, 2]))
    assert not Spread.of([1, 3]).apart_from(Spread.of([3, 4]))
    assert not Spread.of([5]).apart_from(Spread.of([1, math.inf]))


def by_hand(across, values):
    """The plain reading: row by row, over the runs that have the row."""
    rows = range(max(map(len, values)))
    found = [[column[row] for column in values if row < len(column)] for row in rows]
    grown = [
        np.mean([x[row] - (x[row - 1] if row else 0.0) for x in across if row < len(x)]) for row in rows
    ]  # fmt: skip
    return np.cumsum(grown), [np.mean(row) for row in found], [min(row) for row in found], [max(row) for row in found]


@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 3, 4), (1, 2), (4, 1, 1)])
def test_a_mean_curve_is_what_one_would_compute_by_hand(lengths):
    random = np.random.default_rng(7)
    across = [np.cumsum(random.uniform(size=length)) for length in lengths]
    values = [random.normal(size=length) for length in lengths]
    for found, expected in zip(mean_curve(across, values), by_hand(across, values), strict=True):
        assert found == pytest.approx(expected)
    assert (np.diff(mean_curve(across, values).x) > 0).all()


def test_a_seed_that_diverges_takes_the_mean_with_it_and_warns_nobody():
    curve = mean_curve([np.arange(3.0)] * 2, [np.array([1.0, 1e308, math.inf]), np.array([1.0, 1e308, 2.0])])
    assert curve.y.tolist() == [1.0, math.inf, math.inf]
    assert curve.low is not None
    assert curve.low.tolist() == [1.0, 1e308, 2.0]


def loaded(make_run, name, seed, **options):
    config = {"seed": seed, "name": name} | options.pop("config", {})
    return Run.load(make_run(name, folder=options.pop("folder", f"{name}-{seed}"), seed=seed, config=config, **options))


def test_runs_that_differ_only_by_seed_are_together_even_where_names_end_in_it(make_run):
    algorithm = {"algorithm": {"name": "x"}}
    runs = [loaded(make_run, "qafel", seed) for seed in (0, 1, 10)]
    runs += [loaded(make_run, f"mine-seed{seed}", seed, config=algorithm) for seed in (0, 1)]
    runs += [loaded(make_run, "qafel", 2, config={"stop": {"uploads": 5}})]
    found = repeats_of(runs)
    assert [(own.name, len(own.runs)) for own in found] == [("qafel", 3), ("mine", 2), ("qafel", 1)]


def test_runs_that_python_made_in_folders_of_their_seeds_are_together(make_run):
    """Their timing states the seed, too; their name is their folder's."""

    def timed(seed):
        return {"timing": {"durations": {"seed": seed}}, "algorithm": {}}

    runs = [
        loaded(make_run, name, seed, folder=f"mine/{name}", config=timed(seed))
        for seed in (0, 1)
        for name in (f"a-{seed}", f"seed{seed}")
    ]  # fmt: skip
    assert [(own.name, len(own.runs)) for own in repeats_of(runs)] == [("a", 2), ("mine", 2)]


def test_a_name_that_only_happens_to_end_in_a_seed_is_kept(make_run):
    """As of a sweep of rotated:1 and rotated:2."""
    runs = [
        loaded(make_run, f"rotated-{bits}", seed, config={"algorithm": {"bits": bits}})
        for bits in (1, 2)
        for seed in (0, 1, 2)
    ]
    assert [(own.name, len(own.runs)) for own in repeats_of(runs)] == [("rotated-1", 3), ("rotated-2", 3)]


def test_the_same_seed_twice_is_not_two_seeds_and_a_deployed_run_not_a_simulated_one(make_run):
    one, again = loaded(make_run, "a", 0, folder="x"), loaded(make_run, "a", 0, folder="y")
    deployed = loaded(make_run, "a", 1, virtual_time_unit="s")
    assert [own.runs for own in repeats_of([one, again, deployed])] == [(one,), (again,), (deployed,)]


def test_figures_are_of_the_runs_that_came_to_their_end(make_run):
    ended, killed = loaded(make_run, "a", 0, metric=[1.0, 0.5]), loaded(make_run, "a", 1, metric=[1.0], finished=False)
    (own,) = repeats_of([ended, killed])
    assert own.spread("metric_final") == Spread.of([0.5])
    assert (own.unfinished, own.diverged) == (1, 0)
