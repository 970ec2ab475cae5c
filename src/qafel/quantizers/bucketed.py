"""Payloads of one float32 step per bucket and a packed code per coordinate: shared by QSGD and sign.

steps   4 bytes a bucket, little-endian float32
codes   packed, see kernels/packing.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

from qafel.errors import MalformedPayload
from qafel.params import Vector
from qafel.quantizers import parallel
from qafel.quantizers.checks import as_bytes, as_target, as_vector, check_size, non_finite, signed_words
from qafel.quantizers.kernels.decode import ADD, ASSIGN, BAD_STEP, OK, apply_levels
from qafel.quantizers.kernels.packing import GROUP, packed_bytes
from qafel.quantizers.output import finish, new_output
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

_SPAN: Final = 4096  # coordinates: 16 kB, so that the second pass over a span finds it in the first-level cache


def bucket_count(size: int, bucket: int | None) -> int:
    return -(-size // (bucket or max(size, 1)))


@lru_cache(1024)
def plan(size: int, bucket: int | None, bits: int) -> tuple[int, int, int, int]:
    """Bucket length, span length, number of spans, payload bytes.

    A span shares neither a bucket nor a byte with its neighbours.
    """
    check_size(size)
    length = bucket or max(size, 1)
    unit = math.lcm(length, GROUP)
    span = unit * max(1, _SPAN // unit)
    return length, span, -(-size // span), 4 * bucket_count(size, bucket) + packed_bytes(size, bits)


def encode_payload(
    kernel: Callable[..., bool],
    vector: Vector,
    stream: Stream,
    bucket: int | None,
    levels: float,
    bits: int,
    norm: int,
    gain: float,
    prefix: bytes = b"",
) -> bytes:
    """Quantize a vector into prefix, steps and codes; kernel is `encode_spans` or one with the same arguments."""
    vector = as_vector(vector)
    size = vector.size
    length, span, spans, total = plan(size, bucket, bits)
    skip = len(prefix)
    out, data = new_output(skip + total)
    if skip:
        out[:skip] = np.frombuffer(prefix, np.uint8)
    word0, word1 = signed_words(stream)
    if size < parallel.SERIAL_BELOW or parallel.is_serial(size):
        sound = kernel(vector, out, word0, word1, length, span, float(levels), bits, norm, gain, skip, 0, spans)
    else:
        common = (vector, out, word0, word1, length, span, float(levels), bits, norm, gain, skip)
        sound = not parallel.over_spans(lambda first, last: not kernel(*common, first, last), spans)
    if not sound:
        raise non_finite(vector)
    return finish(out, data)


def apply_payload(
    target: Vector, payload: Payload, weight: float | None, bucket: int | None, levels: int, bits: int
) -> None:
    """Assign (weight None) or add weight · decoded to the target; on an error, leave it as it was."""
    size = as_target(target).size
    length, span, spans, total = plan(size, bucket, bits)
    data = as_bytes(payload, total)
    mode, factor = (ASSIGN, 1.0) if weight is None else (ADD, float(weight))
    if size < parallel.SERIAL_BELOW or parallel.is_serial(size):
        status = apply_levels(target, data, mode, factor, length, span, levels, bits, True, 0, spans)
    else:
        common = (target, data, mode, factor, length, span, levels, bits)
        status = apply_levels(*common, True, 0, 0)
        if status == OK:
            parallel.over_spans(lambda first, last: apply_levels(*common, False, first, last), spans)
    if status == BAD_STEP:
        raise MalformedPayload("expected finite, non-negative steps, found another: the payload is damaged or forged")
    if status:
        raise MalformedPayload(f"expected codes up to {2 * levels}, found a larger one: made by another quantizer?")
