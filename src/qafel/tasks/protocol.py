"""The protocol of a task: data of clients, a model as a flat vector, local training and a metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, final, runtime_checkable

import numpy as np

from qafel.algorithm import HiddenState, LocalTraining, Trained
from qafel.algorithm.client import as_trained
from qafel.errors import DataError, PartFailed
from qafel.params import Layout, Vector, require_vector
from qafel.parts import errors_of
from qafel.rng import Stream
from qafel.text import path_of

Goal: TypeAlias = Literal["min", "max"]
"""The better direction of a metric."""


class Task(Protocol):
    """A problem to learn. Implementations do not keep random state: all randomness comes from the stream."""

    @property
    def name(self) -> str: ...

    @property
    def clients(self) -> int:
        """The number of clients. Clients are numbered from 0."""

    @property
    def layout(self) -> Layout:
        """The model's tensors in its flat vector."""

    @property
    def metric_name(self) -> str: ...

    @property
    def metric_goal(self) -> Goal:
        """The better direction of the metric: "min" or "max"."""

    def samples(self, client: int) -> int:
        """Return the number of samples of a client."""

    def initial_model(self, stream: Stream) -> Vector: ...

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
        """Return the client's model after its local steps from `start.vector`, which must not change.

        `start.version` counts the server steps before it. A task with `takes_correction = True` adds
        `local.correction` to every gradient, unless it is None.
        """

    def evaluate(self, model: Vector) -> dict[str, float]:
        """Return figures of a model by name. "metric" is the main one."""


def train_from(task: Task, client: int, model: Vector, local: LocalTraining, stream: Stream) -> Vector:
    """Return a client's model after local training from any `model`."""
    with errors_of(task, "train"):
        found = task.train(client, HiddenState.of(model.copy()), local, stream)
    return as_trained(found, model.size, f"{path_of(task)}.train").model


@final
@dataclass(frozen=True)
class ClientTraining:
    """The training function of one client of a task, for `qafel.deployment.run_client`."""

    task: Task
    client: int

    def __call__(self, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
        return self.task.train(self.client, start, local, stream)


def digest_of(task: object) -> str:
    """Return the digest of what a task has besides its vector, such as frozen parameters; empty if nothing."""
    return str(getattr(task, "digest", None) or "")


def require_digest(task: Task, expected: str) -> None:
    """Raise `DataError` if the frozen parameters of the task have another digest."""
    if (found := digest_of(task)) != expected:
        raise DataError(
            f"the frozen parameters of {task.name} are not those of the run: expected sha256 "
            f"{expected[:12] or 'none'}, found {found[:12] or 'none'}. Use the same pretrained model"
        )


@runtime_checkable
class Divisible(Protocol):
    """A task whose evaluation can be shared among workers. Its parts add up to the exact bits of the whole."""

    @property
    def evaluation_parts(self) -> int: ...

    def evaluate_part(self, model: Vector, part: int) -> tuple[Any, ...]:
        """Return the sums over one part of the test samples."""

    def combine(self, parts: Sequence[tuple[Any, ...]]) -> dict[str, float]:
        """Return the result of `evaluate` from the sums of all parts, in order."""


def is_divisible(task: object) -> TypeGuard[Divisible]:
    """Return whether workers may share an evaluation: not if a subclass replaces `evaluate` alone."""
    kinds = type(task).__mro__
    whole, part = (
        next((at for at, kind in enumerate(kinds) if name in vars(kind)), len(kinds))
        for name in ("evaluate", "evaluate_part")
    )
    return isinstance(task, Divisible) and whole >= part


def initial_model(task: Task, seed: int) -> Vector:
    """Return the task's x⁰ for this seed. Raises `PartFailed` if it is not a valid vector."""
    with errors_of(task, "initial_model"):
        found = task.initial_model(Stream.named(seed, "initial-model"))
    return require_vector(found, task.layout.size, f"{path_of(task)}.initial_model")


def evaluated(task: Task, model: Vector) -> dict[str, float]:
    """Return the figures of a model. Raises `PartFailed` if the metric is missing."""
    with errors_of(task, "evaluate"):
        found: object = task.evaluate(model)
    return _figures(task, found)


def evaluated_parts(task: Divisible, model: Vector, parts: Iterable[int]) -> list[tuple[Any, ...]]:
    """Return the sums of some parts of an evaluation."""
    with errors_of(task, "evaluate_part"):
        return [task.evaluate_part(model, part) for part in parts]


def combined(task: Divisible, sums: Sequence[tuple[Any, ...]]) -> dict[str, float]:
    """Return the figures of all parts together, as `evaluated` does."""
    with errors_of(task, "combine"):
        found: object = task.combine(sums)
    return _figures(task, found)


def _figures(task: object, found: object) -> dict[str, float]:
    wanted = f'{path_of(task)}.evaluate must return numbers by name, the main one as "metric"'
    if not isinstance(found, Mapping) or "metric" not in found:
        names = f"the names {', '.join(map(str, found)) or '(none)'}" if isinstance(found, Mapping) else repr(found)
        raise PartFailed(f"{wanted}; it returned {names}")
    figures = {}
    for name, figure in found.items():
        try:
            figures[str(name)] = figure if isinstance(figure, int | float) else float(figure)
        except (TypeError, ValueError):
            raise PartFailed(f"{wanted}; its {name} is {figure!r}") from None
    return figures


def sample_weights(task: Task) -> list[float]:
    """Return the number of samples of each client over the mean. The weights average to one."""
    with errors_of(task, "samples"):
        samples = np.array([task.samples(client) for client in range(task.clients)], np.float64)
    weights: list[float] = (samples / samples.mean()).tolist()
    return weights
