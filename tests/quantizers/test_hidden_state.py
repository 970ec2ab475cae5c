"""A hidden state that follows a moving model through a quantizer: x̂ ← x̂ + Q(x − x̂)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.quantizers import parse
from qafel.rng import Stream
from tests.quantizers.specs import QUICK, SPECS

SIZE = 113


def distances(spec: str, size: int, steps: int) -> np.ndarray:
    """‖x − x̂‖ after every step, in units of the length of one step of x."""
    quantizer = parse(spec)
    generator = np.random.default_rng(0)
    model, hidden = np.zeros(size, np.float32), np.zeros(size, np.float32)
    result = np.empty(steps)
    for t in range(steps):
        move = generator.standard_normal(size, dtype=np.float32)
        model += move / np.linalg.norm(move)
        quantizer.add_decoded_(hidden, quantizer.encode(model - hidden, Stream((t, 1))))
        result[t] = np.linalg.norm(model - hidden)
    return result


CONTRACTING = {"rand_k:0.1": "scaled:rand_k:0.1"}
QUICK_HERE = {CONTRACTING.get(spec, spec) for spec in QUICK if spec not in ("none", "trellis:2.5,states=32")}


def contracting() -> list[object]:
    """Every quantizer with 0 < δ < 1: one of each family by default, the others in `make test-slow`."""
    specs = [spec for spec in SPECS if 0 < parse(spec).delta(SIZE) < 1]
    assert set(specs) >= QUICK_HERE
    return [pytest.param(spec, marks=() if spec in QUICK_HERE else pytest.mark.slow) for spec in specs]


@pytest.mark.parametrize("steps", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", contracting())
def test_stays_within_its_bound(spec: str, steps: int) -> None:
    """Root mean square over time at most √(1−δ)/(1−√(1−δ)), which contraction implies; 10 % for chance."""
    delta = parse(spec).delta(SIZE)
    found = distances(spec, SIZE, steps)
    shrink = math.sqrt(1 - delta)
    assert math.sqrt((found**2).mean()) <= 1.1 * shrink / (1 - shrink) + 1e-4


def test_textbook_qsgd_explodes() -> None:
    """The same walk that every fit quantizer follows within a few steps' length."""
    found = distances("qsgd:4,norm=l2,bucket=none", 29_282, 400)
    assert found[3] > 30
    assert found[40] > 10_000
    assert found[-1] > 1e8


@pytest.mark.parametrize("spec", ["qsgd:4", "qsgd:4,bucket=256", "scaled:qsgd:4,norm=l2,bucket=none"])
def test_the_remedies_hold_at_the_same_size(spec: str) -> None:
    assert distances(spec, 29_282, 300).max() < 6
