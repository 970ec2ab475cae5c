"""[start]: the model that a run starts from, in place of the task's initial model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import Field

from qafel.errors import DataError
from qafel.files import open_regular, read_regular
from qafel.params import Layout, Vector
from qafel.parts import Section

StartFrom: TypeAlias = str | PathLike[str] | NDArray[Any] | Mapping[str, NDArray[Any]]
"""A model: a safetensors file, one vector of all parameters, or tensors by name."""
_HEADER_BYTES = 16 << 20  # with the names of all tensors


class StartConfig(Section):
    """A safetensors file such as the model.safetensors of another run.

    `sha256` is part of the run's identity. The path is not.

    model   path of the file
    sha256  SHA-256 of the file; none: any content. A run directory states it
    """

    model: str
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")

    def pinned(self) -> StartConfig:
        """Add the digest of the file, unless one is stated."""
        sha256 = self.sha256
        if sha256 is None:
            with self._reading(), open_regular(Path(self.model)) as file:
                if not 0 < int.from_bytes(file.peek(8)[:8], "little") < _HEADER_BYTES:
                    raise DataError(f"{self.model} is not a complete safetensors file")
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return self.model_copy(update={"sha256": sha256})

    def read(self, layout: Layout) -> Vector:
        """Read the model. Raises `DataError` if it is damaged, another file, or does not fit the `layout`."""
        with self._reading():
            data = read_regular(Path(self.model), 8 * layout.size + _HEADER_BYTES)  # float64 is the largest type
        if self.sha256 not in (None, found := hashlib.sha256(data).hexdigest()):
            raise DataError(
                f"{self.model} is not the model that this run starts from: expected sha256 "
                f"{str(self.sha256)[:12]}…, found {found[:12]}…"
            )
        try:
            tensors = safetensors.numpy.load(data)
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.model} is not a complete safetensors file of floats: {error}") from None
        return model_of(tensors, layout, self.model)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(f"cannot read the model to start from, {self.model}: {error.strerror}") from None


def model_of(given: NDArray[Any] | Mapping[str, NDArray[Any]], layout: Layout, source: str) -> Vector:
    """The flat model of a vector or of named tensors. Errors name the `source`."""
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in dict(layout.tensors)]:
            known = ", ".join(name for name, _ in layout.tensors)
            raise DataError(f"{source} does not fit the task: it has a tensor {unknown[0]!r}, the task's are {known}")
        tensors = {name: _floats(tensor, source) for name, tensor in given.items()}
    else:
        flat = _floats(given, source)
        if flat.shape != (layout.size,):
            raise DataError(
                f"{source} does not fit the task: it has shape {flat.shape}, the task has {layout.size} parameters"
            )
        tensors = layout.split(flat)
    try:
        model = layout.flatten(tensors)
    except DataError as error:
        raise DataError(f"{source} does not fit the task: {error}") from None
    if not np.isfinite(model).all():
        raise DataError(f"{source} holds a NaN or an infinity: use a model that did not diverge")
    return model


def _floats(values: object, source: str) -> Vector:
    array = np.asarray(values)
    if array.dtype.kind != "f":
        raise DataError(f"{source} holds {array.dtype}; a model holds floats")
    with np.errstate(over="ignore"):  # overflow becomes infinite, which `model_of` refuses
        return array.astype(np.float32)


def start_of(given: StartFrom | StartConfig, layout: Layout) -> tuple[dict[str, Any], Callable[[], Vector]]:
    """The start model: its entry in the run directory, and a function that reads it."""
    if isinstance(given, str | PathLike):
        given = StartConfig(model=str(Path(given)))
    if isinstance(given, StartConfig):
        pinned = given.pinned()
        return pinned.model_dump(), partial(pinned.read, layout)
    model = model_of(given, layout, "start_from")
    return {"model": "given as arrays", "sha256": hashlib.sha256(model.tobytes()).hexdigest()}, model.copy
