"""A few of the coordinates: the largest (top-k, biased, a contraction) or random ones (rand-k, unbiased).

Rand-k scales its values up so that the mean is exact, and sends a seed instead of indices.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Layout, Vector
from qafel.quantizers import family, kernels
from qafel.quantizers.affine import Identity
from qafel.quantizers.family import NUMBER, WHOLE, Family, FixedRate, Scalable, check_size, one_of, seed_of, seed_word
from qafel.quantizers.kernels import ASSIGN, BITMAP, LARGEST, MAX_RICE, SEED_BYTES
from qafel.quantizers.levels import Dithered, Qsgd, Sign
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.quantizers.rotated import Rotated
from qafel.rng import Stream

Indices: TypeAlias = NDArray[np.uint32]
Rounding: TypeAlias = Literal["nearest", "down"]

PLAIN: Final = Identity()
_FRACTION, _COUNT, _ROUNDED_DOWN = range(3)


def encode_indices(indices: Indices, size: int) -> bytes:
    """Increasing indices below `size` in close to log₂ C(size, count) bits. Empty if every coordinate is chosen.

    The first byte is a Rice parameter, or 255 for a bitmap. The encoder chooses the shortest.
    """
    count = indices.size
    if count == size:
        return b""
    lengths = {rice: int(kernels.sparse.rice_bits(indices, rice)) for rice in _rice_parameters(count, size)}
    lengths[BITMAP] = size
    rice = min(lengths, key=lambda choice: lengths[choice])
    out = np.zeros(1 + -(-lengths[rice] // 8), np.uint8)
    out[0] = rice
    kernels.sparse.write_indices(indices, rice, out[1:])
    return out.tobytes()


def _rice_parameters(count: int, size: int) -> range:
    """The parameters worth trying: around the logarithm of the mean gap."""
    centre = max(0, (size // count).bit_length() - 1)
    return range(max(0, centre - 2), min(MAX_RICE, centre + 2))


def decode_indices(payload: Payload, count: int, size: int) -> Indices:
    """The indices, checked: exactly `count`, increasing, below `size`, and no byte left over."""
    if count == size:
        if len(payload):
            raise MalformedPayload(f"expected no index bytes for all {size} coordinates, found {len(payload)}")
        return np.arange(size, dtype=np.uint32)
    data = family.as_bytes(payload, len(payload))
    indices = np.empty(count, np.uint32)
    known = data.size > 0 and (data[0] < MAX_RICE or (data[0] == BITMAP and data.size == 1 + -(-size // 8)))
    if not known or not kernels.sparse.read_indices(data[1:], int(data[0]), size, indices):
        raise MalformedPayload(f"expected the coded indices of {count} out of {size} coordinates, found other bytes")
    return indices


def max_index_bytes(count: int, size: int) -> int:
    """The longest code of `count` indices below `size`. The encoder can always choose the bitmap."""
    if count == size:
        return 0
    worst = min(count * (rice + 1) + ((size - count) >> rice) for rice in _rice_parameters(count, size))
    return 1 + -(-min(size, worst) // 8)


@dataclass(frozen=True, slots=True)
class Sparse(Family):
    """Send k coordinates and set the others to zero: the common part of top-k and rand-k.

    `share` is k as a whole number, or a fraction of all coordinates that `rounding` makes a whole number. The kept
    values are sent as float32, or through the quantizer `values`.
    """

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "fraction": NUMBER, "count": WHOLE, "round": one_of("nearest", "down"), "values": Quantizer,
    }  # fmt: skip

    ALLOCATE: ClassVar[Any] = np.zeros

    share: float | int
    values: FixedRate = PLAIN
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        if isinstance(self.share, int):
            if not 1 <= self.share < 2**31:
                raise SpecError(f"{self.NAME} keeps at least one coordinate, found count={self.share}")
        elif 0 < self.share <= 1:
            object.__setattr__(self, "share", family.as_sent(self.share))
        else:
            raise SpecError(
                f"{self.NAME} takes a fraction above 0 and up to 1, found {self.share}: "
                "for 10 coordinates write count=10"
            )
        if self.rounding not in get_args(Rounding) or (self.rounding == "down" and isinstance(self.share, int)):
            raise SpecError(f"{self.NAME} rounds a fraction nearest or down, found {self.rounding!r} of {self.share}")
        if self.values != PLAIN and not isinstance(self.values, Qsgd | Sign | Dithered | Rotated):
            raise SpecError(
                f"{self.NAME}: values must be qsgd, dithered, rotated or sign, such as qsgd:4, "
                f"found {self.values.spec!r}"
            )

    @classmethod
    def from_spec(cls, **given: Any) -> Self:
        fraction, count = given.get("fraction"), given.get("count")
        if (fraction is None) == (count is None):
            raise SpecError(f"{cls.NAME} takes a fraction or a count: write {cls.NAME}:0.01, or {cls.NAME}:count=10")
        share: Any = fraction if count is None else count
        return cls(share, given.get("values", PLAIN), given.get("round", "nearest"))

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Self:
        """The first byte says whether a count or a float32 fraction follows."""
        values: Any = PLAIN if inner is None else inner
        if fields[0] == _COUNT:
            return cls(int.from_bytes(fields[1:5], "little"), values)
        rounding: Rounding = "down" if fields[0] == _ROUNDED_DOWN else "nearest"
        return cls(family.as_sent(struct.unpack("<f", fields[1:5])[0]), values, rounding)

    @property
    def spec(self) -> str:
        share = f"count={self.share}" if isinstance(self.share, int) else f"{self.share:.9g}"
        share += "" if self.rounding == "nearest" else f",round={self.rounding}"
        return f"{self.NAME}:{share}" + ("" if self.values == PLAIN else f",values={self.values.spec}")

    @property
    def codec(self) -> bytes:
        if isinstance(self.share, int):
            share = struct.pack("<BI", _COUNT, self.share)
        else:
            share = struct.pack("<Bf", _FRACTION if self.rounding == "nearest" else _ROUNDED_DOWN, self.share)
        return pack_codec(self.CODEC_ID, share, b"" if self.values == PLAIN else self.values.codec)

    def count(self, size: int) -> int:
        """k: a count, or a fraction of `size` rounded to the nearest (halves up) or down; at least one.

        1 % of 113 is 1; 50 % of 113 is 57, and 56 rounded down.
        """
        if isinstance(self.share, int):
            return min(size, self.share)
        # 29 % of 100 rounded down is 29, although the float product is slightly less.
        return min(size, max(1, int(self.share * size + (0.5 if self.rounding == "nearest" else 1e-9))))

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        """Add at the sent coordinates only. The others are not touched, so a −0.0 there stays −0.0."""
        indices, values = self._read(payload, target.size)
        if mode == ASSIGN:
            target[indices] = values
        else:
            kernels.sparse.scatter_add(target, indices, values, weight)

    @abstractmethod
    def _read(self, payload: Payload, size: int) -> tuple[Indices, Vector]:
        """The indices and the values in a payload, after all checks."""


@final
@dataclass(frozen=True, slots=True)
class TopK(Sparse):
    """Keep the k coordinates of largest magnitude and set the others to zero.

    ‖x − Q(x)‖² ≤ (1 − k/d)‖x‖², with equality when all magnitudes are equal.
    """

    NAME = "top_k"
    CODEC_ID = 3

    def unbiased(self, size: int) -> bool:
        """Only if all coordinates are kept."""
        return self.count(size) == size and self.values.unbiased(size)

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        vector = family.as_finite_vector(vector)
        chosen = np.empty(self.count(vector.size), np.uint32)
        if chosen.size:
            kernels.sparse.select_largest(vector.view(np.int32), chosen.size, chosen)
        return b"".join((self.values.encode(vector[chosen], stream), encode_indices(chosen, vector.size)))

    def max_payload_bytes(self, size: int) -> int:
        count = self.count(check_size(size))
        return self.values.payload_bytes(count) + max_index_bytes(count, size)

    def omega(self, size: int) -> float:
        return 1.0 - self.delta(size)

    def delta(self, size: int) -> float:
        """k/d times the δ of the values. If that δ is not positive, neither is the result."""
        if not size:
            return 1.0
        count = self.count(size)
        inner = self.values.delta(count)
        return inner * count / size if inner > 0 else inner

    def _read(self, payload: Payload, size: int) -> tuple[Indices, Vector]:
        count = self.count(size)
        least, most = self.values.payload_bytes(count), self.max_payload_bytes(size)
        if not least <= len(payload) <= most:
            raise MalformedPayload(
                f"expected {least} to {most} bytes for the top {count} of {size} coordinates, found {len(payload)}"
            )
        view = memoryview(payload)
        return decode_indices(view[least:], count, size), self.values.decode(view[:least], count)


@final
@dataclass(frozen=True, slots=True)
class RandK(Sparse, Scalable):
    """Keep k coordinates chosen uniformly at random, times d/k, and set the others to zero.

    E Q(x) = x and E‖Q(x) − x‖² = (d/k − 1)‖x‖² exactly. The receiver derives the indices from the message's seed.
    """

    NAME = "rand_k"
    CODEC_ID = 4

    def unbiased(self, size: int) -> bool:
        return self.values.unbiased(self.count(size))

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        vector = family.as_finite_vector(vector)
        seed = seed_of(stream)
        chosen = vector[self._indices(seed, vector.size)].astype(np.float64)
        chosen *= gain * vector.size / max(1, chosen.size)
        # d/k times a value near the end of the float32 range is clipped, not made infinite
        values = np.clip(chosen, -LARGEST, LARGEST).astype(np.float32)
        return seed + self.values.encode(values, stream)

    def payload_bytes(self, size: int) -> int:
        return SEED_BYTES + self.values.payload_bytes(self.count(check_size(size)))

    def head_bytes(self, size: int) -> int:
        return SEED_BYTES + self.values.head_bytes(self.count(check_size(size)))

    def omega(self, size: int) -> float:
        """Exactly d/k − 1 with plain values; (1 + ω of the values)·d/k − 1 with quantized ones."""
        if not size:
            return 0.0
        count = self.count(size)
        return (1.0 + self.values.omega(count)) * size / count - 1.0

    def _indices(self, seed: bytes, size: int) -> Indices:
        chosen = np.empty(self.count(size), np.uint32)
        kernels.sparse.select_random(seed_word(seed), size, chosen)
        return chosen

    def _read(self, payload: Payload, size: int) -> tuple[Indices, Vector]:
        data = family.as_bytes(payload, self.payload_bytes(size))
        values = self.values.decode(data[SEED_BYTES:].data, self.count(size))
        return self._indices(data[:SEED_BYTES].tobytes(), size), values
