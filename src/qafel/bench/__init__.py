"""Benchmarks. Each reports ratios within one run, because machines differ and are noisy.

speed         quantizers relative to a copy of the vector; the simulator relative to a bare loop that only trains
training      local training, relative to a plain PyTorch loop
deployment    updates per second, latency and memory with a real broker and processes
load          for `deployment`: prepared uploads, the broker alone, a small client
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

TURNS = 5

Work: TypeAlias = Callable[[int], object]
"""Work that is done again and again, with its number from zero."""
Timed: TypeAlias = Callable[[int], float]
"""Does some work so many times and returns the seconds of each."""


def timed(work: Work, clock: Callable[[], float] = time.process_time) -> Timed:
    """Time the work by a clock: processor time, or real time for work in several threads."""

    def seconds(times: int) -> float:
        begin = clock()
        for number in range(times):
            work(number)
        return (clock() - begin) / times

    return seconds


def take_turns(works: Sequence[Timed], turns: int, times: int = 1, *, most_s: float = math.inf) -> list[list[float]]:
    """The seconds of each work in every turn, so that other load affects all alike. A first turn is not counted.

    times    How often a work is done in its turn.
    most_s   Stop after this time, but not before five turns.
    """
    for work in works:
        work(min(times, 100))
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) < turns and (len(rounds) < TURNS or time.perf_counter() - begin < most_s):
        rounds.append([work(times) for work in works])
    return [list(found) for found in zip(*rounds, strict=True)]
