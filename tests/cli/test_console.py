"""The progress of many runs, as the console shows it."""

from __future__ import annotations

import io
from dataclasses import fields

import pytest
from rich.console import Console

from qafel.cli.console import SweepProgress
from qafel.paper.entry import Change, configuration
from qafel.simulator import Row
from qafel.sweeps import Planned


class Ticking:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def planned_run(steps, seed=0):
    return Planned("", configuration("mushrooms-fedbuff", seed, Change(f"T{steps}", (f"stop.server_steps={steps}",))))


def row(version):
    return Row(
        **dict.fromkeys((field.name for field in fields(Row)), 0.0) | {"version": version, "uploads": 10 * version}
    )


def test_the_time_left_weighs_runs_and_a_resumed_ones_past_is_no_speed():
    short, long, there = planned_run(100), planned_run(900), planned_run(50)
    clock, quiet = Ticking(), Console(file=io.StringIO())
    with SweepProgress([there, short, long], [short, long], console=quiet, clock=clock) as progress:
        assert progress.seconds_left() is None
        progress.started(short)
        progress.progressed(short, row(0))
        clock.now = 10.0
        progress.ended(short, "finished")
        assert progress.seconds_left() == pytest.approx(90.0), "one of two runs, but a tenth of the work"
        progress.started(long)
        progress.progressed(long, row(800))
        assert progress.seconds_left() == pytest.approx(10.0), "its 800 steps were made before"
        progress.progressed(long, row(850))
        clock.now = 15.0
        assert progress.seconds_left() == pytest.approx(5.0)
        progress.ended(long, "failed")
        assert progress.seconds_left() == pytest.approx(0.0)


@pytest.mark.parametrize(("terminal", "quiet", "lines"), [(False, False, 1), (False, True, 0), (True, True, 0)])
def test_without_a_terminal_each_end_is_a_line(terminal, quiet, lines):
    run, written = planned_run(100), io.StringIO()
    with SweepProgress([run], [run], quiet, Console(file=written, force_terminal=terminal)) as progress:
        progress.started(run)
        progress.ended(run, "finished")
    assert written.getvalue().count(f"{run.folder}: finished (1 of 1)\n") == lines
