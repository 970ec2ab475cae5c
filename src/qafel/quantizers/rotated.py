"""Rotated: a random rotation makes any vector look Gaussian, and the best levels for a Gaussian are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import SpecError
from qafel.params import Vector
from qafel.quantizers import family, kernels
from qafel.quantizers.family import WHOLE, Scalable
from qafel.quantizers.kernels import BLOCK, COLUMNS, OK, SEED_BYTES, SHORTEST, packed_bytes
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream


def _levels(text: str) -> Vector:
    levels = np.array(text.split(), np.float32)
    levels.flags.writeable = False
    return levels


# The positive half of the 2ᵇ levels with the least mean squared error for N(0, 1) (Lloyd–Max). They are part of the
# format: both ends need the same float32 numbers.
LEVELS: Final[dict[int, Vector]] = {
    1: _levels("0.797884583"),
    2: _levels("0.452780038 1.51041758"),
    3: _levels("0.24509418 0.756005287 1.34390926 2.15194559"),
    4: _levels("0.128395036 0.388048291 0.656759143 0.942340434 1.25623119 1.6180464 2.06901717 2.73258948"),
    5: _levels(
        "0.0658896565 0.198051825 0.331378311 0.466699511 0.604933619 0.747135699 0.894565105 1.0487833 "
        "1.21180439 1.38634038 1.57622802 1.78723323 2.02872849 2.31773949 2.69111967 3.26073241"
    ),
    6: _levels(
        "0.0334095061 0.100278288 0.167296901 0.234566987 0.302192837 0.37028265 0.438949674 0.508313775 "
        "0.578503013 0.649655581 0.721921921 0.795467675 0.870476604 0.947154939 1.02573633 1.10648823 "
        "1.18972015 1.27579451 1.36514103 1.45827639 1.55583119 1.65858889 1.76754189 1.88397729 "
        "2.00961113 2.14681029 2.29898119 2.47130489 2.67227387 2.9174068 3.24043703 3.74410129"
    ),
}

# E‖Q(x) − x‖² ≤ ω‖x‖² for every x, because the encoder draws another rotation if the error tan²θ‖x‖² is larger, θ being
# the angle between Rx and q. On Gaussian data tan²θ is D/(1−D), with D the Lloyd–Max distortion: 0.57 at one bit. A
# short column deviates from that mean, so ω leaves room: at most about one draw in fifty is rejected.
OMEGA: Final[dict[int, float]] = {1: 0.95, 2: 0.3, 3: 0.09, 4: 0.03, 5: 0.01, 6: 0.003}


def least_omega(tangent: float, least: bool) -> float:
    """ω from tan² of the largest accepted angle: sin² for the scale with the least error."""
    return tangent / (1 + tangent) if least else tangent


@lru_cache(256)
def blocks(size: int, bits: int) -> tuple[NDArray[np.int64], int, int]:
    """Table of the blocks, number of scales, bytes of the codes.

    Full blocks of 4096 coordinates in 16 columns come first. The rest is cut into powers of two, the smallest 32. A
    piece is padded to the next power only if that adds less than a third, or to 32 or 64. Pieces of 1024 and more have
    columns of 256. A row holds start, coordinates, padded size, columns, first code, first scale, first byte.
    """
    full, rest = divmod(family.check_size(size), BLOCK)
    each = np.array([BLOCK, 0, 0, 0, BLOCK, COLUMNS, packed_bytes(BLOCK, bits)])
    table = np.arange(full)[:, None] * each + [0, BLOCK, BLOCK, COLUMNS, 0, 0, 0]
    start, _, _, _, code, scale, byte = (full * each).tolist()
    rows = []
    while rest:
        above = max(SHORTEST, 1 << (rest - 1).bit_length())
        padded = above if 4 * rest >= 3 * above or above <= 2 * SHORTEST else above // 2
        count, cols = min(rest, padded), padded // 256 if padded >= 1024 else 1
        rows.append([start, count, padded, cols, code, scale, byte])
        start, rest = start + count, rest - count
        code, scale, byte = code + padded, scale + cols, byte + packed_bytes(padded, bits)
    return np.concatenate([table, np.array(rows, np.int64).reshape(-1, 7)]), scale, byte


@final
@dataclass(frozen=True, slots=True)
class Rotated(Scalable):
    """Rotate blocks at random, send each coordinate as one of the 2ᵇ best levels for a Gaussian, rotate back.

    Q(x) = Rᵀ S·q(Rx/σ), S = ‖Rx‖² / ⟨Rx, q⟩. R consists of random signs, turns and Hadamard transforms, from a seed in
    the message. ⟨Q(x), x⟩ = ‖x‖² always. With a uniformly random rotation E Q(x) = x for every x (EDEN, Theorem 2.1).
    With R the relative squared bias is below 10⁻⁴ at every size. Vargaftik et al., 2021 and 2022.
    """

    NAME: ClassVar[str] = "rotated"
    CODEC_ID: ClassVar[int] = 10
    ARGUMENTS: ClassVar[dict[str, Any]] = {"bits": WHOLE}

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in LEVELS:
            raise SpecError(f"rotated takes 1 to {max(LEVELS)} bits a coordinate, found {self.bits}: use qsgd for more")

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        return self.encode_with(vector, stream, gain, False)

    def encode_with(self, vector: Vector, stream: Stream, gain: float, least: bool) -> Payload:
        """A payload that decodes to gain · Q(vector); `least` is the scale with the least error, which is biased.

        If the error exceeds ω, draw another rotation. One draw nearly always suffices.
        """
        vector = family.as_vector(vector)
        table, scales, _ = blocks(vector.size, self.bits)
        out, found = np.empty(self.payload_bytes(vector.size), np.uint8), np.empty((len(table), 2))
        seed, omega = family.seed_of(stream), least_omega(self.omega(vector.size), least)
        for _ in range(family.ATTEMPTS):
            out[:SEED_BYTES] = np.frombuffer(seed, np.uint8)
            common = (vector, out, family.seed_word(seed), table, scales, LEVELS[self.bits], self.bits)
            family.encode_spans(kernels.rotated.encode_blocks, vector, (*common, gain, least, found), len(table))
            error, energy = found.sum(0).tolist()
            if error <= omega * energy:
                break
            seed = family.next_seed(seed)
        return family.as_payload(out)

    def payload_bytes(self, size: int) -> int:
        return self.head_bytes(size) + blocks(size, self.bits)[2]

    def head_bytes(self, size: int) -> int:
        return SEED_BYTES + 4 * blocks(size, self.bits)[1]

    def omega(self, size: int) -> float:
        """A bound for every vector: if the error is larger, the encoder draws another rotation. See OMEGA."""
        return OMEGA[self.bits]

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        table, scales, _ = blocks(target.size, self.bits)
        data = family.as_bytes(payload, self.payload_bytes(target.size))
        word = family.seed_word(data[:SEED_BYTES].tobytes())
        common = (target, data, mode, weight, word, table, scales, LEVELS[self.bits], self.bits)
        if family.apply_spans(kernels.rotated.apply_blocks, target.size, common, len(table)) != OK:
            raise family.bad_scale("scales")
