"""Problems with known optimum and constants, for any number of clients and parameters.

A client's data is computed from its number when it trains, so memory does not grow with the number of clients. Clients
form pairs whose gradients deviate from the mean in opposite directions: the optimum is exact. The last client of an odd
number does not deviate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.algorithm import HiddenState, LocalTraining
from qafel.errors import ConfigError
from qafel.params import Layout, Vector
from qafel.rng import Stream
from qafel.tasks import convex
from qafel.tasks.convex.steps import NO_NOISE, Data, Matrix, logistic_steps, steps_of, terms_of
from qafel.tasks.protocol import Goal

EVALUATED_CLIENTS = 256


@final
@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of the paper's theorem: exact for the quadratic, upper bounds for logistic regression."""

    smoothness: float
    """L"""
    gradient_noise: float
    """σ_ℓ"""
    heterogeneity: float
    """B, the squared distance of a client's gradient from the mean"""
    initial_gap: float
    """f(x⁰) − f*"""


class _Synthetic:
    """Common parts: clients whose gradients deviate from the mean by √B, and noise with E‖noise‖² = σ²."""

    metric_name = "f(x) − f*"
    metric_goal: Goal = "min"
    takes_correction = True

    def __init__(self, clients: int, dimension: int, heterogeneity: float, noise: float, seed: int) -> None:
        if clients < 1 or dimension < 1:
            raise ConfigError(f"at least one client and one parameter are needed, got {clients} and {dimension}")
        if heterogeneity < 0 or noise < 0:
            raise ConfigError(f"heterogeneity and noise must not be negative, got {heterogeneity} and {noise}")
        self.clients, self.seed = clients, seed
        self.layout = Layout.flat(dimension)
        self._deviation, self._noise = np.float32(np.sqrt(heterogeneity)), noise

    def _unit_vector(self, purpose: str, *numbers: int) -> Vector:
        """Return a uniformly random direction."""
        direction = Stream.named(self.seed, purpose, *numbers).generator().standard_normal(self.layout.size)
        length = math.sqrt(np.add.reduce(direction * direction))  # BLAS's sum depends on the number of threads
        return (direction / length).astype(np.float32)

    def _deviation_of(self, client: int) -> Vector:
        """Return a vector of length √B, opposite within a pair, and zero for a client without a partner."""
        if client == self.clients - 1 and self.clients % 2:
            return np.zeros(self.layout.size, np.float32)
        direction = self._unit_vector("deviation", client // 2)
        return (direction if client % 2 == 0 else -direction) * self._deviation

    def _gradient_noise(self, steps: int, stream: Stream) -> Matrix:
        """Return Gaussian noise for the gradient of each step; empty if σ is zero."""
        if not self._noise:
            return NO_NOISE
        noise = stream.generator().standard_normal((steps, self.layout.size), dtype=np.float32)
        noise *= np.float32(self._noise / np.sqrt(self.layout.size))
        return noise


@final
class Quadratic(_Synthetic):
    """Fₙ(x) = ½xᵀAx − ⟨sₙ, x⟩ with A diagonal, eigenvalues from μ to L, ‖sₙ‖² = B and Σsₙ = 0: x* = 0.

    Gradients have Gaussian noise. The metric is f(x) − f* = ½xᵀAx.

    heterogeneity      B, the squared deviation of a client's gradient from the mean
    noise              σ_ℓ, the root of the mean squared norm of the gradient noise
    smoothness         L, the largest eigenvalue of A
    strong_convexity   μ, the smallest eigenvalue of A
    seed               the seed of the clients' deviations
    """

    name = "quadratic"

    def __init__(
        self,
        clients: int = 100,
        dimension: int = 100,
        *,
        heterogeneity: float = 1.0,
        noise: float = 1.0,
        smoothness: float = 1.0,
        strong_convexity: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, dimension, heterogeneity, noise, seed)
        if not 0 < strong_convexity <= smoothness:
            raise ConfigError(f"expected 0 < strong_convexity ≤ smoothness, got {strong_convexity} and {smoothness}")
        self._eigenvalues = np.geomspace(strong_convexity, smoothness, dimension).astype(np.float32)
        self.optimum: Vector = np.zeros(dimension, np.float32)
        start = self.initial_model(Stream.named(seed, "unused"))
        self.constants = Constants(smoothness, noise, heterogeneity, self.evaluate(start)["metric"])

    def samples(self, client: int) -> int:
        return 1

    def initial_model(self, stream: Stream) -> Vector:
        """Return a point at distance one from the optimum, the same for every seed."""
        size = self.layout.size
        return np.full(size, 1 / np.sqrt(size), np.float32)

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        steps = steps_of(local, self.name)
        shift, noise = self._deviation_of(client), self._gradient_noise(steps, stream)
        trained: Vector = convex.kernels.train_quadratic(
            self._eigenvalues, shift, start.vector, noise, *terms_of(local, start.vector, steps)
        )
        return trained

    def evaluate(self, model: Vector) -> dict[str, float]:
        wide = model.astype(np.float64)
        gradient = self._eigenvalues * wide
        return {"metric": float(0.5 * wide @ gradient), "gradient_norm_squared": float(gradient @ gradient)}


@final
class SyntheticLogistic(_Synthetic):
    """Fₙ(x) = mean logistic loss over rows of norm one + λ/2‖x‖² + ⟨lₙ, x⟩, with lₙ chosen so that x* is known.

    At x*, the gradient of Fₙ is a deviation of squared norm B₀, opposite in pairs. The metric is f(x) − f* over the
    first 256 clients, whose problem has the same optimum.

    rows            samples of each client
    heterogeneity   B₀, the squared norm of a client's gradient at x*
    noise           σ_ℓ, the root of the mean squared norm of the gradient noise
    l2              λ, the regularisation
    seed            the seed of data and deviations
    """

    name = "logistic"

    def __init__(
        self,
        clients: int = 100,
        dimension: int = 100,
        *,
        rows: int = 20,
        heterogeneity: float = 0.01,
        noise: float = 0.0,
        l2: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, dimension, heterogeneity, noise, seed)
        if rows < 1 or l2 <= 0:
            raise ConfigError(f"rows must be at least one and l2 positive, got {rows} and {l2}")
        self._rows, self._l2 = rows, l2
        self.optimum: Vector = 3 * self._unit_vector("optimum")
        few = min(clients, EVALUATED_CLIENTS) // 2 * 2 or 1
        parts = [self._data(client) for client in range(few)]
        self._columns = np.ascontiguousarray(np.vstack([rows for rows, _, _ in parts]).T)
        self._targets = np.concatenate([targets for _, _, targets in parts])
        linear = [self._linear_term(client, data) for client, data in enumerate(parts)]
        self._linear = np.mean(linear, axis=0, dtype=np.float64)
        self._lowest = self._loss(self.optimum)
        gap = self.evaluate(self.initial_model(Stream.named(seed, "unused")))["metric"]
        # A client's data gradient is in the unit ball: at x and at x*, its distance from the mean is at most 2.
        self.constants = Constants(0.25 + l2, noise, float((4 + 2 * self._deviation) ** 2), gap)

    def samples(self, client: int) -> int:
        return self._rows

    def initial_model(self, stream: Stream) -> Vector:
        return np.zeros(self.layout.size, np.float32)

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        steps, data = steps_of(local, self.name), self._data(client)
        linear, noise = self._linear_term(client, data), self._gradient_noise(steps, stream)
        return logistic_steps(data, start.vector, local, steps, self._l2, linear, noise)

    def evaluate(self, model: Vector) -> dict[str, float]:
        return {"metric": self._loss(model) - self._lowest}

    def _loss(self, model: Vector) -> float:
        loss = convex.kernels.mean_loss(self._columns, self._targets, model, self._l2)
        return float(loss + self._linear @ model.astype(np.float64))

    def _data(self, client: int) -> Data:
        generator = Stream.named(self.seed, "data", client).generator()
        rows = generator.standard_normal((self._rows, self.layout.size), dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows, np.ascontiguousarray(rows.T), generator.integers(2, size=self._rows).astype(np.float32)

    def _linear_term(self, client: int, data: Data) -> Vector:
        """Return the term that makes the client's gradient at x* its deviation. A step of size 1 is the gradient."""
        step = logistic_steps(data, self.optimum, LocalTraining(1.0, steps=1), 1, self._l2)
        return np.asarray(self._deviation_of(client) - (self.optimum - step))
