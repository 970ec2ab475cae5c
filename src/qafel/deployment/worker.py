"""Where training runs: in our process, or in one of its own."""

from __future__ import annotations

from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

from qafel.algorithm.client import Train
from qafel.params import Vector
from qafel.rng import Stream


def in_worker(train: Train, worker: str) -> tuple[Train, Executor | None]:
    """The training function, in another process if wanted: one that holds the interpreter's lock would delay x̂."""
    if worker == "thread":
        return train, None
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_take_over, initargs=(train,))

    def elsewhere(start: Vector, stream: Stream) -> Vector:
        return pool.submit(_train_here, start, stream).result()

    return elsewhere, pool


_given: list[Train] = []  # in a worker process: what it trains with


def _take_over(train: Train) -> None:
    _given[:] = [train]


def _train_here(start: Vector, stream: Stream) -> Vector:
    return _given[0](start, stream)
