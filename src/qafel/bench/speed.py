"""The speed of quantizers and of the simulator, each relative to the least work that it could do.

A quantizer is compared with a copy of the same float32 vector. `trellis` is also compared with the encoder of
`rotated:4`, because it contains all of that work.

The simulator is compared with a bare loop with the same training. Each case runs in its own process, so that its peak
memory can be measured. Figures are medians of processor times, because machines are noisy.
"""

from __future__ import annotations

import gc
import resource
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from multiprocessing import get_context
from statistics import fmean, median
from typing import Any, Final, final

import numpy as np

from qafel.algorithm import Algorithm, HiddenState, method
from qafel.bench import TURNS, Work, take_turns, timed
from qafel.config import Timing
from qafel.lazy import is_installed
from qafel.quantizers import make_quantizer, threads
from qafel.quantizers.measure import gaussian
from qafel.quantizers.trellis import Trellis
from qafel.rng import Stream
from qafel.simulator.api import simulate
from qafel.tasks import Mushrooms, Quadratic, Task

SIZES: Final = (29_282, 1_000_000, 25_000_000)
ROTATED: Final = "rotated:4"
"""The quantizer that `trellis` is compared with."""

_BUDGET_S: Final = 0.4  # per figure; the median of at least five rounds

NEVER = 10**12


def time_quantizer(spec: str, size: int, thread_count: int) -> dict[str, Any]:
    """Median times of a quantizer, interleaved with memcpy so that both see the same load.

    `spec` names the quantizer, `size` is the number of Gaussian coordinates, `thread_count` the number of threads.
    Every message has new randomness, and some take longer. So the row of `trellis` also has the mean encoding time, and
    the encoding time of `rotated:4`.
    """
    quantizer, stream, rotated = make_quantizer(spec), Stream.named(0, "benchmark"), make_quantizer(ROTATED)
    numbers = count()
    vector = gaussian(size)
    target, copy = np.zeros_like(vector), np.empty_like(vector)
    with threads(thread_count):
        payload = quantizer.encode(vector, stream)
        error = quantizer.decode(payload, size) - vector
        works: list[Work] = [
            lambda _: np.copyto(copy, vector),
            lambda _: quantizer.encode(vector, Stream.named(next(numbers), "benchmark")),
            lambda _: quantizer.decode(payload, size),
            lambda _: quantizer.add_decoded_(target, payload),
        ]
        compared = isinstance(quantizer, Trellis)
        if compared:
            works.append(lambda _: rotated.encode(vector, Stream.named(next(numbers), "benchmark")))
        real = [timed(work, time.perf_counter) for work in works]
        times = take_turns(real, 2000, most_s=_BUDGET_S * len(works))
    memcpy_s, encode_s, decode_s, add_s = map(median, times[:4])
    more = {"encode_mean_s": fmean(times[1]), "rotated_4_encode_s": median(times[-1])}
    return {
        "quantizer": quantizer.spec,
        "size": size,
        "threads": thread_count,
        "encode_s": encode_s,
        "decode_s": decode_s,
        "add_decoded_s": add_s,
        "memcpy_s": memcpy_s,
        "bytes": len(payload),
        "nmse": float(np.vdot(error, error) / np.vdot(vector, vector)),
        **(more if compared else {}),
    }


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
    full_s, bare_s = map(median, take_turns(loops, TURNS, case.updates // TURNS))
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
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the quantizer: only the speed matters here
        # pure=False skips the check of the training, which would distort cases with few updates.
        simulate(task, algorithm, case.timing(), uploads=updates, evaluate_every=NEVER, pure=False, check=False)
    return (time.process_time() - began) / updates


def _bare_s(case: SimulatorCase, task: Task, algorithm: Algorithm, updates: int) -> float:
    """The seconds per update of the training alone: no clock, no messages, no server."""
    start, stream = HiddenState.of(task.initial_model(Stream.named(0, "initial-model"))), Stream.named(0, "train")
    return timed(lambda number: task.train(number % case.clients, start, algorithm.local, stream))(updates)
