"""The progress of many runs, as the console shows it."""

from __future__ import annotations

import dataclasses
import io
import re
from contextlib import suppress
from dataclasses import fields

import pytest
from rich.console import Console

from qafel.cli.console import SweepProgress
from qafel.config import Limits
from qafel.errors import ConfigError
from qafel.runs import bars
from qafel.search.runner import RunSpec
from qafel.simulator import Row
from tests.running import Change, configuration


class Ticking:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def planned_run(steps, seed=0):
    return RunSpec("", configuration("mushrooms-fedbuff", seed, Change(f"T{steps}", (f"stop.server_steps={steps}",))))


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


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_the_bar_of_all_runs_is_full_when_all_have_ended(status):
    """Also if none of them did any work that was seen."""
    run = planned_run(100)
    with SweepProgress([run], [run], console=Console(file=io.StringIO())) as progress:
        progress.started(run)
        progress.ended(run, status)
        assert progress.bars.tasks[0].percentage == 100
    with SweepProgress([run], [], console=Console(file=io.StringIO())) as progress:
        assert progress.bars.tasks[0].percentage == 100, "nothing was left to do"


@pytest.mark.parametrize("name", ["mushrooms-qafel-4bit", "cifar10-fedasync-direct-c1000-qsgd"])
def test_a_runs_bar_fits_in_80_columns_and_its_end_shows_the_last_step(name, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(bars, "errors", Console(file=written, width=80, force_terminal=True))
    with bars.progress_bar(name, Limits(server_steps=10_000), "accuracy") as bar:
        bar.on_row(dataclasses.replace(row(9_950), metric=0.000795, total_bytes=64_100_000, wall_s=9.0))
        bar.on_end({"metric_final": 0.000793, "server_steps": 10_000, "status": "finished"})
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue()).replace("\r", "\n").splitlines()
    last = [line for line in lines if line.strip()][-1]
    assert "10,000 steps accuracy 0.000793 · finished" in last
    assert "━" * 8 in last
    assert last.count("…") == (len(name) > 20)


@pytest.mark.parametrize(("terminal", "quiet", "lines"), [(False, False, 1), (False, True, 0), (True, True, 0)])
def test_without_a_terminal_each_end_is_a_line(terminal, quiet, lines):
    run, written = planned_run(100), io.StringIO()
    with SweepProgress([run], [run], quiet, Console(file=written, force_terminal=terminal)) as progress:
        progress.started(run)
        progress.ended(run, "finished")
    assert written.getvalue().count(f"{run.folder}: finished (1 of 1)\n") == lines


def test_a_sweeps_lines_fit_in_80_columns_whatever_the_runs_are_called():
    written, run = io.StringIO(), planned_run(100_000, seed=17)
    terminal = Console(file=written, width=80, force_terminal=True)
    name = "cifar10-fedasync-direct-c1000-qsgd-client_lr=0.0125"
    run = dataclasses.replace(run, config=run.config.model_copy(update={"name": name}))
    with SweepProgress([run] * 15, [run], console=terminal) as progress:
        progress.started(run)
        progress.progressed(run, row(12_345))
        progress.bars.refresh()
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue()).replace("\r", "\n").splitlines()
    last = [line for line in lines if "seed17" in line][-1]
    assert last.split()[1].startswith("cifar10-f")
    assert "━" * 7 in last
    assert "0 after 123,450 uploads" in last


def test_a_refused_command_leaves_no_bar():
    written = io.StringIO()
    with suppress(ConfigError), bars.LiveProgress(console=Console(file=written)) as live:
        live.add_task("x")
        raise ConfigError("no")
    assert written.getvalue() == ""
