"""The simulator's benchmark: one row a case, each with its ratio to a bare loop."""

from __future__ import annotations

import pytest

from qafel.bench.speed import SimulatorCase, all_cases, measure_case, measure_simulator

SMALL = (SimulatorCase("quadratic", 10, 5, 200), SimulatorCase("mushrooms", 10, 113, 200))


def test_each_case_runs_in_its_own_process_and_makes_a_row() -> None:
    (row,) = measure_simulator(SMALL[:1])
    assert (row.task, row.clients, row.dimension, row.updates) == ("quadratic", 10, 5, 200)
    assert row.peak_mib > 1


@pytest.mark.parametrize("case", SMALL)
def test_the_ratio_and_the_overhead_follow_from_both_speeds(case: SimulatorCase) -> None:
    row = measure_case(case)
    assert row.ratio == pytest.approx(row.updates_per_s / row.bare_updates_per_s)
    assert row.overhead_us == pytest.approx(1e6 / row.updates_per_s - 1e6 / row.bare_updates_per_s)


def test_every_case_states_the_dimension_of_its_task() -> None:
    for case in all_cases():
        if case.task in ("mushrooms", "quadratic") and case.clients <= 1_000:
            assert case.make_task().layout.size == case.dimension
