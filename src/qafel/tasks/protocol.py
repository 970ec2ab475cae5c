"""What a task is: data that clients hold, a model as a flat vector, local training, and a measure of success."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from qafel.algorithm import HiddenState, LocalTraining, Trained
from qafel.algorithm.client import as_trained
from qafel.errors import PartFailed
from qafel.params import Layout, Vector, require_vector
from qafel.parts import blaming
from qafel.rng import Stream
from qafel.text import path_of

Goal: TypeAlias = Literal["min", "max"]
"""Whether a metric should become small or large."""


class Task(Protocol):
    """A problem to learn. Implementations hold no random state: what varies comes from the stream."""

    @property
    def name(self) -> str: ...

    @property
    def clients(self) -> int:
        """How many clients there are; they are numbered from 0."""

    @property
    def layout(self) -> Layout:
        """The model's tensors in its flat vector."""

    @property
    def metric_name(self) -> str: ...

    @property
    def metric_goal(self) -> Goal:
        """Whether the metric should become small or large."""

    def samples(self, client: int) -> int:
        """How many samples the client holds."""

    def initial_model(self, stream: Stream) -> Vector: ...

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
        """The client's model after its local steps from `start.vector`, which is not changed.

        `start.version` is the number of server steps before it. A task with `takes_correction = True` adds
        `local.correction`, if there is one, to every gradient.
        """

    def evaluate(self, model: Vector) -> dict[str, float]:
        """Figures for a model; "metric" is the one that counts."""


def train_from(task: Task, client: int, model: Vector, local: LocalTraining, stream: Stream) -> Vector:
    """A client's model after local training from a `model` that belongs to no run."""
    with blaming(task, "train"):
        found = task.train(client, HiddenState.of(model.copy()), local, stream)
    return as_trained(found, model.size, f"{path_of(task)}.train").model


@runtime_checkable
class Divisible(Protocol):
    """A task whose evaluation workers can share: parts made anywhere add up to the exact bits of the whole.

    See docs/decisions/evaluation-is-shared.md.
    """

    @property
    def evaluation_parts(self) -> int: ...

    def evaluate_part(self, model: Vector, part: int) -> tuple[float, ...]:
        """The sums over one part of the test samples."""

    def combine(self, parts: Sequence[tuple[float, ...]]) -> dict[str, float]:
        """What `evaluate` returns, from the sums of all parts in their order."""


def initial_model(task: Task, seed: int) -> Vector:
    """x⁰ as the task makes it for this seed; `PartFailed` if it makes none."""
    with blaming(task, "initial_model"):
        found = task.initial_model(Stream.named(seed, "initial-model"))
    return require_vector(found, task.layout.size, f"{path_of(task)}.initial_model")


def evaluated(task: Task, model: Vector) -> dict[str, float]:
    """The figures that the task measures of a model; `PartFailed` if there is no metric among them."""
    with blaming(task, "evaluate"):
        found: object = task.evaluate(model)
    return _figures(task, found)


def evaluated_parts(task: Divisible, model: Vector, parts: Iterable[int]) -> list[tuple[float, ...]]:
    """The sums of some parts of an evaluation."""
    with blaming(task, "evaluate_part"):
        return [task.evaluate_part(model, part) for part in parts]


def combined(task: Divisible, sums: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """The figures of all parts together, as `evaluated` returns them."""
    with blaming(task, "combine"):
        found: object = task.combine(sums)
    return _figures(task, found)


def _figures(task: object, found: object) -> dict[str, float]:
    wanted = f'{path_of(task)}.evaluate must return numbers by name, with the one that counts as "metric"'
    if not isinstance(found, Mapping) or "metric" not in found:
        said = f"the names {', '.join(map(str, found)) or '(none)'}" if isinstance(found, Mapping) else repr(found)
        raise PartFailed(f"{wanted}; it returned {said}")
    figures = {}
    for name, figure in found.items():
        try:
            figures[str(name)] = figure if isinstance(figure, int | float) else float(figure)
        except (TypeError, ValueError):
            raise PartFailed(f"{wanted}; its {name} is {figure!r}") from None
    return figures


def sample_weights(task: Task) -> list[float]:
    """Each client's samples over the mean, so that the weights average to one."""
    with blaming(task, "samples"):
        samples = np.array([task.samples(client) for client in range(task.clients)], np.float64)
    weights: list[float] = (samples / samples.mean()).tolist()
    return weights
