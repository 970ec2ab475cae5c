"""Rotated: a random rotation makes any vector look Gaussian, for which the best levels are known. The quality mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Vector
from qafel.quantizers import parallel
from qafel.quantizers.checks import as_bytes, as_target, as_vector, check_size, non_finite, seed_of, signed
from qafel.quantizers.codec import ROTATED, pack_codec
from qafel.quantizers.gaussian_levels import LEVELS, OMEGA
from qafel.quantizers.kernels.decode import ADD, ASSIGN, OK
from qafel.quantizers.kernels.gaussian import apply_blocks, encode_blocks
from qafel.quantizers.kernels.packing import packed_bytes
from qafel.quantizers.kernels.rotation import BLOCK, COLUMNS
from qafel.quantizers.output import finish, new_output
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

_SEED_BYTES: Final = 8


@lru_cache(256)
def blocks(size: int, bits: int) -> tuple[NDArray[np.int64], int, int, int]:
    """Table of the last blocks, number of blocks, number of scales, bytes of the codes.

    Full blocks of 4096 coordinates in 16 columns come first. The rest is cut into powers of two, and a piece is padded
    to the next one only if that adds less than a third. Row 0 of the table holds the number of full blocks and of
    scales; a row is start, coordinates, padded size, columns, first code, first scale, first byte.
    """
    full, rest = divmod(check_size(size), BLOCK)
    start, code, scale, byte = full * BLOCK, full * BLOCK, full * COLUMNS, full * packed_bytes(BLOCK, bits)
    rows = [[full, 0, 0, 0, 0, 0, 0]]
    while rest:
        above = 1 << (rest - 1).bit_length()
        padded = above if 4 * rest >= 3 * above or above <= 16 else above // 2
        count, cols = min(rest, padded), 8 if padded >= 1024 else 1
        rows.append([start, count, padded, cols, code, scale, byte])
        start, rest, code, scale, byte = (
            start + count,
            rest - count,
            code + padded,
            scale + cols,
            byte + packed_bytes(padded, bits),
        )
    rows[0][1] = scale
    return np.array(rows, np.int64), full + len(rows) - 1, scale, byte


@final
@dataclass(frozen=True, slots=True)
class Rotated:
    """Rotate blocks at random, send each coordinate as one of the 2ᵇ best levels for a Gaussian, rotate back.

    Q(x) = Rᵀ S·q(Rx/σ), S = ‖Rx‖² / ⟨Rx, q⟩, with R two rounds of random signs and a Hadamard transform, from a seed in
    the message. ⟨Q(x), x⟩ = ‖x‖² always. With a uniformly random rotation E Q(x) = x for every x (EDEN, Theorem 2.1);
    two Hadamard rounds come so close that no bias could be measured. Vargaftik et al., 2021 and 2022.
    """

    bits: int = 4

    def __post_init__(self) -> None:
        if self.bits not in LEVELS:
            raise SpecError(
                f"rotated takes 1 to {max(LEVELS)} bits a coordinate, found {self.bits}; for more, use qsgd"
            )

    @property
    def spec(self) -> str:
        return f"rotated:{self.bits}"

    @property
    def codec(self) -> bytes:
        return pack_codec(ROTATED, bytes([self.bits]))

    @staticmethod
    def from_parameters(fields: bytes) -> Rotated:
        return Rotated(fields[0])

    @property
    def unbiased(self) -> bool:
        return True

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return self.encode_scaled(vector, stream, 1.0)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> bytes:
        """A payload that decodes to gain · Q(vector)."""
        vector = as_vector(vector)
        table, count, _, _ = blocks(vector.size, self.bits)
        out, data = new_output(self.payload_bytes(vector.size))
        seed = seed_of(stream)
        out[:_SEED_BYTES] = np.frombuffer(seed, np.uint8)
        word = signed(int.from_bytes(seed, "little"))
        common = (vector, out, word, table, LEVELS[self.bits], self.bits, gain)
        if parallel.is_serial(vector.size):
            sound = encode_blocks(*common, 0, count)
        else:
            sound = not parallel.over_spans(lambda first, last: not encode_blocks(*common, first, last), count)
        if not sound:
            raise non_finite(vector)
        return finish(out, data)

    def decode(self, payload: Payload, size: int) -> Vector:
        target = np.empty(check_size(size), np.float32)
        self._apply(target, payload, ASSIGN, 1.0)
        return target

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        self._apply(as_target(target), payload, ADD, float(weight))

    def payload_bytes(self, size: int) -> int:
        return self.head_bytes(size) + blocks(size, self.bits)[3]

    def head_bytes(self, size: int) -> int:
        return _SEED_BYTES + 4 * blocks(size, self.bits)[2]

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)

    def omega(self, size: int) -> float:
        """A bound for every vector, from the moments of random signs; see gaussian_levels.py."""
        return OMEGA[self.bits]

    def delta(self, size: int) -> float:
        return 1.0 - self.omega(size)

    def bits_per_coordinate(self, size: int) -> float:
        return 8.0 * self.payload_bytes(size) / size if size else 0.0

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        table, count, _, _ = blocks(target.size, self.bits)
        data = as_bytes(payload, self.payload_bytes(target.size))
        word = signed(int.from_bytes(data[:_SEED_BYTES].tobytes(), "little"))
        common = (target, data, mode, weight, word, table, LEVELS[self.bits], self.bits)
        serial = parallel.is_serial(target.size)
        if apply_blocks(*common, True, 0, count if serial else 0) != OK:
            raise MalformedPayload(
                "expected finite, non-negative scales, found another: the payload is damaged or forged"
            )
        if not serial:
            parallel.over_spans(lambda first, last: apply_blocks(*common, False, first, last), count)
