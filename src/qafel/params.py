"""A model's tensors as one flat float32 vector, and the layout that says where each tensor lies in it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError, NonFiniteVector

Vector: TypeAlias = NDArray[np.float32]


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


def require_finite(vector: Vector, what: str) -> None:
    """Raise `NonFiniteVector` if the vector holds a NaN or an infinity; `what` names it in the message."""
    if not np.isfinite(vector).all():
        raise NonFiniteVector(f"{what} holds a NaN or an infinity: training has diverged; lower the learning rates")
