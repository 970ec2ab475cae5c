"""The compiled products equal NumPy's, whatever the sizes, and a row's result depends on that row alone."""

import numpy as np
import pytest

from qafel.tasks.neural.compiled.lstm import PANEL, multiply, pack, set_outer_, set_product_


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def product(a, b, c):
    """A·B added to a copy of C, all of them row after row."""
    to = c.copy()
    set_product_(a, 0, a.shape[1], 1, len(a), pack(b), to, 0, to.shape[1], True)
    return to


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 33])
@pytest.mark.parametrize(("depth", "panels"), [(1, 1), (5, 3), (256, 2)])
def test_a_product_is_added(rows, depth, panels):
    a, b, c = random(rows, depth), random(depth, panels * PANEL), random(rows, panels * PANEL)
    exact = c + a.astype(np.float64) @ b
    np.testing.assert_allclose(product(a, b, c), exact, rtol=1e-5, atol=1e-6 * depth)


def test_what_was_there_before_is_not_added_where_a_product_is_set():
    a, b, c = random(9, 5), random(5, PANEL), np.full((9, PANEL), np.nan, np.float32)
    set_product_(a, 0, 5, 1, 9, pack(b), c, 0, PANEL, False)
    np.testing.assert_array_equal(c, product(a, b, np.zeros_like(c)))


def test_a_row_has_the_same_bits_alone_and_among_others():
    a, b, c = random(19, 64), random(64, 2 * PANEL), random(19, 2 * PANEL)
    together = product(a, b, c)
    alone = [product(a[r : r + 1], b, c[r : r + 1])[0] for r in range(19)]
    np.testing.assert_array_equal(together, alone)


def test_matrices_may_lie_anywhere_in_their_arrays():
    rows, depth = 6, 7
    wide, b, c = random(depth + 1, 20), random(depth, PANEL), np.zeros((rows + 2, PANEL + 3), np.float32)
    # The rows of A are columns 5 to 10 of `wide`, from its second row on; C begins in the third row of `c`.
    set_product_(wide, 20 + 5, 1, 20, rows, pack(b), c, 2 * (PANEL + 3), PANEL + 3, True)
    np.testing.assert_allclose(c[2:, :PANEL], wide[1:, 5:11].T @ b, rtol=1e-4, atol=1e-5)
    assert not c[:2].any()
    assert not c[:, PANEL:].any(), "nothing beyond the matrix is written"


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 7), (80, 8, 1024), (6, 100, PANEL)])
def test_matrices_of_any_size_are_multiplied(shape):
    rows, depth, columns = shape
    a, b = random(depth, rows).T, random(columns, depth).T
    found = multiply(a, b)
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-6 * depth)


def test_a_product_without_columns_does_nothing():
    c = random(3, 8)
    before = c.copy()
    set_product_(c, 0, 8, 1, 3, np.empty((0, 1, PANEL), np.float32), c, 0, 8, False)
    np.testing.assert_array_equal(c, before)


@pytest.mark.parametrize(("rows", "height", "panels"), [(1, 32, 1), (13, 64, 2), (256, 128, 1)])
def test_a_sum_of_outer_products_is_added(rows, height, panels):
    a, x, c = random(rows, height + 5), random(rows, panels * PANEL), random(height, panels * PANEL)
    exact = c + a[:, :height].astype(np.float64).T @ x
    set_outer_(a, height + 5, x, c, True)
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-6 * rows)
