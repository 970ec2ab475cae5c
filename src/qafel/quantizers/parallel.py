"""How many threads the kernels use.

Kernels release the GIL and work on spans that share no byte, so plain threads suffice and the result never depends on
how many there are. Numba's own parallel loops would take seconds more to compile and do not survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

SERIAL_BELOW = 1 << 19  # coordinates; below, a second thread costs more than it brings

_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use at most `count` threads inside the block (for benchmarks, and for workers that share a machine)."""
    global _threads  # noqa: PLW0603 — one process, one setting
    before, _threads = _threads, max(1, count)
    try:
        yield
    finally:
        _threads = before


def set_threads(count: int) -> None:
    """Use at most `count` threads from now on."""
    global _threads  # noqa: PLW0603 — one process, one setting
    _threads = max(1, count)


def is_serial(size: int) -> bool:
    return _threads == 1 or size < SERIAL_BELOW


def over_spans(work: Callable[[int, int], int], spans: int) -> int:
    """Run work(first, last) over all spans; the first status that is not zero, else zero."""
    count = min(_threads, spans)
    if count <= 1:
        return work(0, spans)
    key = (os.getpid(), count)  # a forked child has no threads of its parent's pool
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(count, thread_name_prefix="qafel-kernel")
    pieces = min(spans, 4 * count)  # a few each, so that a busy core does not hold up the others
    edges = [spans * i // pieces for i in range(pieces + 1)]
    return next((status for status in _pools[key].map(work, edges[:-1], edges[1:]) if status), 0)
