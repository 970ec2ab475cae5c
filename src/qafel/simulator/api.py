"""The simulator from Python: objects in, a result out, nothing written unless asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from qafel.algorithm import Algorithm
from qafel.errors import NonFiniteVector
from qafel.params import Vector
from qafel.runs.reading import History
from qafel.simulator.executors import ExecutorName, make_executor
from qafel.simulator.measure import Evaluation, Limits, Measurements, Row
from qafel.simulator.run import drive
from qafel.simulator.simulation import Simulation
from qafel.simulator.summary import Summary, summarise
from qafel.simulator.timing import Timing
from qafel.tasks.protocol import Task


@final
@dataclass(frozen=True)
class Result:
    """What came of a run."""

    summary: Summary
    history: History
    model: Vector
    hidden_state: Vector


@final
class _Returning:
    """A function that returns a value, and travels to another process with it."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self) -> Task:
        return self._task


def simulate(
    task: Task,
    algorithm: Algorithm,
    timing: Timing,
    *,
    limits: Limits | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 0,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    progress: Callable[[Row], None] | None = None,
) -> Result:
    """Run a method on a task in virtual time.

    Any object that fulfils the protocols will do: a task, a quantizer, a staleness law (τ to a weight), durations, or
    arrivals as an iterable of (time, client). By default it runs 1,000 server steps and evaluates after each.
    """
    measurements = Measurements(evaluation or Evaluation(), task.metric_goal)
    rows, status = [], "finished"
    with make_executor(executor, workers, task, _Returning(task), algorithm, seed) as pool:
        simulation = Simulation(task, algorithm, timing, seed, pool)
        try:
            for row in drive(simulation, measurements, limits or Limits(server_steps=1000)):
                rows.append(row.to_json())
                if progress is not None:
                    progress(row)
        except NonFiniteVector:
            status = "diverged"
        summary = summarise(simulation, measurements, status)
    return Result(summary, History(rows), simulation.server.model, simulation.server.hidden_state.vector)
