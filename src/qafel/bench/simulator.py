"""The speed of the simulator, relative to a bare loop with the same training.

Each case runs in its own process, so that its peak memory can be measured. Simulator and bare loop take turns. A figure
is the median of their processor times, because machines are noisy.
"""

from __future__ import annotations

import gc
import resource
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from statistics import median
from time import process_time
from typing import final

from qafel.algorithm import Algorithm, HiddenState, method
from qafel.config import Timing
from qafel.lazy import is_installed
from qafel.rng import Stream
from qafel.simulator.api import simulate
from qafel.tasks import Mushrooms, Quadratic, Task

TURNS = 5

NEVER = 10**12


@dataclass(frozen=True, slots=True)
class SimulatorCase:
    """A task and its clients."""

    task: str
    clients: int
    dimension: int
    updates: int
    local_steps: int = 10
    batch_size: int | None = None

    def make_task(self) -> Task:
        match self.task:
            case "mushrooms":
                return Mushrooms(self.clients)
            case "quadratic":
                return Quadratic(self.clients, self.dimension, noise=0.0)
        from qafel.bench.training import random_cnn_task, random_lstm_task  # noqa: PLC0415 — torch is an extra

        if self.task == "lstm":
            return random_lstm_task(clients=self.clients)
        assert self.batch_size is not None
        return random_cnn_task(self.batch_size, self.clients)

    def timing(self) -> Timing:
        return Timing() if self.clients <= 100 else Timing(arrivals="constant", rate=125.0)


CASES = (
    SimulatorCase("mushrooms", 100, 113, 20_000),
    SimulatorCase("quadratic", 100, 100, 20_000),
    SimulatorCase("quadratic", 1_000, 100, 20_000),
    SimulatorCase("quadratic", 10_000, 100, 20_000),
    SimulatorCase("quadratic", 1_000_000, 100, 20_000),
    SimulatorCase("quadratic", 1_000, 31_594, 3_000, local_steps=1),
)

NEURAL_CASES = (
    SimulatorCase("cnn", 20, 31_594, 200, local_steps=1, batch_size=10),
    SimulatorCase("cnn", 20, 31_594, 100, local_steps=1, batch_size=32),
    SimulatorCase("lstm", 20, 819_920, 15, local_steps=1, batch_size=32),
)
"""One step of the paper's networks. They need the extra torch."""


def all_cases() -> tuple[SimulatorCase, ...]:
    """The cases that can run here. The networks need torch."""
    return CASES + (NEURAL_CASES if is_installed("torch") else ())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSpeed(SimulatorCase):
    """The speed of one case: a row of the benchmark."""

    updates_per_s: float
    bare_updates_per_s: float
    ratio: float
    overhead_us: float
    peak_mib: float


def measure_simulator(cases: tuple[SimulatorCase, ...]) -> Iterator[SimulatorSpeed]:
    """Run the cases one after another, each in its own process."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone:
        yield from alone.map(_measure_alone, cases)


def _measure_alone(case: SimulatorCase) -> SimulatorSpeed:
    gc.freeze()  # as the command line does
    return measure_case(case)


def measure_case(case: SimulatorCase) -> SimulatorSpeed:
    """Time both loops in turns, with 4 bits both ways and no evaluation."""
    task = case.make_task()
    # A run still evaluates at its start and its end. That is not the simulator's time.
    task.evaluate = lambda model: {"metric": 0.0}  # type: ignore[method-assign]
    algorithm = method(
        "qafel",
        server_lr=0.1,
        client_lr=0.1,
        local_steps=case.local_steps,
        batch_size=case.batch_size,
        client_quantizer="qsgd:4",
        server_quantizer="qsgd:4",
    )
    loops = [partial(loop, case, task, algorithm) for loop in (_simulated_s, _bare_s)]
    for loop in loops:
        loop(min(100, case.updates // TURNS))
    turns = [[loop(case.updates // TURNS) for loop in loops] for _ in range(TURNS)]
    full_s, bare_s = map(median, zip(*turns, strict=True))
    return SimulatorSpeed(
        **asdict(case),
        updates_per_s=1 / full_s,
        bare_updates_per_s=1 / bare_s,
        ratio=bare_s / full_s,
        overhead_us=1e6 * (full_s - bare_s),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _simulated_s(case: SimulatorCase, task: Task, algorithm: Algorithm, updates: int) -> float:
    """The seconds per update of a simulation."""
    began = process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the quantizer: only the speed matters here
        # pure=False skips the check of the training, which would distort cases with few updates.
        simulate(task, algorithm, case.timing(), uploads=updates, evaluate_every=NEVER, pure=False, check=False)
    return (process_time() - began) / updates


def _bare_s(case: SimulatorCase, task: Task, algorithm: Algorithm, updates: int) -> float:
    """The seconds per update of the training alone: no clock, no messages, no server."""
    start, stream = HiddenState.of(task.initial_model(Stream.named(0, "initial-model"))), Stream.named(0, "train")
    began = process_time()
    for number in range(updates):
        task.train(number % case.clients, start, algorithm.local, stream)
    return (process_time() - began) / updates
