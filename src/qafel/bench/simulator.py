"""How fast the simulator is, as a ratio to a bare loop that only does the same training, in the same run.

Each case runs in a process of its own, so that its peak memory is its own. Simulator and bare loop take turns, and the
median of their turns counts, because machines are noisy.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from statistics import median
from time import perf_counter
from typing import Any, final

from qafel.algorithm import Algorithm, wire
from qafel.rng import Stream
from qafel.runs.progress import Evaluation, Limits
from qafel.simulator.run import simulate
from qafel.simulator.timing import Timing
from qafel.simulator.timing.arrivals import AlwaysTraining, Arrivals, ConstantRate
from qafel.simulator.timing.durations import HalfNormal
from qafel.tasks import Mushrooms, Quadratic, Task

TURNS = 5

NEVER = Evaluation(every=10**12)


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
            case _:
                return self._neural_task()

    def _neural_task(self) -> Task:
        """On random data; torch is an extra, loaded only here."""
        neural = importlib.import_module("qafel.bench.training")
        task: Task = (
            neural.random_cnn_task(self.batch_size, self.clients)
            if self.name == "cnn"
            else neural.random_lstm_task(clients=self.clients)
        )
        return task

    def arrivals(self) -> Arrivals:
        return AlwaysTraining() if self.clients <= 100 else ConstantRate(0, self.clients, rate=125.0)


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
    return CASES + (NEURAL_CASES if importlib.util.find_spec("torch") is not None else ())


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
    context = get_context("spawn")
    for case in cases:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_measure_into, args=(case, theirs))
        process.start()
        theirs.close()
        yield SimulatorSpeed(**ours.recv())
        process.join()


def _measure_into(case: SimulatorCase, connection: Any) -> None:
    gc.freeze()  # as the command line does
    connection.send(asdict(measure_case(case)))


def measure_case(case: SimulatorCase) -> SimulatorSpeed:
    """Both loops in turns, with 4 bits both ways and no evaluation."""
    task = case.task()
    algorithm = wire(
        "qafel",
        server_lr=0.1,
        client_lr=0.1,
        local_steps=case.local_steps,
        batch_size=case.batch_size,
        client_quantizer="qsgd:4",
        server_quantizer="qsgd:4",
    )
    full = _simulated(case, task, algorithm)
    bare = _bare(case, task, algorithm)
    full(min(100, case.updates // TURNS)), bare(min(100, case.updates // TURNS))
    turns = [(full(case.updates // TURNS), bare(case.updates // TURNS)) for _ in range(TURNS)]
    full_s, bare_s = (median(turn[which] for turn in turns) for which in (0, 1))
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


def _simulated(case: SimulatorCase, task: Task, algorithm: Algorithm) -> Callable[[int], float]:
    def turn(updates: int) -> float:
        timing, limits = Timing(HalfNormal(0), case.arrivals()), Limits(uploads=updates)
        summary = simulate(task, algorithm, timing, limits=limits, evaluation=NEVER).summary
        # Evaluated at the start and the end all the same; that is not the simulator's time.
        return float(summary["wall_s"] - summary["evaluation_s"]) / updates

    return turn


def _bare(case: SimulatorCase, task: Task, algorithm: Algorithm) -> Callable[[int], float]:
    """The same training and nothing else: no clock, no messages, no server."""
    start, local = task.initial_model(Stream.named(0, "initial-model")), algorithm.local
    start.flags.writeable = False
    stream = Stream.named(0, "train")

    def turn(updates: int) -> float:
        began = perf_counter()
        for number in range(updates):
            task.train(number % case.clients, start, local, stream)
        return (perf_counter() - began) / updates

    return turn
