"""Base classes of the families, checks of vectors and payloads, and threads.

Kernels release the GIL and work on spans that share no byte. So plain threads suffice, and the result does not depend
on their number. docs/decisions/quantizers.md explains why Numba's parallel loops are not used.
"""

from __future__ import annotations

import os
import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, NonFiniteVector, SpecError, WrongCodec
from qafel.params import Layout, Vector
from qafel.quantizers import kernels
from qafel.quantizers.kernels import ADD, ASSIGN, OK, SEED_BYTES
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.rng import Stream

Bytes: TypeAlias = NDArray[np.uint8]

_FLOAT32 = np.dtype(np.float32)
_UINT8 = np.dtype(np.uint8)
_MAX_SIZE = 2**31  # counters and indices are 32-bit
_LARGE = 1 << 18  # bytes; copying a smaller payload is cheaper than keeping its buffer
_SEED_STEP = 0x9E3779B97F4A7C15
ATTEMPTS = 20  # the most draws of a random rotation
SERIAL_BELOW = 1 << 19  # coordinates; a second thread does not pay for fewer

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
_THREADS: Final = ContextVar("threads", default=_CORES)


class Argument(NamedTuple):
    """An argument of a spec: its kind in words, and how its text and its bytes in a codec are read and written."""

    kind: str
    read: Callable[[str], Any]
    unpack: Callable[[bytes], Any] = lambda packed: packed[0]
    pack: Callable[[Any], bytes] = lambda value: bytes([value])
    length: int = 1
    text: Callable[[Any], str] = str


def one_of(*names: str) -> Argument:
    """One of several words, sent as its number."""
    numbers = {name: bytes([number]) for number, name in enumerate(names)}
    return Argument("a word", str, lambda packed: names[packed[0] % len(names)], numbers.__getitem__)


WHOLE: Final = Argument("a whole number", int)
_FLOAT: Final = struct.Struct("<f")
NUMBER: Final = Argument(
    "a number", float, lambda packed: as_sent(*_FLOAT.unpack(packed)), _FLOAT.pack, _FLOAT.size, "{:.9g}".format
)
BUCKET: Final = Argument(
    "a whole number or none",
    lambda text: None if text == "none" else int(text),
    lambda packed: int.from_bytes(packed, "little") or None,
    lambda bucket: (bucket or 0).to_bytes(3, "little"),
    3,
    lambda bucket: str(bucket or "none"),
)


class Family(Quantizer):
    """A family of quantizers that ships with the package. By default δ = 1 − ω, and Q is unbiased where it is exact."""

    __slots__ = ()

    NAME: ClassVar[str]
    CODEC_ID: ClassVar[int]
    ARGUMENTS: ClassVar[Mapping[str, Any]] = {}
    """The arguments of a spec in the order of their bytes, each an `Argument`; `Quantizer` for another quantizer."""
    ALLOCATE: ClassVar[Any] = np.empty
    """The function that makes the target for mode ASSIGN."""

    def __hash__(self) -> int:
        return hash(self.codec)

    @classmethod
    def from_spec(cls, **given: Any) -> Self:
        """Create a quantizer from the arguments of a text spec."""
        for each in fields(cls):  # type: ignore[arg-type]  # every family is a dataclass
            if each.default is MISSING and each.name not in given:
                raise SpecError(f"{cls.NAME} needs {each.name}: write {cls.NAME}:4")
        return cls(**given)

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Self:
        """Create a quantizer from the parameters in a codec, the quantizer inside it, and the model's layout."""
        given, at = {}, 0
        for key, argument in cls.ARGUMENTS.items():
            given[key] = argument.unpack(fields[at : at + argument.length])
            at += argument.length
        return cls(**given)

    @property
    def spec(self) -> str:
        names = list(self.ARGUMENTS)
        required = [each.name for each in fields(self) if each.default is MISSING][:1]  # type: ignore[arg-type]
        texts = [self.ARGUMENTS[name].text(getattr(self, name)) for name in required]
        parts = texts + self._changed(*names[len(required) :])
        return f"{self.NAME}:{','.join(parts)}" if parts else self.NAME

    def _changed(self, *names: str) -> list[str]:
        """The arguments with other values than their defaults, as in a spec."""
        defaults = {each.name: each.default for each in fields(self)}  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names}
        return [f"{name}={self.ARGUMENTS[name].text(values[name])}" for name in names if values[name] != defaults[name]]

    @property
    def codec(self) -> bytes:
        parameters = [argument.pack(getattr(self, name)) for name, argument in self.ARGUMENTS.items()]
        return pack_codec(self.CODEC_ID, b"".join(parameters))

    @abstractmethod
    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        """Assign (mode ASSIGN) or add (mode ADD) weight · decoded to the target. An error leaves it unchanged."""

    def unbiased(self, size: int) -> bool:
        return self.omega(size) == 0

    def delta(self, size: int) -> float:
        return 1.0 - self.omega(size)

    def decode(self, payload: Payload, size: int) -> Vector:
        target: Vector = self.ALLOCATE(check_size(size), _FLOAT32)
        self._apply(target, payload, ASSIGN, 1.0)
        return target

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        self._apply(as_target(target), payload, ADD, float(weight))


class FixedRate(Family):
    """A family whose payload length depends on the size alone. `+zstd` and `values=` can wrap it."""

    __slots__ = ()

    @abstractmethod
    def payload_bytes(self, size: int) -> int:
        """The length of every payload for `size` coordinates."""

    @abstractmethod
    def head_bytes(self, size: int) -> int:
        """The number of leading bytes for scales and seeds, which no lossless code shortens."""

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)


class Scalable(FixedRate):
    """An unbiased family that can shrink what it sends at no cost. `scaled:` can wrap it."""

    __slots__ = ()

    def unbiased(self, size: int) -> bool:
        return True

    @abstractmethod
    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        """A payload that decodes to gain · Q(vector)."""

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return self.encode_scaled(vector, stream, 1.0)


def as_vector(vector: Vector) -> Vector:
    """The vector as kernels need it: one-dimensional, contiguous, float32."""
    if type(vector) is np.ndarray and vector.dtype is _FLOAT32 and vector.ndim == 1 and vector.flags.c_contiguous:
        return vector  # the common case, in a fraction of a microsecond
    if not isinstance(vector, np.ndarray) or vector.dtype != _FLOAT32:
        kind = vector.dtype if isinstance(vector, np.ndarray) else type(vector).__name__
        raise TypeError(f"expected a float32 vector, found {kind}: convert it with numpy.asarray(x, numpy.float32)")
    if vector.ndim != 1:
        raise ValueError(f"expected a flat vector, found shape {vector.shape}: flatten it with Layout.flatten")
    return np.ascontiguousarray(vector, _FLOAT32)


def as_finite_vector(vector: Vector) -> Vector:
    """`as_vector`, and refuse NaN and infinity."""
    vector = as_vector(vector)
    if not kernels.shared.is_finite(vector):
        raise non_finite(vector)
    return vector


def as_target(target: Vector) -> Vector:
    """The target of an addition, which must be writable in place."""
    if type(target) is np.ndarray and target.dtype is _FLOAT32 and target.ndim == 1 and target.flags.carray:
        return target  # the common case, in a fraction of a microsecond
    if as_vector(target) is not target or not target.flags.writeable:
        raise ValueError("cannot add in place: the target must be a contiguous, writable vector")
    return target


def as_bytes(payload: Payload, expected: int) -> Bytes:
    """The payload as a read-only array of exactly `expected` bytes."""
    if len(payload) != expected:
        raise MalformedPayload(f"expected a payload of {expected} bytes, found {len(payload)}: the sizes differ")
    array = np.frombuffer(payload, _UINT8)
    if type(payload) is not bytes and array.flags.writeable:
        array.flags.writeable = False  # one type of array, one compiled kernel
    return array


def as_payload(written: Bytes) -> Payload:
    """The bytes of an encoder's buffer, read-only. A large buffer is not copied.

    New memory arrives page by page, so at 25 million coordinates a copy takes longer than quantizing.
    """
    return written.tobytes() if written.size < _LARGE else written.data.toreadonly()


def fingerprint(layout: Layout | None) -> bytes:
    """The four bytes in a codec that name the layout; empty without one."""
    return layout.fingerprint if layout else b""


def layout_of(named: bytes, layout: Layout | None) -> Layout | None:
    """The layout that a codec names with four bytes, zeros for none: `layout`, or an error."""
    if not any(named):
        return None
    if layout is None or layout.fingerprint != named:
        raise WrongCodec("the codec belongs to another model: its tensors have other shapes")
    return layout


def as_sent(number: float) -> float:
    """A parameter after its transport as float32: its shortest decimal, so that 0.01 stays 0.01."""
    return float(str(np.float32(number)))


def check_size(size: int) -> int:
    """Return the size if vectors of that many coordinates can be quantized."""
    if not 0 <= size < _MAX_SIZE:
        raise ValueError(f"a size must lie between 0 and {_MAX_SIZE - 1}, found {size}")
    return size


def non_finite(vector: Vector) -> NonFiniteVector:
    """The error for a vector with NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(vector))
    return NonFiniteVector(
        f"expected finite coordinates, found {bad.size} of {vector.size} NaN or infinite, the first "
        f"({vector[bad[0]]}) at {bad[0]}: lower the learning rate, or drop this update"
    )


def bad_scale(what: str) -> MalformedPayload:
    """The error for a step or scale that no encoder writes."""
    return MalformedPayload(f"expected finite, non-negative {what}: the payload is damaged or forged")


def seed_of(stream: Stream) -> bytes:
    """Eight bytes for the message. Both ends derive the same random numbers from them."""
    return (stream.words[0] ^ stream.words[1]).to_bytes(SEED_BYTES, "little")


def next_seed(seed: bytes) -> bytes:
    """The seed of the next attempt, if a draw has more error than promised."""
    return ((int.from_bytes(seed, "little") + _SEED_STEP) % 2**64).to_bytes(SEED_BYTES, "little")


def seed_word(seed: bytes) -> int:
    """The seed as int64, the only integer type that kernels are compiled for."""
    return int.from_bytes(seed, "little", signed=True)


def encode_spans(kernel: Callable[..., bool], vector: Vector, common: tuple[Any, ...], spans: int) -> None:
    """Call kernel(*common, first, last) over all spans of a vector. False from it means NaN or infinity."""
    if not all_spans(kernel, vector.size, common, spans):
        raise non_finite(vector)


def all_spans(kernel: Callable[..., bool], size: int, common: tuple[Any, ...], spans: int) -> bool:
    """Call kernel(*common, first, last) over all spans, on threads if that pays. Whether every call returns True."""
    if size < SERIAL_BELOW:
        return kernel(*common, 0, spans)
    return not _over_spans(lambda first, last: not kernel(*common, first, last), spans)


def apply_spans(kernel: Callable[..., int], size: int, common: tuple[Any, ...], spans: int) -> int:
    """Call kernel(*common, check, first, last) over all spans, on threads if that pays. Return the check's status."""
    if size < SERIAL_BELOW or _THREADS.get() == 1:
        return kernel(*common, True, 0, spans)
    status = kernel(*common, True, 0, 0)
    if status == OK:
        _over_spans(lambda first, last: kernel(*common, False, first, last), spans)
    return status


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use at most `count` threads inside the block, for benchmarks and for workers that share a machine."""
    before = set_threads(count)
    try:
        yield
    finally:
        _THREADS.reset(before)


def set_threads(count: int) -> Token[int]:
    """Use at most `count` threads from now on in this context."""
    return _THREADS.set(max(1, count))


@cache
def _pool(process: int, count: int) -> ThreadPoolExecutor:
    """The threads of this process. A forked child does not inherit the threads of its parent's pool."""
    return ThreadPoolExecutor(count, thread_name_prefix="qafel-kernel")


def _over_spans(work: Callable[[int, int], int], spans: int) -> int:
    """Run work(first, last) over all spans. Return the first status other than zero, else zero."""
    count = min(_THREADS.get(), spans)
    if count <= 1:
        return work(0, spans)
    pool = _pool(os.getpid(), count)
    pieces = min(spans, 4 * count)  # several per thread, so that a busy core does not delay the others
    edges = [spans * i // pieces for i in range(pieces + 1)]
    return next((status for status in pool.map(work, edges[:-1], edges[1:]) if status), 0)
