"""[start]: the model that a run begins from, in place of its task's own initial one."""

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
"""A model: a safetensors file, all parameters in one vector, or tensors by name."""
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
        """The same with the digest of the file as it is now, unless one is stated."""
        sha256 = self.sha256
        if sha256 is None:
            with self._reading(), open_regular(Path(self.model)) as file:
                if not 0 < int.from_bytes(file.peek(8)[:8], "little") < _HEADER_BYTES:
                    raise DataError(f"{self.model} is not a whole safetensors file")
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return self.model_copy(update={"sha256": sha256})

    def read(self, layout: Layout) -> Vector:
        """The model. `DataError` if it is not the stated one, is damaged, or does not fit the task's `layout`."""
        with self._reading():
            data = read_regular(Path(self.model), 8 * layout.size + _HEADER_BYTES)  # be it of float64
        if self.sha256 not in (None, found := hashlib.sha256(data).hexdigest()):
            raise DataError(
                f"{self.model} is not the model that this run starts from: its sha256 is {found[:12]}…, "
                f"and should be {str(self.sha256)[:12]}…"
            )
        try:
            tensors = safetensors.numpy.load(data)
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.model} is not a whole safetensors file of floats: {error}") from None
        return model_of(tensors, layout, self.model)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(f"cannot read the model to start from, {self.model}: {error.strerror}") from None


def model_of(given: NDArray[Any] | Mapping[str, NDArray[Any]], layout: Layout, source: str) -> Vector:
    """The flat model of a vector or of tensors by name; `DataError` names the `source` of what does not fit."""
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
        raise DataError(f"{source} holds a NaN or an infinity: start from a model that did not diverge")
    return model


def _floats(values: object, source: str) -> Vector:
    array = np.asarray(values)
    if array.dtype.kind != "f":
        raise DataError(f"{source} holds {array.dtype}, and a model has floats")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and said to be
        return array.astype(np.float32)


def start_of(given: StartFrom | StartConfig, layout: Layout) -> tuple[dict[str, Any], Callable[[], Vector]]:
    """The model to start from: what the run directory states of it, and a function that reads it."""
    if isinstance(given, str | PathLike):
        given = StartConfig(model=str(Path(given)))
    if isinstance(given, StartConfig):
        pinned = given.pinned()
        return pinned.model_dump(), partial(pinned.read, layout)
    model = model_of(given, layout, "start_from")
    return {"model": "given as arrays", "sha256": hashlib.sha256(model.tobytes()).hexdigest()}, model.copy
