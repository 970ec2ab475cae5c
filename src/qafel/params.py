"""A model's tensors as one flat float32 vector, and the layout that says where each tensor lies in it."""

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

# Variables, and the first of them by its bits: a constant that the compiler works out while subnormal numbers are
# flushed would stay wrong in the bytecode file.
_SUBNORMAL = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))[0]
_LARGE, _SMALLEST_NORMAL, _HALF = 2.0**1000, 2.0**-1022, 0.5
_ONE, _LESS_THAN_HALF, _MORE_THAN_HALF = 1.0, 2.0**-54, 1.5 * 2.0**-53  # halves of the distance to the next number


def check_arithmetic() -> None:
    """Raise unless this thread computes as every other end does: subnormal numbers kept, rounding to the nearest."""
    if not (_SUBNORMAL * _LARGE and _SMALLEST_NORMAL * _HALF):
        raise FloatingPointMode(
            "this process flushes subnormal numbers to zero, so its hidden state would differ from the other ends': "
            "a library built with -ffast-math or torch.set_flush_denormal(True) did this; leave it out"
        )
    if not _ONE + _LESS_THAN_HALF == _ONE < _ONE + _MORE_THAN_HALF:
        raise FloatingPointMode(
            "this process does not round to the nearest number, so its hidden state would differ from the other ends': "
            "a library changed the rounding mode (fesetround); leave it out"
        )


@final
@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors, in the order in which they lie in the flat vector."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """The layout of tensors with these names and shapes, in the order of the mapping."""
        return Layout(tuple((name, tuple(shape)) for name, shape in shapes.items()))

    @staticmethod
    def flat(size: int) -> Layout:
        """One tensor of `size` parameters: for models that are a vector already."""
        return Layout((("weights", (size,)),))

    @cached_property
    def size(self) -> int:
        """The number of parameters in all tensors."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def fingerprint(self) -> bytes:
        """Four bytes that differ between layouts; two ends that quantize per tensor must agree on it."""
        text = ";".join(f"{'x'.join(map(str, shape))}" for _, shape in self.tensors)
        return hashlib.blake2b(text.encode(), digest_size=4).digest()

    def split(self, vector: Vector) -> dict[str, NDArray[np.float32]]:
        """Views of a vector that holds all tensors, by name."""
        if vector.size != self.size:
            raise DataError(f"the layout has {self.size} parameters, the vector {vector.size}")
        views, start = {}, 0
        for name, shape in self.tensors:
            stop = start + math.prod(shape)
            views[name] = vector[start:stop].reshape(shape)
            start = stop
        return views

    def flatten(self, tensors: Mapping[str, NDArray[Any]]) -> Vector:
        """One new vector from tensors by name; the inverse of `split`."""
        flat = np.empty(self.size, np.float32)
        for name, view in self.split(flat).items():
            if name not in tensors:
                raise DataError(f"tensor {name!r} is missing; there are {', '.join(tensors) or 'none'}")
            if np.shape(tensors[name]) != view.shape:
                raise DataError(f"tensor {name!r} has shape {np.shape(tensors[name])}, the layout says {view.shape}")
            view[...] = tensors[name]
        return flat


def require_vector(found: object, size: int, what: str | Callable[[], str]) -> Vector:
    """What a user's part returned, if it is a vector of `size` floats; `PartFailed` names the part by `what`."""
    if type(found) is np.ndarray and found.dtype == _FLOAT32 and found.shape == (size,):
        return found
    if isinstance(found, np.ndarray) and np.issubdtype(found.dtype, np.floating) and found.shape == (size,):
        with np.errstate(over="ignore"):
            return found.astype(np.float32, copy=False)
    kind = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
    said = what if isinstance(what, str) else what()
    raise PartFailed(f"{said} returned {kind}, not a NumPy array of {size} floats")


def require_finite(vector: Vector, what: str) -> None:
    """Raise `NonFiniteVector` if the vector holds a NaN or an infinity; `what` names it in the message."""
    if not np.isfinite(vector).all():
        raise NonFiniteVector(f"{what} holds a NaN or an infinity: training has diverged; lower the learning rates")
