"""What a quantizer does to given data, beside what theory promises in the worst case."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.params import Vector
from qafel.quantizers.protocol import Quantizer
from qafel.rng import Stream


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """Means over vectors and repeats; zero vectors do not count.

    nmse    E‖Q(x) − x‖² / ‖x‖², the measured ω
    delta   1 − nmse, the measured δ
    bias    ‖E Q(x) − x‖² / ‖x‖², estimated without the noise of few repeats (so it may fall slightly below zero);
            NaN with a single repeat
    """

    nmse: float
    delta: float
    bias: float
    bits_per_coordinate: float
    payload_bytes: float


def measured(quantizer: Quantizer, vectors: Iterable[Vector], repeats: int, stream: Stream) -> Measured:
    """Encode and decode every vector `repeats` times and compare."""
    generator = stream.generator()
    nmse, bias, bits, length = [], [], [], []
    for vector in vectors:
        energy = float(np.vdot(vector.astype(np.float64), vector.astype(np.float64)))
        total, squares = np.zeros(vector.size), 0.0
        for _ in range(repeats):
            first, second = generator.integers(0, 2**64, 2, np.uint64)
            payload = quantizer.encode(vector, Stream((int(first), int(second))))
            error = quantizer.decode(payload, vector.size).astype(np.float64) - vector
            total += error
            squares += float(np.vdot(error, error))
            length.append(len(payload))
            bits.append(8 * len(payload) / max(1, vector.size))
        if energy > 0:
            spread = squares / repeats
            nmse.append(spread / energy)
            mean_error = total / repeats
            excess = repeats * float(np.vdot(mean_error, mean_error)) - spread
            bias.append(excess / (repeats - 1) / energy if repeats > 1 else math.nan)
    error_mean = float(np.mean(nmse)) if nmse else 0.0
    return Measured(
        nmse=error_mean,
        delta=1.0 - error_mean,
        bias=float(np.mean(bias)) if bias else 0.0,
        bits_per_coordinate=float(np.mean(bits)) if bits else 0.0,
        payload_bytes=float(np.mean(length)) if length else 0.0,
    )
