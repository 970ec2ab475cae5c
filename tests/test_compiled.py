"""Vectors of lanes in compiled loops do lane by lane what NumPy does; a stale cache is dropped."""

import os

import numpy as np
import pytest
from numba import njit

from qafel.compiled import WIDE, below, choose, fma, forget_stale_kernels, load_wide, store, wide


@njit
def _all_operations(a, b, c, out):
    x, y, z = load_wide(a, 1), load_wide(b, 2), load_wide(c, 3)
    store(out, 0, x + y)
    store(out, WIDE, x - y)
    store(out, 2 * WIDE, x * y)
    store(out, 3 * WIDE, fma(x, y, z))
    store(out, 4 * WIDE, choose(below(y, x), z, wide(np.float32(7))))


@pytest.fixture
def numbers():
    generator = np.random.default_rng(0)
    return [generator.standard_normal(WIDE + 3).astype(np.float32) for _ in range(3)]


def test_each_operation_equals_numpys(numbers):
    a, b, c = numbers
    x, y, z = a[1:][:WIDE], b[2:][:WIDE], c[3:][:WIDE]
    out = np.empty(5 * WIDE, np.float32)
    _all_operations(a, b, c, out)
    exact = x.astype(np.float64) * y + z
    np.testing.assert_array_equal(out[: 3 * WIDE], np.concatenate([x + y, x - y, x * y]))
    np.testing.assert_allclose(out[3 * WIDE : 4 * WIDE], exact, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(out[4 * WIDE :], np.where(x > y, z, np.float32(7)))


def test_a_comparison_with_nan_chooses_the_second(numbers):
    a, b, c = numbers
    a[:] = np.nan
    out = np.empty(5 * WIDE, np.float32)
    _all_operations(a, b, c, out)
    np.testing.assert_array_equal(out[4 * WIDE :], np.full(WIDE, 7, np.float32))


def test_cached_kernels_older_than_any_source_of_their_folder_are_dropped(tmp_path):
    source, cache = tmp_path / "inner.py", tmp_path / "__pycache__"
    cache.mkdir()
    for name in ("old.nbi", "new.nbi"):
        (cache / name).touch()
    source.touch()
    now = source.stat().st_mtime + 10
    os.utime(source, (now, now))
    os.utime(cache / "new.nbi", (now + 1, now + 1))
    forget_stale_kernels(tmp_path)
    assert [index.name for index in cache.iterdir()] == ["new.nbi"]
