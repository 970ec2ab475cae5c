"""Matrix products as rows of tiles, C = A·B or C += A·B, float32, where B is packed.

A packed matrix is cut into panels of `PANEL` columns, each of which lies in memory row after row. What is added to a
number of C is one chain of multiply-adds in the order of the inner index, whatever the sizes and the processor's
registers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from qafel.tasks.neural.simd import KERNEL, LANES, ROWS, tile

PANEL = LANES
"""How many columns a panel has."""


@njit(**KERNEL)
def pack(b):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A matrix as panels of its columns, (panels, rows, columns of a panel); zeros fill the last."""
    rows, columns = b.shape
    panels = np.empty((-(-columns // PANEL), rows, PANEL), np.float32)
    for p in range(len(panels)):
        some = min(PANEL, columns - p * PANEL)
        for k in range(rows):
            panels[p, k, :some] = b[k, p * PANEL : p * PANEL + some]
            panels[p, k, some:] = 0
    return panels


@njit(**KERNEL)
def multiply(a, b):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A·B of any sizes, by the same tile: a library's sums may depend on where matrices lie in memory."""
    panels = pack(b)
    c = np.empty((len(a), PANEL * len(panels)), np.float32)
    set_product_(np.ascontiguousarray(a), 0, a.shape[1], 1, len(a), panels, c, 0, c.shape[1], False)
    return c[:, : b.shape[1]]


@njit(**KERNEL)
def set_product_(a, a_at, a_row, a_column, rows, b, c, c_at, c_row, add):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set `rows` rows of C to A·B, or `add` it. `*_at` is where a matrix begins in its array, `*_row` how far apart its
    rows are.

    Panels are the outer loop: B may be larger than the cache, and A, a batch, stays there. Tiles are of one height, but
    for the last: ten rows are five and five, as few rows make poor use of the registers.
    """
    panels, depth, width = b.shape
    tiles = -(-rows // ROWS)
    height = -(-rows // tiles)
    for p in range(panels):
        for r in range(0, rows, height):
            from_a, to, some = a_at + r * a_row, c_at + r * c_row + p * width, min(height, rows - r)
            tile(a, from_a, a_row, a_column, b, p * depth * width, width, c, to, c_row, some, depth, add)


@njit(**KERNEL)
def set_outer_(a, a_row, x, c, add):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set C to Aᵀ·X, or `add` it: the sum over X's rows of the products with the same row of A.

    C's rows are A's columns, a multiple of `ROWS`; they are the outer loop, as few of A's columns stay in the cache.
    """
    (height, width), panels = c.shape, pack(x)
    depth = len(x)
    for r in range(0, height, ROWS):
        for p in range(len(panels)):
            to = r * width + p * PANEL
            tile(a, r, 1, a_row, panels, p * depth * PANEL, PANEL, c, to, width, ROWS, depth, add)
