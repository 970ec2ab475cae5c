"""Top-k: the largest coordinates, the rest forgotten. A contraction, biased."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Vector
from qafel.quantizers.identity import Identity
from qafel.quantizers.kernels.numeric import is_finite
from qafel.quantizers.kernels.sparse import (
    BITMAP,
    MAX_RICE,
    read_indices,
    rice_bits,
    scatter_add,
    select_largest,
    write_indices,
)
from qafel.quantizers.payloads import as_target, as_vector, check_size, non_finite
from qafel.quantizers.protocol import TOP_K, FixedLength, Payload, pack_codec
from qafel.rng import Stream

# Increasing indices to few bytes and back: close to log₂ C(d, k) bits for k of d.
#
# One byte says how: a Rice parameter, or 255 for a bitmap. The encoder measures and takes the shortest.


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


PLAIN: Final = Identity()


def kept(share: float | int, size: int) -> int:
    """How many of `size` coordinates: a count as it is, a fraction rounded to the nearest (halves up), at least one.

    1 % of 113 is 1; 50 % of 113 is 57.
    """
    wanted = share if isinstance(share, int) else int(share * size + 0.5)
    return min(size, max(1, wanted))


def check_share(name: str, share: float | int) -> None:
    if isinstance(share, int):
        if not 1 <= share < 2**31:
            raise SpecError(f"{name} keeps at least one coordinate, found count={share}")
    elif not 0 < share <= 1:
        raise SpecError(
            f"{name} takes a fraction above 0 and up to 1, found {share}: for 10 coordinates write count=10"
        )


def share_text(share: float | int) -> str:
    return f"count={share}" if isinstance(share, int) else f"{share:.9g}"


def share_fields(share: float | int) -> bytes:
    """Five bytes: whether it is a count, then the count or the float32 fraction."""
    return b"\1" + struct.pack("<I", share) if isinstance(share, int) else b"\0" + struct.pack("<f", share)


def share_from_fields(fields: bytes) -> float | int:
    if fields[0]:
        return int.from_bytes(fields[1:5], "little")
    return shortest(struct.unpack("<f", fields[1:5])[0])


def shortest(fraction: float) -> float:
    """The shortest decimal that is the same float32, so that 0.01 stays 0.01 across the wire."""
    return float(str(np.float32(fraction)))


@final
@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the k coordinates of largest magnitude, set the others to zero.

    ‖x − Q(x)‖² ≤ (1 − k/d)‖x‖², with equality when all magnitudes are equal. The kept values go as float32 or through
    `values`, another quantizer over the k of them.
    """

    share: float | int
    values: FixedLength = PLAIN

    def __post_init__(self) -> None:
        check_share("top_k", self.share)
        if isinstance(self.share, float):
            object.__setattr__(self, "share", shortest(self.share))

    @property
    def spec(self) -> str:
        return f"top_k:{share_text(self.share)}" + ("" if self.values == PLAIN else f",values={self.values.spec}")

    @property
    def codec(self) -> bytes:
        return pack_codec(TOP_K, share_fields(self.share), b"" if self.values == PLAIN else self.values.codec)

    @property
    def unbiased(self) -> bool:
        return False

    def count(self, size: int) -> int:
        return kept(self.share, size)

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        vector = as_vector(vector)
        if not is_finite(vector):
            raise non_finite(vector)
        chosen = np.empty(self.count(vector.size), np.uint32)
        if chosen.size:
            select_largest(vector.view(np.int32), chosen.size, chosen)
        return self.values.encode(vector[chosen], stream) + encode_indices(chosen, vector.size)

    def decode(self, payload: Payload, size: int) -> Vector:
        indices, values = self._read(payload, check_size(size))
        vector = np.zeros(size, np.float32)
        vector[indices] = values
        return vector

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        """Add at the kept coordinates only; the others are not touched, so a −0.0 there stays −0.0."""
        indices, values = self._read(payload, as_target(target).size)
        scatter_add(target, indices, values, float(weight))

    def max_payload_bytes(self, size: int) -> int:
        count = self.count(check_size(size))
        return self.values.payload_bytes(count) + max_index_bytes(count, size)

    def omega(self, size: int) -> float:
        return 1.0 - self.delta(size)

    def delta(self, size: int) -> float:
        """k/d times the values' δ; a values' quantizer without δ > 0 spoils the whole in the worst case."""
        if not size:
            return 1.0
        count = self.count(size)
        inner = self.values.delta(count)
        return inner * count / size if inner > 0 else inner

    def bits_per_coordinate(self, size: int) -> float:
        return 8.0 * self.max_payload_bytes(size) / size if size else 0.0

    def _read(self, payload: Payload, size: int) -> tuple[NDArray[np.uint32], Vector]:
        count = self.count(size)
        split = self.values.payload_bytes(count)
        if not split <= len(payload) <= self.max_payload_bytes(size):
            raise MalformedPayload(
                f"expected {split} to {self.max_payload_bytes(size)} bytes for the top {count} of {size} coordinates, "
                f"found {len(payload)}"
            )
        view = memoryview(payload)
        return decode_indices(view[split:], count, size), self.values.decode(view[:split], count)
