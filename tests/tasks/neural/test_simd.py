"""Vectors of lanes in compiled loops do lane by lane what NumPy does."""

import numpy as np
import pytest
from numba import njit

from qafel.tasks.neural.simd import LANES, choose, fma, load, spread, store


@njit
def _all_operations(a, b, c, out):
    x, y, z = load(a, 1), load(b, 2), load(c, 3)
    store(out, 0, x + y)
    store(out, LANES, x - y)
    store(out, 2 * LANES, x * y)
    store(out, 3 * LANES, fma(x, y, z))
    store(out, 4 * LANES, choose(x, y, z, spread(np.float32(7))))


@pytest.fixture
def numbers():
    generator = np.random.default_rng(0)
    return [generator.standard_normal(LANES + 3).astype(np.float32) for _ in range(3)]


def test_each_operation_equals_numpys(numbers):
    a, b, c = numbers
    x, y, z = a[1:][:LANES], b[2:][:LANES], c[3:][:LANES]
    out = np.empty(5 * LANES, np.float32)
    _all_operations(a, b, c, out)
    exact = x.astype(np.float64) * y + z
    np.testing.assert_array_equal(out[: 3 * LANES], np.concatenate([x + y, x - y, x * y]))
    np.testing.assert_allclose(out[3 * LANES : 4 * LANES], exact, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(out[4 * LANES :], np.where(x > y, z, np.float32(7)))


def test_a_comparison_with_nan_chooses_the_second(numbers):
    a, b, c = numbers
    a[:] = np.nan
    out = np.empty(5 * LANES, np.float32)
    _all_operations(a, b, c, out)
    np.testing.assert_array_equal(out[4 * LANES :], np.full(LANES, 7, np.float32))
