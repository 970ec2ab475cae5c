"""The measured error of a quantizer, its fitness for a role, and the specs and data of tables and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np

from qafel.errors import SpecError
from qafel.params import Vector
from qafel.quantizers.levels import Qsgd
from qafel.quantizers.protocol import Codec, Quantizer, is_measured
from qafel.quantizers.spec import parse
from qafel.rng import Stream

Role = Literal["client", "server", "snapshot", "link"]

SHOWN: Final = (
    "none", "qsgd:8", "qsgd:4", "qsgd:4+zstd", "qsgd:4,bucket=256", "qsgd:2", "scaled:qsgd:4", "dithered:4",
    "rotated:4", "rotated:2", "trellis:4", "trellis:2", "trellis:0.5", "trellis:0.5,scale=least", "affine:8",
    "affine:4", "sign", "top_k:0.01", "top_k:0.1", "top_k:0.1,values=qsgd:4", "rand_k:0.1",
    "qsgd:4,norm=l2,bucket=none",
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class MeasuredError:
    """A quantizer's error on data: means over vectors and repeats, without zero vectors.

    nmse    E‖Q(x) − x‖² / ‖x‖², the measured ω
    delta   1 − nmse, the measured δ
    bias    ‖E Q(x) − x‖² / ‖x‖², an unbiased estimate that may fall slightly below zero; NaN with a single repeat
    """

    nmse: float
    delta: float
    bias: float
    bits_per_coordinate: float
    payload_bytes: float


def measure_error(
    quantizer: Quantizer | Codec, vectors: Iterable[Vector], repeats: int, stream: Stream
) -> MeasuredError:
    """Measure the error of a quantizer: encode and decode every vector `repeats` times, drawing from `stream`."""
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
    return MeasuredError(
        nmse=error_mean,
        delta=1.0 - error_mean,
        bias=float(np.mean(bias)) if bias else 0.0,
        bits_per_coordinate=float(np.mean(bits)) if bits else 0.0,
        payload_bytes=float(np.mean(length)) if length else 0.0,
    )


def fitness(quantizer: Quantizer, size: int, role: Role, rate: float = 1.0) -> list[str]:
    """Reasons why this quantizer does not suit the role at `size` coordinates, each with a remedy. Empty if it does.

    The server's Q_s must contract: without δ > 0 the hidden state may diverge from the model. The clients' Q_c must be
    unbiased, so that the errors of the K buffered updates average out. Section II-A of the paper. With a `rate`
    below one (MCM), Q_s must be unbiased and the rate below 2/(1 + ω). A snapshot's quantizer may be biased, because
    its error does not accumulate, but must keep at least half of ‖x̂‖². A link's quantizer must be unbiased, with
    ω < 1, so that a client's start point stays close to x̂.
    """
    if role == "server" and rate != 1:
        return _unfit_for_a_memory(quantizer, size, rate)
    found = _as_measured(quantizer)
    if role == "client" and not quantizer.unbiased(size):
        return [
            f"client quantizer {quantizer.spec!r} is biased{found}: its errors accumulate over the buffered "
            "updates; use an unbiased one, such as trellis:4"
        ]
    if role == "link" and not (quantizer.unbiased(size) and quantizer.omega(size) < 1):
        return [
            f"link quantizer {quantizer.spec!r} is biased or has ω ≥ 1 at {size} coordinates{found}: start points may "
            "diverge from the hidden state; use an unbiased one with more bits, such as trellis:2"
        ]
    if role == "server" and quantizer.delta(size) <= 0:
        return [
            f"server quantizer {quantizer.spec!r} has no δ > 0 at {size} coordinates: its error can exceed its "
            f"signal (ω = {quantizer.omega(size):.3g}{found or ' in the worst case'}), so the hidden state may diverge "
            "from the model; " + _remedy(quantizer, size)
        ]
    if role == "snapshot" and quantizer.delta(size) < 0.5:
        return [
            f"snapshot quantizer {quantizer.spec!r} can lose {min(1.0, 1 - quantizer.delta(size)):.0%} of the hidden "
            f"state's energy at {size} coordinates{found or ' in the worst case'}, so clients may train from a distant "
            "model; use more bits, such as trellis:4"
        ]
    return []


def _unfit_for_a_memory(quantizer: Quantizer, size: int, rate: float) -> list[str]:
    subject, found = f"server quantizer {quantizer.spec!r}", _as_measured(quantizer)
    if not quantizer.unbiased(size):
        return [
            f"{subject} is biased{found}: a memory with a rate below 1 (MCM) needs an unbiased one, such as trellis:4"
        ]
    # E‖h + αQ(x − h) − x‖² ≤ (1 − 2α + α²(1 + ω))‖x − h‖²
    if rate * (1 + quantizer.omega(size)) >= 2:
        return [
            f"{subject} has ω = {quantizer.omega(size):.3g}{found} at {size} coordinates: a memory of rate {rate:g} "
            'may diverge from the model; set its rate to "from-omega", which is 1/(2(1 + ω))'
        ]
    return []


def _as_measured(quantizer: Quantizer) -> str:
    return ", as measured" if is_measured(quantizer) else ""


def _remedy(quantizer: Quantizer, size: int) -> str:
    choices = []
    if isinstance(quantizer, Qsgd):
        if quantizer.norm == "l2":
            choices.append("scale by the largest magnitude (norm=max)")
        smaller = (Qsgd(quantizer.bits, quantizer.levels, "max", bucket) for bucket in (512, 256, 128, 64, 32, 16))
        fit = next((candidate for candidate in smaller if candidate.delta(size) > 0), None)
        choices.append(f"use buckets ({fit.spec})" if fit else "use more bits")
    for spec, how in (f"scaled:{quantizer.spec}", "divide by 1 + ω"), (f"{quantizer.spec},scale=least", "shrink it"):
        with suppress(SpecError):
            contraction = parse(spec)
            choices.append(f"{how} ({spec}, with δ = {contraction.delta(size):.2g})")
    return ", or ".join(choices) or "use one with δ > 0; `qafel quantizers` lists δ"


def gaussian(size: int) -> Vector:
    """Standard normal coordinates, always the same."""
    return Stream.named(0, "gaussian sample").generator().standard_normal(size, dtype=np.float32)


def heavy_tailed(size: int) -> Vector:
    """Student's t with 3 degrees of freedom, always the same."""
    return Stream.named(0, "heavy-tailed sample").generator().standard_t(3, size).astype(np.float32)
