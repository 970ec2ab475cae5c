"""Payloads of one float32 step per bucket and a packed code per coordinate: shared by QSGD and sign.

steps   4 bytes a bucket, little-endian float32
codes   packed, see kernels/packing.py
"""

# ruff: noqa: PLR0917 — these pass a kernel its arguments

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from qafel.errors import MalformedPayload
from qafel.params import Vector
from qafel.quantizers import parallel
from qafel.quantizers.checks import as_bytes, as_target, as_vector, non_finite
from qafel.quantizers.kernels.decode import ADD, ASSIGN, BAD_STEP, apply_levels
from qafel.quantizers.kernels.packing import GROUP, packed_bytes
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

_SPAN: Final = 8192  # coordinates: 32 kB, so that the second pass over a span finds it in the cache


def bucket_count(size: int, bucket: int | None) -> int:
    return -(-size // (bucket or max(size, 1)))


def span_of(size: int, bucket: int | None) -> tuple[int, int, int]:
    """Bucket length, span length and number of spans. A span shares neither a bucket nor a byte with its neighbours."""
    length = bucket or max(size, 1)
    unit = math.lcm(length, GROUP)
    span = unit * max(1, _SPAN // unit)
    return length, span, -(-size // span)


def encode_payload(
    kernel: Callable[..., int],
    vector: Vector,
    stream: Stream,
    bucket: int | None,
    levels: int,
    bits: int,
    norm: int,
    gain: float,
) -> bytes:
    """Quantize a vector into steps and codes; kernel is `encode_spans` or one with the same arguments."""
    vector = as_vector(vector)
    size = vector.size
    length, span, spans = span_of(size, bucket)
    head = 4 * bucket_count(size, bucket)
    out = np.empty(head + packed_bytes(size, bits), np.uint8)
    steps, packed, key, factor = out[:head].view(np.float32), out[head:], stream.key, np.float32(gain)

    def work(first: int, last: int) -> int:
        return kernel(vector, key, length, span, levels, bits, norm, factor, steps, packed, first, last)

    if work(0, spans) if parallel.is_serial(size) else parallel.over_spans(work, spans):
        raise non_finite(vector)
    return out.tobytes()


def apply_payload(
    target: Vector, payload: Payload, weight: float | None, bucket: int | None, levels: int, bits: int
) -> None:
    """Assign (weight None) or add weight · decoded to the target; on an error, leave it as it was."""
    size = as_target(target).size
    length, span, spans = span_of(size, bucket)
    data = as_bytes(payload, 4 * bucket_count(size, bucket) + packed_bytes(size, bits))
    mode, factor = (ASSIGN, np.float32(1)) if weight is None else (ADD, np.float32(weight))

    def work(first: int, last: int, check: bool = False) -> int:
        return int(apply_levels(target, data, mode, factor, length, span, levels, bits, check, first, last))

    serial = parallel.is_serial(size)
    status = work(0, spans if serial else 0, True)
    if not serial:
        status = status or parallel.over_spans(work, spans)
    if status == BAD_STEP:
        raise MalformedPayload("expected finite, non-negative steps, found another: the payload is damaged or forged")
    if status:
        raise MalformedPayload(f"expected codes up to {2 * levels}, found a larger one: made by another quantizer?")
