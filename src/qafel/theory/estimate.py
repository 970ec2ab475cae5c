"""Estimates L, σ_ℓ and B of a task from local steps: y₀ − y₁ = η_ℓ g(y₀), so a step with η_ℓ = 1 is a gradient.

The assumptions hold for every x. The estimates hold at the given points, x⁰ by default. They are maxima over the
sampled clients and points, so L and B are estimates from below.

Common parameters: `seed` of every draw, number of sampled `clients`, number of gradients per client (`repeats`),
`batch_size` of a gradient, and `points`, the models where gradients are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError
from qafel.params import Vector
from qafel.rng import Stream
from qafel.tasks.convex.synthetic import Constants
from qafel.tasks.protocol import Task, initial_model, train_from

Wide: TypeAlias = NDArray[np.float64]
Count: TypeAlias = int | None
"""A number; None: all."""
Points: TypeAlias = Sequence[Vector] | None
"""Models where a constant is measured; None: x⁰."""

SUBOPTIMALITY = "f(x) − f*"
_MANY, _FEW, _LARGE, _REPEATS = 64, 8, 4096, 16
_SETTLED = 1e-4


def gradient(task: Task, client: int, model: Vector, stream: Stream, batch_size: Count = None) -> Wide:
    """Return a stochastic gradient g_n(x) of a client at the `model` x, with the randomness of `stream`."""
    local = LocalTraining(lr=1.0, steps=1, batch_size=batch_size)
    step = model.astype(np.float64) - train_from(task, client, model, local, stream)
    return np.asarray(step, np.float64)


def estimate_smoothness(
    task: Task,
    *,
    seed: int = 0,
    clients: int = 8,
    iterations: int = 30,
    batch_size: Count = None,
    points: Points = None,
) -> float:
    """Estimate L by `iterations` of v ↦ (g(x + εv) − g(x − εv)) / 2ε. Both sides use one stream, so noise cancels."""
    largest = 0.0
    for number, point in enumerate(_points(task, seed, points)):
        reach = 1e-2 * max(1.0, float(np.linalg.norm(point)))
        for client in _sampled(task, clients, seed):
            stream = Stream.named(seed, "smoothness-gradient", client, number)
            direction = Stream.named(seed, "smoothness-start", client, number).generator().normal(size=point.size)
            curvature = -1.0
            for _ in range(iterations):
                shift = reach * direction / np.linalg.norm(direction)
                ahead, behind = (point + shift).astype(np.float32), (point - shift).astype(np.float32)
                width = float(np.linalg.norm(ahead.astype(np.float64) - behind))
                direction = gradient(task, client, ahead, stream, batch_size)
                direction -= gradient(task, client, behind, stream, batch_size)
                before, curvature = curvature, float(np.linalg.norm(direction)) / width
                largest = max(largest, curvature)
                if curvature == 0 or abs(curvature - before) <= _SETTLED * curvature:
                    break
    return largest


def estimate_gradient_noise(
    task: Task, *, seed: int = 0, clients: int = 8, repeats: int = 32, batch_size: Count = None, points: Points = None
) -> float:
    """Estimate σ_ℓ, the root of the largest sample variance Σ‖g − ḡ‖²/(R − 1) of a client's R gradients."""
    return float(np.sqrt(max(_variances_and_distances(task, seed, clients, repeats, batch_size, points)[0])))


def estimate_heterogeneity(
    task: Task, *, seed: int = 0, clients: int = 64, repeats: int = 32, batch_size: Count = None, points: Points = None
) -> float:
    """Estimate B, the largest ‖∇F_n(x) − ∇f(x)‖² over clients, corrected for noise. ∇f is their mean."""
    return max(0.0, *_variances_and_distances(task, seed, clients, repeats, batch_size, points)[1])


def estimate_constants(
    task: Task, *, seed: int = 0, initial_gap: float | None = None, batch_size: Count = None
) -> Constants:
    """Estimate all constants of the theorem at x⁰, on the clients that `sampled_clients` states.

    initial_gap   f(x⁰) − f*; by default the task's metric if it is that, else its loss (f* ≥ 0)
    """
    counts = sampled_clients(task)
    variances, distances = _variances_and_distances(task, seed, counts["heterogeneity"], _REPEATS, batch_size, None)
    return Constants(
        estimate_smoothness(task, seed=seed, clients=counts["smoothness"], batch_size=batch_size),
        float(np.sqrt(max(variances))),
        max(0.0, *distances),
        _initial_gap(task, seed) if initial_gap is None else initial_gap,
    )


def sampled_clients(task: Task) -> dict[str, int]:
    """Return the number of clients that `estimate_constants` samples: 64, and 8 for L of a large model."""
    many = min(task.clients, _MANY)
    few = min(task.clients, _FEW) if task.layout.size > _LARGE else many
    return {"smoothness": few, "gradient_noise": many, "heterogeneity": many}


def _variances_and_distances(
    task: Task, seed: int, clients: int, repeats: int, batch_size: Count, points: Points
) -> tuple[list[float], list[float]]:
    """Return the gradient variance of each client at each point, and its squared distance from the mean."""
    if repeats < 2:
        raise ConfigError(f"a variance needs at least two gradients per client, got repeats = {repeats}")
    variances, distances = [], []
    for number, point in enumerate(_points(task, seed, points)):
        means, noises = [], []
        for client in _sampled(task, clients, seed):
            mean, squares = np.zeros(point.size), 0.0
            for repeat in range(repeats):
                stream = Stream.named(seed, "gradient-noise", client, number * repeats + repeat)
                sample = gradient(task, client, point, stream, batch_size)
                before = sample - mean
                mean += before / (repeat + 1)
                squares += float(before @ (sample - mean))
            means.append(mean)
            noises.append(squares / (repeats - 1))
        centre, count = np.mean(means, axis=0), len(means)
        # The mean includes the client: the distance has (1 − 2/n) of its noise and 1/n of the average noise.
        inflation = [((1 - 2 / count) * noise + float(np.mean(noises)) / count) / repeats for noise in noises]
        variances += noises
        distances += [
            float((mean - centre) @ (mean - centre)) - excess for mean, excess in zip(means, inflation, strict=True)
        ]
    return variances, distances


def _points(task: Task, seed: int, points: Points = None) -> Sequence[Vector]:
    return [initial_model(task, seed)] if points is None else points


def _sampled(task: Task, wanted: int, seed: int) -> list[int]:
    """Return clients drawn without replacement, or all."""
    if wanted < 1:
        raise ConfigError(f"the number of sampled clients must be at least one, got {wanted}")
    if wanted >= task.clients:
        return list(range(task.clients))
    chosen = Stream.named(seed, "sampled-clients").generator().choice(task.clients, wanted, replace=False)
    return sorted(int(client) for client in chosen)


def _initial_gap(task: Task, seed: int) -> float:
    figures = task.evaluate(*_points(task, seed))
    name = "metric" if task.metric_name == SUBOPTIMALITY else "loss"
    if name in figures:
        return figures[name]
    raise ConfigError(f"{task.name} measures neither f(x) − f* nor a loss: pass f(x⁰) − f* as initial_gap")
