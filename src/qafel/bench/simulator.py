"""How fast the simulator is, as a ratio to a bare loop that only does the same training, in the same run.

Each case runs in a process of its own, so that its peak memory is its own. Seconds are those of the processor, and
simulator and bare loop take turns, whose median counts, because machines are noisy.
"""

from __future__ import annotations

import gc
import resource
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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


@final
@dataclass(frozen=True, slots=True)
class SimulatorCase:
    """A task and how its clients come."""

    name: str
    clients: int
    dimension: int
    updates: int
    local_steps: int = 10
    batch_size: int | None = None

    def task(self) -> Task:
        match self.name:
            case "mushrooms":
                return Mushrooms(self.clients)
            case "quadratic":
                return Quadratic(self.clients, self.dimension, noise=0.0)
        from qafel.bench.training import random_cnn_task, random_lstm_task  # noqa: PLC0415 — torch is an extra

        if self.name == "lstm":
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
"""One step of the paper's networks; they need the extra torch."""


def all_cases() -> tuple[SimulatorCase, ...]:
    """The cases that can run here: those of the networks need torch."""
    return CASES + (NEURAL_CASES if is_installed("torch") else ())


@final
@dataclass(frozen=True, slots=True)
class SimulatorSpeed:
    """How fast one case ran: a row of the benchmark."""

    task: str
    clients: int
    dimension: int
    batch_size: int | None
    updates: int
    updates_per_s: float
    bare_updates_per_s: float
    ratio: float
    overhead_us: float
    peak_mib: float


def measure_simulator(cases: tuple[SimulatorCase, ...]) -> Iterator[SimulatorSpeed]:
    """Run the cases one after another, each in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone:
        yield from alone.map(_measure_alone, cases)


def _measure_alone(case: SimulatorCase) -> SimulatorSpeed:
    gc.freeze()  # as the command line does
    return measure_case(case)


def measure_case(case: SimulatorCase) -> SimulatorSpeed:
    """Both loops in turns, with 4 bits both ways and no evaluation."""
    task = case.task()
    # A run is evaluated at its start and its end all the same; that is not the simulator's time.
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
        case.name,
        case.clients,
        case.dimension,
        case.batch_size,
        case.updates,
        updates_per_s=1 / full_s,
        bare_updates_per_s=1 / bare_s,
        ratio=bare_s / full_s,
        overhead_us=1e6 * (full_s - bare_s),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _simulated_s(case: SimulatorCase, task: Task, algorithm: Algorithm, updates: int) -> float:
    """Seconds of one of so many updates."""
    began = process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the quantizer: it is the speed that counts here
        # Some cases make few updates: the check of the training would count among them.
        simulate(task, algorithm, case.timing(), uploads=updates, evaluate_every=NEVER, pure=False, check=False)
    return (process_time() - began) / updates


def _bare_s(case: SimulatorCase, task: Task, algorithm: Algorithm, updates: int) -> float:
    """The same training and nothing else: no clock, no messages, no server."""
    start, stream = HiddenState.of(task.initial_model(Stream.named(0, "initial-model"))), Stream.named(0, "train")
    began = process_time()
    for number in range(updates):
        task.train(number % case.clients, start, algorithm.local, stream)
    return (process_time() - began) / updates
