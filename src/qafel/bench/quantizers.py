"""The speed of quantizers, relative to a copy of the same float32 vector.

`trellis` is also compared with the encoder of `rotated:4`, because it contains all of that work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import numpy as np

from qafel.quantizers import make_quantizer, threads
from qafel.quantizers.measure import gaussian
from qafel.quantizers.trellis import Trellis
from qafel.rng import Stream

SIZES: Final = (29_282, 1_000_000, 25_000_000)
ROTATED: Final = "rotated:4"
"""The quantizer that `trellis` is compared with."""

_BUDGET_S: Final = 0.4  # per figure; the median of at least five rounds


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
        works: list[Callable[[], object]] = [
            lambda: np.copyto(copy, vector),
            lambda: quantizer.encode(vector, Stream.named(next(numbers), "benchmark")),
            lambda: quantizer.decode(payload, size),
            lambda: quantizer.add_decoded_(target, payload),
        ]
        compared = isinstance(quantizer, Trellis)
        if compared:
            works.append(lambda: rotated.encode(vector, Stream.named(next(numbers), "benchmark")))
        times = _times(*works)
    memcpy_s, encode_s, decode_s, add_s = (float(np.median(measured_s)) for measured_s in times[:4])
    more = {"encode_mean_s": float(np.mean(times[1])), "rotated_4_encode_s": float(np.median(times[-1]))}
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


def _times(*works: Callable[[], object]) -> list[list[float]]:
    """The times of each function, in rounds over all, after one unmeasured round."""
    times: list[list[float]] = [[] for _ in works]
    begin = time.perf_counter()
    for turn in range(2000):
        for work, measured_s in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            measured_s.append(time.perf_counter() - start)
        if turn >= 5 and time.perf_counter() - begin > _BUDGET_S * len(works):
            break
    return [measured_s[1:] for measured_s in times]
