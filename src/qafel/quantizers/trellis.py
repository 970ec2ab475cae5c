"""Trellis: any rate from a quarter of a bit, at 1.1 to 1.3 times the least possible error of that rate.

A payload:

    tables    a byte per group: the number of its code table; 128 more in the first byte if the vector is lifted by 2⁶⁴
    notes     the seed (8 bytes) and the scales (2 bytes per group), except those hidden in the coders
    lengths   4 bytes per stream, except the last: its number of words
    words     16 bits each, stream by stream, see kernels/trellis.py

docs/decisions/quantizers.md explains the design.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Vector
from qafel.quantizers import family, kernels
from qafel.quantizers.family import NUMBER, WHOLE, Family, one_of
from qafel.quantizers.kernels import ADD, ASSIGN, COLUMNS, ROOM, SEED_BYTES
from qafel.quantizers.kernels.tables import Cut, cut, tables_for
from qafel.quantizers.protocol import Payload
from qafel.quantizers.rotated import LEVELS, Rotated, least_omega
from qafel.rng import Stream

Scale: TypeAlias = Literal["unbiased", "least"]

LOWEST_RATE, HIGHEST_RATE = 0.25, 6.0
SHORTEST: Final = 1024  # coordinates; `rotated` encodes shorter vectors
_SCALES: Final = ("unbiased", "least")
_STREAM_BYTES: Final = 4 * COLUMNS  # of the shortest stream
_FLUSHED_BYTES: Final = 3 * COLUMNS  # of these, the mean number of bytes without information
_ENOUGH: Final = 6  # attempts, after which every payload within the limit is accepted
_MARGIN: Final = 1.5  # how many times the error of a Gaussian vector is accepted
_LIFTED: Final = 128  # in the first table's number: the vector was multiplied by 2⁶⁴
_LIFT: Final = np.float32(2.0**64)
_TINY: Final = 2.0**-240  # mean square; the scales of smaller vectors need a lift to keep their precision


class _Encoded(NamedTuple):
    """One attempt: the parts of a payload, its bytes, and ‖Q(x) − x‖²."""

    tables: Any
    notes: Any
    room: Any
    lengths: list[int]
    size: int
    error: float


@final
@dataclass(frozen=True, slots=True)
class Trellis(Family):
    """Rotate windows at random, quantize along the best path through a trellis, and entropy code the result.

    Q(x) = Rᵀ S·q(Rx): as `rotated`, but q is chosen for all coordinates together. Each group of 4096 has the code table
    that minimizes the sum of all errors. S = ‖y‖²/⟨y, q⟩ makes Q unbiased. S = ⟨y, q⟩/‖q‖², `scale=least`, minimizes
    the error and is for the server. Marcellin and Fischer, 1990; Vargaftik et al., 2022.
    """

    NAME: ClassVar[str] = "trellis"
    CODEC_ID: ClassVar[int] = 12
    ARGUMENTS: ClassVar[dict[str, Any]] = {"rate": NUMBER, "states": WHOLE, "scale": one_of(*_SCALES)}

    rate: float
    states: int = 8
    scale: Scale = "unbiased"

    def __post_init__(self) -> None:
        if not LOWEST_RATE <= self.rate <= HIGHEST_RATE:
            raise SpecError(f"trellis takes {LOWEST_RATE} to {HIGHEST_RATE:g} bits a coordinate, found {self.rate}")
        if self.states not in {8, 32}:
            raise SpecError(f"trellis takes 8 or 32 states, found {self.states}")
        if self.scale not in _SCALES:
            raise SpecError(f"trellis takes scale=unbiased or scale=least, found {self.scale!r}")
        object.__setattr__(self, "rate", family.as_sent(self.rate))

    def unbiased(self, size: int) -> bool:
        return self.scale == "unbiased"

    def omega(self, size: int) -> float:
        """A bound for every vector: if the error is larger, the encoder draws another rotation.

        A Gaussian vector has two thirds of it (tan²θ, for the unbiased scale), other vectors have less.
        """
        short = size < SHORTEST
        tangent = self._short.omega(size) if short else _figures(self.rate, self.states, size).tangent
        return least_omega(tangent, self.scale == "least")

    def max_payload_bytes(self, size: int) -> int:
        """The rate plus 2 %, plus a few bytes that matter for short vectors only."""
        if size < SHORTEST:
            return self._short.payload_bytes(size)
        return _figures(self.rate, self.states, size).most_bytes

    @property
    def _short(self) -> Rotated:
        """The quantizer for short vectors."""
        return Rotated(min(max(round(self.rate), 1), max(LEVELS)))

    @property
    def _tolerance(self) -> float:
        """The relative deviation from the target length that is accepted."""
        return 0.009 if self.rate >= 0.75 else 0.018

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        vector = family.as_vector(vector)
        size, seed = vector.size, family.seed_of(stream)
        if size < SHORTEST:
            return self._short.encode_with(vector, stream, 1.0, self.scale == "least")
        parts = cut(family.check_size(size))
        sigmas = np.empty(len(parts.windows))
        energy = kernels.windows.deviations(vector, parts.windows, sigmas)
        if not energy < math.inf:
            raise family.non_finite(vector)
        lifted = 0 < energy < _TINY * size
        if lifted:
            vector = vector * _LIFT
            energy = kernels.windows.deviations(vector, parts.windows, sigmas)
        encoded = self._near_rate(vector, parts, sigmas, energy, seed)
        encoded.tables[0] += _LIFTED * lifted
        return _joined(parts, encoded)

    def _near_rate(self, vector: Vector, parts: Cut, sigmas: Any, energy: float, seed: bytes) -> _Encoded:
        """Encode until bytes and error are as promised. One attempt nearly always suffices.

        Each attempt corrects the bits for the numbers by the last deviation. An interval around the right value makes
        the search converge.
        """
        size = vector.size
        target, most, overhead, _ = _figures(self.rate, self.states, size)
        within = max(4.0, target * self._tolerance)
        most_error = self.omega(size) * energy
        asked = 8.0 * (target - overhead)
        low, high, wanted, best = 0.0, math.inf, asked, None
        for attempt in range(family.ATTEMPTS):
            encoded = self._attempt(vector, parts, sigmas, energy, seed, wanted)
            off = encoded.size - target
            if encoded.error > most_error or (attempt >= _ENOUGH and encoded.size > most):
                seed = family.next_seed(seed)
                low, high, wanted = 0.0, math.inf, asked
                continue
            if best is None or abs(off) < abs(best.size - target):
                best = encoded
            if abs(off) <= within or energy == 0 or (attempt >= _ENOUGH and best.size <= most):
                break
            low, high = (low, min(high, wanted)) if off > 0 else (max(low, wanted), high)
            wanted *= asked / max(8.0 * (encoded.size - overhead), 1.0)
            if not low < wanted < high:
                wanted = (low + high) / 2 if high < math.inf else 2 * low
        return best or encoded

    def _attempt(self, vector: Vector, parts: Cut, sigmas: Any, energy: float, seed: bytes, wanted: float) -> _Encoded:
        """Encode with rotations from the seed, in about `wanted` bits for the numbers."""
        windows, streams = parts.windows, parts.streams
        known = tables_for(self.states)
        classes, knob, planned = np.empty(len(windows), np.int64), np.empty(len(windows)), np.empty(len(windows))
        curve = (known.rates, known.knobs, len(known.levels) - 1)
        kernels.windows.share_out(sigmas, windows, known.places, *curve, wanted, classes, knob, planned)
        power = min(max(math.frexp(energy)[1] // 2, -126), 127)
        notes = np.empty(SEED_BYTES + 2 * len(windows), np.uint8)
        notes[:SEED_BYTES] = np.frombuffer(seed, np.uint8)
        room, found = np.empty(parts.padded + ROOM * len(streams), np.uint16), np.empty((len(streams), 2))
        tables = (known.levels, known.bits, known.reach, known.prices, known.writing)
        common = (
            *(vector, windows, streams, power, family.seed_word(seed), self.states, self.scale == "least"),
            *((sigmas, classes, knob, planned), tables, curve, 0.9 * self._tolerance, notes, room, found),
        )
        family.encode_spans(kernels.windows.encode_streams, vector, common, len(streams))
        rows = found.tolist()
        lengths = [int(words) for words, _ in rows]
        size = parts.head_bytes + 2 * sum(lengths)
        return _Encoded(classes, notes, room, lengths, size, sum(error for _, error in rows))

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        size = target.size
        if size < SHORTEST:
            self._short._apply(target, payload, mode, weight)
            return
        parts, known = cut(size), tables_for(self.states)
        windows, streams = parts.windows, parts.streams
        classes, notes, data, ends = self._split(payload, parts, size)
        lifted, classes[0] = divmod(int(classes[0]), _LIFTED)
        into = np.empty_like(target) if lifted and mode == ADD else target
        v = np.empty(parts.padded, np.int16)
        reading = (data, ends, windows, streams, classes, self.states, known.reading, v, notes)
        sound = family.all_spans(kernels.windows.decode_streams, size, reading, len(streams))
        scales = notes[SEED_BYTES:].view("<u2")
        if not sound or max(scales.tolist()) >= 0xFF00:
            raise MalformedPayload("expected coded numbers and finite scales: the payload is damaged or forged")
        word = family.seed_word(notes[:SEED_BYTES].tobytes())
        how = (ASSIGN, 1.0) if lifted else (mode, weight)
        numbers = (into, v, windows, streams, classes, scales, known.levels, word, *how)
        family.all_spans(kernels.windows.apply_streams, size, numbers, len(streams))
        if lifted:
            into *= 1 / _LIFT
            if mode == ADD:
                target += np.float32(weight) * into

    def _split(self, payload: Payload, parts: Cut, size: int) -> tuple[Any, Any, Any, Any]:
        """Split a payload into tables, notes, words and the first words of all streams. Checks all lengths."""
        groups, streams, head = len(parts.windows), len(parts.streams), parts.head_bytes
        least, most = head + _STREAM_BYTES * streams, self.max_payload_bytes(size)
        if not least <= len(payload) <= most or (len(payload) - head) % 2:
            raise MalformedPayload(
                f"expected {least} to {most} bytes for a size of {size}, an even number of words, found {len(payload)}"
            )
        array = family.as_bytes(payload, len(payload))
        data = np.zeros(
            (len(payload) - head) // 2 + 2 * COLUMNS, np.uint16
        )  # the reader may look at words past the end
        data[: -2 * COLUMNS].view(np.uint8)[:] = array[head:]
        ends = np.array([0] * streams + [data.size - 2 * COLUMNS])
        if streams > 1:
            ends[1:streams] = np.cumsum(array[head - 4 * (streams - 1) : head].copy().view("<u4"), dtype=np.int64)
        classes = array[:groups].astype(np.int64)
        known = max([int(classes[0]) % _LIFTED, *classes[1:].tolist()]) < len(tables_for(self.states).rates)
        if not known or (streams > 1 and (ends[1:] - ends[:-1]).min() < 2 * COLUMNS):
            raise MalformedPayload("expected known tables, and streams that fill the payload: it is damaged or forged")
        notes = np.zeros(SEED_BYTES + 2 * groups, np.uint8)
        if parts.plain.size:
            notes[parts.plain] = array[groups : groups + parts.plain.size]
        return classes, notes, data, ends


class _Figures(NamedTuple):
    """Target, limit and overhead of a payload's length, and tan² of the largest accepted angle."""

    target_bytes: float
    most_bytes: int
    overhead_bytes: int
    tangent: float


@lru_cache(256)
def _figures(rate: float, states: int, size: int) -> _Figures:
    """The target is the rate, but at least the overhead of a message plus the lowest rate for the numbers."""
    parts, known = cut(family.check_size(size)), tables_for(states)
    least = parts.head_bytes + _STREAM_BYTES * len(parts.streams) + float(known.rates[1]) * size / 8
    target, overhead = max(rate * size / 8, least), parts.head_bytes + _FLUSHED_BYTES * len(parts.streams)
    error = float(np.interp(8 * (target - overhead) / parts.padded, known.rates[1:], known.errors[1:]))
    return _Figures(target, int(1.02 * target) + 32, overhead, _MARGIN * error)


def _joined(parts: Cut, encoded: _Encoded) -> Payload:
    """Join the parts of a payload. The room of a stream holds its words in reverse."""
    lengths = encoded.lengths
    plain = encoded.notes[parts.plain].tobytes() if parts.plain.size else b""
    head = encoded.tables.astype(np.uint8).tobytes() + plain + np.array(lengths[:-1], "<u4").tobytes()
    if len(lengths) == 1:  # the common case, in half the time
        whole: bytes = head + encoded.room[lengths[0] - 1 :: -1].astype("<u2").tobytes()
        return whole
    out = np.empty(encoded.size, np.uint8)
    out[: parts.head_bytes] = np.frombuffer(head, np.uint8)
    at, words = 0, out[parts.head_bytes :].view("<u2")
    for number, length in enumerate(lengths):
        begin = int(parts.windows[parts.streams[number, 0], 0]) + ROOM * number
        words[at : at + length] = encoded.room[begin : begin + length][::-1]
        at += length
    return family.as_payload(out)
