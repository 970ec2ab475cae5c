"""Custom quantizers: any object with `encode(vector, stream)` and `decode(payload, size)`. No base class is needed.

`as_quantizer` derives the rest of a `Quantizer`:

    adding       decode, then add
    name         module:Class(parameters), from its public attributes; a digest of it names the codec in messages
    size limit   from encoding a few vectors
    ω, δ, bias   measured on Gaussian and heavy-tailed data, and shown as measured

An object can define `max_payload_bytes(size)`, or `omega(size)` and `unbiased(size)`, to replace the derived values.
It can also define `delta(size)` if that is not 1 − ω.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast, final

import numpy as np

from qafel.errors import ConfigError, MalformedPayload
from qafel.params import Layout, Vector, require_vector
from qafel.parts import PartKind, custom_path, describe_error, errors_of, make
from qafel.quantizers.family import as_finite_vector, as_target, check_size
from qafel.quantizers.measure import gaussian, heavy_tailed, measure_error
from qafel.quantizers.protocol import CUSTOM, Codec, Payload, Quantizer, pack_codec
from qafel.quantizers.spec import FAMILIES, parse
from qafel.rng import Stream
from qafel.text import described, path_of

QUANTIZER: Final = PartKind("quantizer", ("encode", "decode"))
_WHOLE: Final = (
    "spec", "codec", "unbiased", "encode", "decode", "add_decoded_", "max_payload_bytes", "omega", "delta",
)  # fmt: skip
_MOST_BIAS: Final = 1e-4  # the limit for an unbiased quantizer
_ESTIMATES: Final = 8
_STANDARD_ERRORS: Final = 5.0


def as_quantizer(part: object, name: str | None = None) -> Quantizer:
    """Adapt an object with `encode` and `decode`. An object with all members of `Quantizer` is returned unchanged.

    `name` replaces its module and class in messages. Set it if two ends import the class from different places.
    """
    if not isinstance(part, type) and all(hasattr(part, name) for name in _WHOLE):
        return cast(Quantizer, part)
    wanted = "a custom quantizer is an object with encode(vector, stream) and decode(payload, size)"
    if isinstance(part, str):
        raise ConfigError(f"{wanted}, found the text {part!r}: use `method` or `quantizer` for a text such as 'qsgd:4'")
    if isinstance(part, type):
        raise ConfigError(f"{wanted}, found the class {part.__name__}: pass an object, {part.__name__}(…)")
    for method in ("encode", "decode"):
        if not callable(getattr(part, method, None)):
            raise ConfigError(f"{wanted}, found {type(part).__name__} without {method}")
    return Custom(cast(Codec, part), described(part, name or path_of(part)))


def make_quantizer(part: object, layout: Layout | None = None) -> Quantizer:
    """The quantizer of a setting: a spec such as "qsgd:4", an import path, or an object.

    `layout` gives the shapes of the model's tensors, which some quantizers need.
    """
    if (path := custom_path(part, FAMILIES)) is not None:
        return as_quantizer(make(cast(str, part), QUANTIZER, known=dict.fromkeys(FAMILIES)), name=path)
    return parse(part, layout) if isinstance(part, str) else as_quantizer(part)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Custom:
    """A custom codec with the derived members of a quantizer. `as_quantizer` creates it."""

    part: Codec
    spec: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    @property
    def codec(self) -> bytes:
        return pack_codec(CUSTOM, hashlib.blake2b(self.spec.encode(), digest_size=6).digest())

    @property
    def is_measured(self) -> bool:
        """Whether ω, δ and bias are measured on data, because the object does not define them."""
        return self._offered("omega") is None or self._offered("unbiased") is None

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        """Let the object encode a copy, so that it cannot change the vector."""
        vector = as_finite_vector(vector)
        payload, most = self._encoded(vector, stream), self.max_payload_bytes(vector.size)
        if len(payload) > most:
            raise ConfigError(
                f"{self.spec} wrote {len(payload)} bytes for {vector.size} coordinates; in a few samples it needed at "
                f"most {most}: add a method max_payload_bytes(size)"
            )
        return payload

    def decode(self, payload: Payload, size: int) -> Vector:
        return self._decoded(payload, size).copy()

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        target = as_target(target)
        target += np.float32(weight) * self._decoded(payload, target.size)

    def max_payload_bytes(self, size: int) -> int:
        offered = self._offered("max_payload_bytes")
        return _probed(self, check_size(size)) if offered is None else int(self._asked("max_payload_bytes", size))

    def unbiased(self, size: int) -> bool:
        return _theory(self, size).unbiased if self.is_measured else bool(self._asked("unbiased", size))

    def omega(self, size: int) -> float:
        return _theory(self, size).omega if self.is_measured else float(self._asked("omega", size))

    def delta(self, size: int) -> float:
        if self.is_measured or self._offered("delta") is None:
            return 1.0 - self.omega(size)
        return float(self._asked("delta", size))

    def _offered(self, method: str) -> Callable[..., Any] | None:
        return getattr(self.part, method, None)

    def _asked(self, method: str, size: int) -> Any:
        with errors_of(f"{method} of {self.spec}"):
            return getattr(self.part, method)(size)

    def _encoded(self, vector: Vector, stream: Stream) -> bytes:
        with errors_of(f"encode of {self.spec}"):
            payload: object = self.part.encode(vector.copy(), stream)
        if isinstance(payload, bytes):
            return payload
        if isinstance(payload, bytearray | memoryview):
            return bytes(payload)
        raise ConfigError(f"encode of {self.spec} returned {type(payload).__name__}, not bytes: use array.tobytes()")

    def _decoded(self, payload: Payload, size: int) -> Vector:
        """The decoded vector. Any failure refuses the payload."""
        if len(payload) > (most := self.max_payload_bytes(size)):
            raise MalformedPayload(f"{self.spec} needs at most {most} bytes for size {size}, found {len(payload)}")
        try:
            with np.errstate(all="ignore"):
                return _decoded(self.part, bytes(payload), size)
        except Exception as error:
            raise MalformedPayload(
                f"{self.spec} cannot read these {len(payload)} bytes: {describe_error(error)}"
            ) from error


def _decoded(part: Codec, payload: bytes, size: int) -> Vector:
    vector = require_vector(part.decode(payload, size), size, "decode")
    if not np.isfinite(vector).all():
        raise ValueError("decode returned NaN or infinity")
    return vector


@lru_cache(256)
def _probed(custom: Custom, size: int) -> int:
    """The size limit, from encoding a few vectors. Each must decode, and encode to the same bytes again.

    If all payloads have one length, that is the limit. Otherwise the limit is twice the longest, and at least that of
    float32.
    """
    spike = np.zeros(size, np.float32)
    spike[size // 2 :][:1] = -3.0
    samples = {
        "Gaussian": gaussian(size),
        "heavy-tailed": heavy_tailed(size),
        "zero": np.zeros(size, np.float32),
        "constant": np.full(size, 0.7, np.float32),
        "one-sparse": spike,
    }
    stream = Stream.named(0, "probe of an own quantizer")
    lengths = set()
    for kind, vector in samples.items():
        payload = custom._encoded(vector, stream)
        if payload != custom._encoded(vector, stream):
            raise ConfigError(
                f"encode of {custom.spec} gives different bytes for the same vector and stream: draw all randomness "
                "from stream.generator(), and keep no state"
            )
        lengths.add(len(payload))
        try:
            _decoded(custom.part, payload, size)
        except Exception as error:
            raise ConfigError(
                f"{custom.spec} does not decode what it encodes of a {kind} vector of {size} coordinates: "
                f"{describe_error(error)}"
            ) from error
    longest = max(lengths)
    return longest if len(lengths) == 1 else max(2 * longest, 4 * size)


class _Theory(NamedTuple):
    omega: float
    unbiased: bool


@lru_cache(256)
def _theory(custom: Custom, size: int) -> _Theory:
    """The measured ω, the larger of two kinds of data, and whether Q appears unbiased.

    Q counts as biased if the mean of several independent estimates exceeds the limit by five standard errors. Less
    than one in a thousand unbiased quantizers fails.
    """
    omega, unbiased = 0.0, True
    for name, vector in (("Gaussian", gaussian(size)), ("heavy-tailed", heavy_tailed(size))):
        streams = (Stream.named(0, f"theory of an own quantizer, {name}", 0, n) for n in range(_ESTIMATES))
        found = [measure_error(custom, [vector], 2, stream) for stream in streams]
        biases = np.array([each.bias for each in found])
        noise = _STANDARD_ERRORS * biases.std(ddof=1) / np.sqrt(_ESTIMATES)
        unbiased &= bool(biases.mean() <= _MOST_BIAS + noise)
        omega = max(omega, float(np.mean([each.nmse for each in found])))
    return _Theory(omega, unbiased)
