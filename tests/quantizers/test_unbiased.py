"""`rotated` and `trellis` are unbiased at every size and rate: below 10⁻⁴ of ‖x‖², so measured that more would show.

U = mean of ⟨Qᵢ(x) − x, Qⱼ(x) − x⟩ / ‖x‖² over independent draws i ≠ j estimates ‖E Q(x) − x‖² / ‖x‖² without the noise
of few draws (a U-statistic). Sums over sixteen batches take the place of single draws; the products of different
batches are uncorrelated, so that their spread gives the standard error.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from qafel import Constant, Evaluation, HiddenState, Layout, Limits, LocalTraining, Timing, method, simulate
from qafel.params import Vector
from qafel.quantizers import parse
from qafel.quantizers.rotated import LEVELS
from qafel.rng import Stream

MOST = 1e-4
STANDARD_ERROR = 1.5e-5
BATCHES = 16
DISTORTION = {1: 0.57, 2: 0.133, 3: 0.036, 4: 0.0096, 5: 0.0026, 6: 0.0007}
WIDTHS = sorted(LEVELS)
KINDS = ("gaussian", "heavy-tailed", "one", "nearly two", "nearly four", "constant")


def vector_of(kind: str, size: int) -> Vector:
    """Among them a few numbers that are nearly equal, the rest zero: after a plain Hadamard round most sums are zero
    but for the little by which they differ, and signs that follow that little are biased."""
    generator = np.random.default_rng(size)
    x = np.zeros(size)
    if kind == "nearly two":
        x[[0, size // 3]] = 1.0, -0.97
    elif kind == "nearly four":
        x[: min(size, 4)] = [1.0, 0.999, 0.9995, 1.009][:size]
    elif kind == "one":
        x[size // 2] = -2.0
    else:
        x[:] = {
            "gaussian": generator.standard_normal(size),
            "heavy-tailed": generator.standard_t(3, size),
            "constant": np.full(size, 0.7),
        }[kind]
    return x.astype(np.float32)


def draws_for(bits: int, size: int) -> int:
    """So many that the standard error comes to STANDARD_ERROR: √2·NMSE/√n over the draws, with n in one column."""
    rows = min(size, 256)
    spread = math.sqrt(2 * rows) * DISTORTION[bits] / max(32, rows)
    return max(8, math.ceil(spread / STANDARD_ERROR / BATCHES)) * BATCHES


def squared_bias(spec: str, x: Vector, draws: int) -> tuple[float, float]:
    """U and its standard error."""
    quantizer, generator = parse(spec), np.random.default_rng(0)
    sums = np.zeros((BATCHES, x.size))
    for batch in range(BATCHES):
        for words in generator.integers(0, 2**64, (draws // BATCHES, 2), np.uint64).tolist():
            sums[batch] += quantizer.decode(quantizer.encode(x, Stream(tuple(words))), x.size)
    errors = sums / (draws // BATCHES) - x
    products = (errors @ errors.T)[np.triu_indices(BATCHES, 1)] / float(np.vdot(x, x))
    return float(products.mean()), float(products.std(ddof=1) / math.sqrt(products.size))


@pytest.mark.parametrize("sizes", [(2, 33, 113), pytest.param((1, 8, 257, 610), marks=pytest.mark.slow)])
def test_bias_is_below_1e_4_at_one_bit(sizes: tuple[int, ...]) -> None:
    for size, kind in itertools.product(sizes, KINDS):
        found, error = squared_bias("rotated:1", vector_of(kind, size), draws_for(1, size))
        assert error < 2 * STANDARD_ERROR, "too few draws to see a bias of 1e-4"
        assert found < MOST, (size, kind)


@pytest.mark.parametrize("bits", [pytest.param(b, marks=() if b == 4 else pytest.mark.slow) for b in WIDTHS[1:]])
def test_bias_is_below_1e_4_at_every_width(bits: int) -> None:
    for size in (2, 20, 113, 500, 4097):
        for kind in KINDS:
            found, error = squared_bias(f"rotated:{bits}", vector_of(kind, size), draws_for(bits, size))
            assert error < 2 * STANDARD_ERROR
            assert found < MOST, (size, kind)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 600, 50))
def test_bias_is_below_1e_4_at_every_size(first: int) -> None:
    """Every size from 1 to 600 and every width, the kinds of vectors in turn; also the mean over fifty sizes."""
    everything = []
    for size in range(first, first + 50):
        for bits in WIDTHS:
            kind = KINDS[(size + bits) % len(KINDS)]
            found, error = squared_bias(f"rotated:{bits}", vector_of(kind, size), draws_for(bits, size))
            assert error < 2 * STANDARD_ERROR, (size, bits, kind)
            assert found < MOST, (size, bits, kind)
            everything.append(found)
    assert np.mean(everything) < MOST / 20


@pytest.mark.parametrize(
    ("rate", "distortion", "size"),
    [
        *[(2.5, 0.08, size) for size in (1024, 1500)],
        *[
            pytest.param(r, d, n, marks=pytest.mark.slow)
            for r, d in ((0.25, 6.0), (0.6, 3.0), (1, 1.2))
            for n in (1024, 1500)
        ],
    ],
)
def test_bias_of_trellis_is_below_1e_4(rate: float, distortion: float, size: int) -> None:
    """At 1500 the last window overlaps the first."""
    for kind in KINDS:
        draws = max(8, math.ceil(math.sqrt(2 / 1024) * distortion / STANDARD_ERROR / BATCHES)) * BATCHES
        found, error = squared_bias(f"trellis:{rate}", vector_of(kind, size), draws)
        assert error < 2 * STANDARD_ERROR
        assert found < MOST, kind


def test_the_test_would_see_a_bias() -> None:
    """A scale of 1.02 instead of 1 is a relative squared bias of 4e-4."""
    x = vector_of("gaussian", 113)
    found, error = squared_bias("rotated:1", x, 2000)
    quantizer = parse("rotated:1")
    shifted = [quantizer.decode(quantizer.encode_scaled(x, Stream((n, 1)), 1.02), 113) for n in range(2000)]
    draws = np.array(shifted, np.float64) - x
    total = draws.sum(0)
    energy = float(np.vdot(x, x))
    seen = (float(total @ total) - float((draws * draws).sum())) / (2000 * 1999) / energy
    assert seen - found > 2 * MOST
    assert seen > MOST + 4 * error


class ThreePoints:
    """Three clients, each with a point in the plane; the mean squared distance is least at the points' mean."""

    name, clients, layout = "three points", 3, Layout.flat(2)
    metric_name, metric_goal = "distance from the mean", "min"
    points = np.array([[1.0, 0.2], [-0.3, 0.9], [0.2, -0.8]])

    def samples(self, client: int) -> int:
        return 1

    def initial_model(self, stream: Stream) -> Vector:
        return np.array([3.0, 1.0], np.float32)

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        return (start.vector - local.lr * (start.vector - self.points[client])).astype(np.float32)

    def evaluate(self, model: Vector) -> dict[str, float]:
        return {"metric": float(np.linalg.norm(model - self.points.mean(0)))}


def test_three_clients_in_the_plane_meet_at_the_right_point() -> None:
    """One bit a coordinate from clients: the biased codec of old ended 0.14 away."""
    quantizers = {"client_quantizer": "rotated:1", "server_quantizer": "none"}
    algorithm = method("qafel", buffer_size=3, client_lr=0.02, local_steps=1, server_lr=1.0, **quantizers)
    rounds = [(float(second), client) for second in range(2000) for client in range(3)]
    result = simulate(
        ThreePoints(),
        algorithm,
        Timing(duration=Constant(0.5), arrivals=rounds),
        limits=Limits(server_steps=2000),
        evaluation=Evaluation(every=1),
    )
    assert result.history["metric"][-1000:].mean() < 0.02
