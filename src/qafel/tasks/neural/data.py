"""Samples of a task: arrays, `Samples`, or any torch Dataset, read by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from qafel.errors import ConfigError
from qafel.parts import describe_error
from qafel.tasks.datasets.samples import Rows, as_samples

Collate: TypeAlias = Callable[[list[Any]], Any]
Batch: TypeAlias = tuple[Any, Any]
"""Inputs and targets: arrays, tensors, or tables and sequences of them."""


@final
class DatasetSamples:
    """A torch Dataset as samples. A row is `dataset[row]`; `collate` makes a batch from a list of rows."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self.dataset = dataset
        self._collate = collate or default_collate

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def labels(self) -> Any:
        """The target of each sample. Reads every row."""
        return np.array([_pair(self.dataset[row])[1] for row in range(len(self))])

    def batch(self, rows: Rows) -> Batch:
        return _pair(self._collate([self.dataset[row] for row in rows.tolist()]))


def _pair(batch: Any) -> Batch:
    """Return inputs and targets. A table has its targets under "labels", and is the input too."""
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            raise ConfigError(f'a batch as a table needs the targets as "labels"; it has {", ".join(map(str, batch))}')
        return batch, batch["labels"]
    if isinstance(batch, Sequence) and len(batch) == 2:
        return batch[0], batch[1]
    raise ConfigError(f"a sample is a pair of inputs and targets, or a table with labels; got {batch!r:.60}")


def samples_of(given: Any, collate: Collate | None, what: str) -> Any:
    """Return the samples of a task, from a pair of arrays, `Samples` or a Dataset. `what` names them in errors."""
    if isinstance(given, DataLoader):
        raise ConfigError(
            f"{what} is a DataLoader: pass its dataset, `loader.dataset`. The method's batch_size sets the size of "
            "batches, and each client shuffles its rows"
        )
    if isinstance(given, IterableDataset):
        raise ConfigError(f"{what} is an IterableDataset, without row numbers: pass a dataset with __getitem__")
    if isinstance(given, list) and len(given) == 2 and all(isinstance(part, np.ndarray | Tensor) for part in given):
        given = tuple(given)
    if isinstance(given, tuple):
        if len(given) != 2:
            raise ConfigError(f"{what} is a pair of arrays, inputs and targets; got {len(given)} values")
        return as_samples((_array(given[0]), _array(given[1])))
    if callable(getattr(given, "batch", None)) and hasattr(given, "labels"):
        return given
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, np.ndarray | Tensor):
        return DatasetSamples(given, collate)
    raise ConfigError(f"{what} is a pair of arrays, `Samples` or a torch Dataset; got {type(given).__name__}")


def _array(given: Any) -> Any:
    """Return a tensor as an array. NumPy does not have bfloat16."""
    if not isinstance(given, Tensor):
        return given
    return given.detach().cpu().to(torch.float32 if given.dtype == torch.bfloat16 else given.dtype).numpy()


def require_readable(samples: Any, row: int, device: torch.device, prepare: Any, what: str) -> None:
    """Raise `ConfigError` unless a sample can be read and becomes tensors."""
    try:
        found = samples.batch(np.array([row]))
        inputs, targets = found if isinstance(found, tuple) and len(found) == 2 else _pair(found)
        inputs, targets = prepare(inputs, device), to_device(targets, device)
    except ConfigError as error:
        raise ConfigError(f"{what}, row {row}: {error}") from None
    except Exception as error:
        hint = "return tensors, arrays or numbers, or pass `collate`"
        raise ConfigError(f"{what}, row {row}, cannot become a batch: {describe_error(error)}; {hint}") from error
    if (found := _first_other(inputs) or _first_other(targets)) is not None:
        raise ConfigError(f"{what}, row {row}, holds {found}: return tensors, arrays or numbers, or pass `collate`")


def _first_other(values: Any) -> str | None:
    """Return the type of the first value that is not a tensor."""
    inside = values.values() if isinstance(values, Mapping) else values if isinstance(values, list | tuple) else None
    if inside is None:
        return None if isinstance(values, Tensor) else type(values).__name__
    return next((found for value in inside if (found := _first_other(value))), None)


def to_device(values: Any, device: torch.device) -> Any:
    """Return arrays and tensors, also inside tables and sequences, as tensors. float64 becomes float32."""
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(values)
    if isinstance(values, Tensor):
        narrow = torch.float32 if values.dtype == torch.float64 else None
        return values.to(device, narrow, non_blocking=True)
    if isinstance(values, Mapping):
        return {key: to_device(value, device) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return tuple(to_device(value, device) for value in values)
    return values


def each_tensor(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change a tensor, or all tensors in a dict, list or tuple. Other values stay."""
    if isinstance(values, Tensor):
        return change(values)
    if type(values) is dict:
        return {key: each_tensor(value, change) for key, value in values.items()}
    if type(values) in (list, tuple):
        return type(values)(each_tensor(value, change) for value in values)
    return values


def float32(tensor: Tensor) -> Tensor:
    """Return real floating-point numbers as float32, and other tensors unchanged."""
    return tensor.float() if tensor.is_floating_point() else tensor


def whole_numbers(targets: Any) -> Any:
    """Return integer targets as int64, and others unchanged."""
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.is_complex():
        return targets
    return targets.long()
