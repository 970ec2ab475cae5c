"""Increasing indices to few bytes and back: close to log₂ C(d, k) bits for k of d.

One byte says how: a Rice parameter, or 255 for a bitmap. The encoder measures and takes the shortest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload
from qafel.quantizers.kernels.sparse import BITMAP, MAX_RICE, read_indices, rice_bits, write_indices
from qafel.quantizers.protocol import Payload

Indices = NDArray[np.uint32]


def encode_indices(indices: Indices, size: int) -> bytes:
    """The parameter byte and the code; nothing when every coordinate is chosen."""
    count = indices.size
    if count == size:
        return b""
    centre = max(0, (size // count).bit_length() - 1)
    lengths = {rice: int(rice_bits(indices, rice)) for rice in range(max(0, centre - 2), min(MAX_RICE, centre + 2))}
    lengths[BITMAP] = size
    rice = min(lengths, key=lambda choice: lengths[choice])
    out = np.zeros(1 + -(-lengths[rice] // 8), np.uint8)
    out[0] = rice
    write_indices(indices, rice, out[1:])
    return out.tobytes()


def decode_indices(payload: Payload, count: int, size: int) -> Indices:
    """The indices, checked: exactly `count`, increasing, below `size`, and no byte left over."""
    if count == size:
        if len(payload):
            raise MalformedPayload(
                f"expected no index bytes when all {size} coordinates are kept, found {len(payload)}"
            )
        return np.arange(size, dtype=np.uint32)
    data = np.frombuffer(payload, np.uint8)
    if data.flags.writeable:
        data.flags.writeable = False  # one type of array, one compiled kernel
    indices = np.empty(count, np.uint32)
    known = data.size > 0 and (data[0] < MAX_RICE or (data[0] == BITMAP and data.size == 1 + -(-size // 8)))
    if not known or not read_indices(data[1:], int(data[0]), size, indices):
        raise MalformedPayload(f"expected the coded indices of {count} out of {size} coordinates, found other bytes")
    return indices


def max_index_bytes(count: int, size: int) -> int:
    """No code of `count` indices below `size` is longer: the bitmap is always open to the encoder."""
    if count == size:
        return 0
    centre = max(0, (size // count).bit_length() - 1)
    choices = range(max(0, centre - 2), min(MAX_RICE, centre + 2))
    worst = min(count * (rice + 1) + ((size - count) >> rice) for rice in choices)
    return 1 + -(-min(size, worst) // 8)
