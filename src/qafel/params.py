"""A model's tensors as one flat float32 vector, and the layout of that vector."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError, FloatingPointMode, NonFiniteVector, PartFailed

Vector: TypeAlias = NDArray[np.float32]
_FLOAT32 = np.dtype(np.float32)

# These are variables, and the first is made from its bits. A constant expression would be stored wrong in the bytecode
# file if Python compiled it while subnormal numbers are flushed.
_SUBNORMAL = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))[0]
_LARGE, _SMALLEST_NORMAL, _HALF = 2.0**1000, 2.0**-1022, 0.5
_ONE, _LESS_THAN_HALF, _MORE_THAN_HALF = 1.0, 2.0**-54, 1.5 * 2.0**-53  # halves of the distance to the next number


def check_arithmetic() -> None:
    """Raise unless this thread keeps subnormal numbers and rounds to the nearest, as every other machine does."""
    if not (_SUBNORMAL * _LARGE and _SMALLEST_NORMAL * _HALF):
        raise FloatingPointMode(
            "this process flushes subnormal numbers to zero, so its hidden state would differ from other machines: "
            "remove the library built with -ffast-math, or torch.set_flush_denormal(True)"
        )
    if not _ONE + _LESS_THAN_HALF == _ONE < _ONE + _MORE_THAN_HALF:
        raise FloatingPointMode(
            "this process does not round to the nearest number, so its hidden state would differ from other machines: "
            "remove the library that changed the rounding mode (fesetround)"
        )


@final
@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors, in their order in the flat vector."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """The layout of tensors with these names and shapes, in the order of the mapping."""
        return Layout(tuple((name, tuple(shape)) for name, shape in shapes.items()))

    @staticmethod
    def flat(size: int) -> Layout:
        """One tensor of `size` parameters, for models that are vectors."""
        return Layout((("weights", (size,)),))

    @cached_property
    def size(self) -> int:
        """The number of parameters in all tensors."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def fingerprint(self) -> bytes:
        """Four bytes that differ between layouts. Both ends of a quantizer per tensor must have the same."""
        text = ";".join(f"{'x'.join(map(str, shape))}" for _, shape in self.tensors)
        return hashlib.blake2b(text.encode(), digest_size=4).digest()

    def split(self, vector: Vector) -> dict[str, NDArray[np.float32]]:
        """Views of a vector that holds all tensors, by name."""
        if vector.size != self.size:
            raise DataError(f"expected a vector of {self.size} parameters, found {vector.size}")
        views, start = {}, 0
        for name, shape in self.tensors:
            stop = start + math.prod(shape)
            views[name] = vector[start:stop].reshape(shape)
            start = stop
        return views

    def flatten(self, tensors: Mapping[str, NDArray[Any]]) -> Vector:
        """A new vector from tensors by name. The inverse of `split`."""
        flat = np.empty(self.size, np.float32)
        for name, view in self.split(flat).items():
            if name not in tensors:
                raise DataError(f"tensor {name!r} is missing; found {', '.join(tensors) or 'none'}")
            if np.shape(tensors[name]) != view.shape:
                raise DataError(f"tensor {name!r}: expected shape {view.shape}, found {np.shape(tensors[name])}")
            view[...] = tensors[name]
        return flat


def require_vector(found: object, size: int, what: str | Callable[[], str]) -> Vector:
    """Return the result of a custom part if it is a vector of `size` floats. `what` names the part in the error."""
    if type(found) is np.ndarray and found.dtype == _FLOAT32 and found.shape == (size,):
        return found
    if isinstance(found, np.ndarray) and np.issubdtype(found.dtype, np.floating) and found.shape == (size,):
        with np.errstate(over="ignore"):
            return found.astype(np.float32, copy=False)
    kind = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
    name = what if isinstance(what, str) else what()
    raise PartFailed(f"{name} returned {kind}, not a NumPy array of {size} floats")


def require_finite(vector: Vector, what: str) -> None:
    """Raise `NonFiniteVector` for NaN or infinity. `what` names the vector in the error."""
    if not np.isfinite(vector).all():
        raise NonFiniteVector(f"{what} contains NaN or infinity: training has diverged; lower the learning rates")
