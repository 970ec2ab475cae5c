"""3×3 convolutions of 32 channels by Winograd's F(4×4, 3×3), forward and backward, in compiled loops.

A tile of 4×4 outputs is Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A for 6×6 inputs d and a 3×3 kernel g: 36 products instead of 144. Over
channels, each of the 36 places is a matrix product V·U with a row for each tile.

The backward pass transposes every step: dM = A dY Aᵀ, dU = Vᵀ·dM, dV = dM·Uᵀ, dd = B dV Bᵀ, dg = Gᵀ dU G.

Arrays are flat, channels last, and every step processes `WIDE` channels together. Images are (side, side, 32) with a
border of zeros. V and M are (tile, place, 32). U is (place, channel in, channel out).
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit

from qafel.compiled import KERNEL, WIDE, fma, load_wide, store, wide

CHANNELS = 32
PLACES = 36
TILE = PLACES * CHANNELS
MATRIX = CHANNELS * CHANNELS + CHANNELS  # a power of two would map the 36 matrices to the same cache lines
TABLE = PLACES * MATRIX


@njit(**KERNEL)
def make_room(tiles):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return memory for images with `tiles` tiles in total: V, M, and scratch memory for one tile."""
    return np.empty(tiles * TILE, np.float32), np.empty(tiles * TILE, np.float32), np.empty(PLACES * WIDE, np.float32)


@njit(**KERNEL)
def convolve(x, at, count, tiles, table, y, to, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Convolve `count` images at x[at] with the kernel whose U is `table`, and write the outputs to y[to].

    `tiles` is the number of 4×4 tiles in a row of outputs. An image is 4·tiles + 2 wide with its border of zeros. Its
    outputs are 4·tiles wide; the outermost ones come from the border only.
    """
    v, m, scratch = room
    _cut_all_inputs(x, at, count, tiles, v, scratch)
    _multiply(v, table, count * tiles * tiles, m)
    for k in range(count):
        _join_outputs(m, k * tiles * tiles * TILE, tiles, y, to + k * 16 * tiles * tiles * CHANNELS, scratch)


@njit(**KERNEL)
def convolve_back(dy, x, at, count, tiles, table, dx, to_table, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the gradient of the images to `dx` and add to that of U, from `dy`, the gradient of the outputs.

    `table` is U with swapped channels. The other arguments are those of `convolve`; dx and dy start at index 0.
    """
    v, m, scratch = room
    area, side = tiles * tiles, 4 * tiles + 2
    _cut_all_inputs(x, at, count, tiles, v, scratch)
    for k in range(count):
        _cut_outputs(dy, k * 16 * area * CHANNELS, tiles, m, k * area * TILE, scratch)
    _multiply_back(v, m, count * area, to_table)
    _multiply(m, table, count * area, v)
    for k in range(count):
        _join_inputs(v, k * area * TILE, tiles, dx, k * side * side * CHANNELS, scratch)


@njit(**KERNEL)
def _cut_all_inputs(x, at, count, tiles, v, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    side = 4 * tiles + 2
    for k in range(count):
        _cut_inputs(x, at + k * side * side * CHANNELS, tiles, v, k * tiles * tiles * TILE, scratch)


@njit(**KERNEL)
def _six(a, at, step):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Load six vectors, `step` numbers apart."""
    v0, v1, v2 = load_wide(a, at), load_wide(a, at + step), load_wide(a, at + 2 * step)
    return v0, v1, v2, load_wide(a, at + 3 * step), load_wide(a, at + 4 * step), load_wide(a, at + 5 * step)


@njit(**KERNEL)
def _write(values, a, at, step):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Store six vectors, `step` numbers apart."""
    v0, v1, v2, v3, v4, v5 = values
    store(a, at, v0)
    store(a, at + step, v1)
    store(a, at + 2 * step, v2)
    store(a, at + 3 * step, v3)
    store(a, at + 4 * step, v4)
    store(a, at + 5 * step, v5)


@njit(**KERNEL)
def _of_inputs(d):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Bᵀ d."""
    d0, d1, d2, d3, d4, d5 = d
    two, four, five = wide(float32(2)), wide(float32(4)), wide(float32(5))
    even, odd = d4 - four * d2, d3 - four * d1
    near, far = d4 - d2, two * (d3 - d1)
    return four * d0 - five * d2 + d4, even + odd, even - odd, near + far, near - far, four * d1 - five * d3 + d5


@njit(**KERNEL)
def _to_inputs(v):  # type: ignore[no-untyped-def]  # pragma: no cover
    """B v: the transpose of `_of_inputs`."""
    v0, v1, v2, v3, v4, v5 = v
    two, four, five = wide(float32(2)), wide(float32(4)), wide(float32(5))
    odd, far = v1 - v2, two * (v3 - v4)
    near, even = v1 + v2, v3 + v4
    d1 = four * (v5 - odd) - far
    d2 = wide(float32(0)) - five * v0 - four * near - even
    return four * v0, d1, d2, odd + far - five * v5, v0 + near + even, v5


@njit(**KERNEL)
def _of_outputs(y0, y1, y2, y3):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A y."""
    two, four, eight = wide(float32(2)), wide(float32(4)), wide(float32(8))
    even, odd = y0 + y2, y1 + y3
    near, far = fma(four, y2, y0), fma(eight, y3, two * y1)
    return y0, even + odd, even - odd, near + far, near - far, y3


@njit(**KERNEL)
def _to_outputs(m):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Aᵀ m: the transpose of `_of_outputs`."""
    m0, m1, m2, m3, m4, m5 = m
    two, four, eight = wide(float32(2)), wide(float32(4)), wide(float32(8))
    near, odd, even, far = m1 + m2, m1 - m2, m3 + m4, m3 - m4
    return m0 + near + even, fma(two, far, odd), fma(four, even, near), fma(eight, far, odd) + m5


@njit(**KERNEL)
def _of_kernel(g0, g1, g2):  # type: ignore[no-untyped-def]  # pragma: no cover
    """G g."""
    quarter, sixth, small = wide(float32(1 / 4)), wide(float32(-1 / 6)), wide(float32(1 / 24))
    even, odd = sixth * (g0 + g2), sixth * g1
    near, far = small * fma(wide(float32(4)), g2, g0), wide(float32(1 / 12)) * g1
    return quarter * g0, even + odd, even - odd, near + far, near - far, g2


@njit(**KERNEL)
def _to_kernel(u):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Gᵀ u: the transpose of `_of_kernel`."""
    u0, u1, u2, u3, u4, u5 = u
    quarter, sixth, small = wide(float32(1 / 4)), wide(float32(-1 / 6)), wide(float32(1 / 24))
    near, even = sixth * (u1 + u2), small * (u3 + u4)
    g1 = fma(sixth, u1 - u2, wide(float32(1 / 12)) * (u3 - u4))
    return fma(quarter, u0, near + even), g1, near + fma(wide(float32(4)), even, u5)


@njit(**KERNEL)
def transform_kernel(weight, backwards, table):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `table` with U for a `weight` of (out, in, 3, 3). `backwards` swaps its channels, for dM·Uᵀ."""
    taps, scratch = np.empty(9 * MATRIX, np.float32), np.empty(PLACES * WIDE, np.float32)
    for row in range(CHANNELS):
        for column in range(CHANNELS):
            at = 9 * (row * CHANNELS + column if backwards else column * CHANNELS + row)
            for tap in range(9):
                taps[tap * MATRIX + row * CHANNELS + column] = weight[at + tap]
    for i in range(0, CHANNELS * CHANNELS, WIDE):
        for column in range(3):
            at = i + column * MATRIX
            g = load_wide(taps, at), load_wide(taps, at + 3 * MATRIX), load_wide(taps, at + 6 * MATRIX)
            _write(_of_kernel(*g), scratch, column * WIDE, 3 * WIDE)
        for row in range(6):
            at = 3 * row * WIDE
            g = load_wide(scratch, at), load_wide(scratch, at + WIDE), load_wide(scratch, at + 2 * WIDE)
            _write(_of_kernel(*g), table, 6 * row * MATRIX + i, MATRIX)


@njit(**KERNEL)
def transform_kernel_back(table, gradient):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `gradient`, (out, in, 3, 3), from the gradient of U."""
    taps, scratch = np.empty(9 * MATRIX, np.float32), np.empty(PLACES * WIDE, np.float32)
    for i in range(0, CHANNELS * CHANNELS, WIDE):
        for column in range(6):
            g0, g1, g2 = _to_kernel(_six(table, i + column * MATRIX, 6 * MATRIX))
            store(scratch, column * WIDE, g0)
            store(scratch, (6 + column) * WIDE, g1)
            store(scratch, (12 + column) * WIDE, g2)
        for row in range(3):
            g0, g1, g2 = _to_kernel(_six(scratch, 6 * row * WIDE, WIDE))
            store(taps, 3 * row * MATRIX + i, g0)
            store(taps, (3 * row + 1) * MATRIX + i, g1)
            store(taps, (3 * row + 2) * MATRIX + i, g2)
    for out in range(CHANNELS):
        for channel in range(CHANNELS):
            for tap in range(9):
                gradient[9 * (out * CHANNELS + channel) + tap] = taps[tap * MATRIX + channel * CHANNELS + out]


@njit(**KERNEL)
def _cut_inputs(x, at, tiles, v, to, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write Bᵀ d B of every tile of the padded image at x[at] to v[to]."""
    width = (4 * tiles + 2) * CHANNELS
    for tile in range(tiles * tiles):
        corner = at + tile // tiles * 4 * width + tile % tiles * 4 * CHANNELS
        for lane in range(0, CHANNELS, WIDE):
            for j in range(6):
                d = _six(x, corner + j * CHANNELS + lane, width)
                _write(_of_inputs(d), scratch, j * WIDE, 6 * WIDE)
            for i in range(6):
                d = _six(scratch, 6 * i * WIDE, WIDE)
                _write(_of_inputs(d), v, to + (tile * PLACES + 6 * i) * CHANNELS + lane, CHANNELS)


@njit(**KERNEL)
def _join_inputs(v, at, tiles, x, to, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the padded image's gradient to x[to]: the transpose of `_cut_inputs`."""
    width = (4 * tiles + 2) * CHANNELS
    for i in range(to, to + (4 * tiles + 2) * width, WIDE):
        store(x, i, wide(float32(0)))
    for tile in range(tiles * tiles):
        corner = to + tile // tiles * 4 * width + tile % tiles * 4 * CHANNELS
        for lane in range(0, CHANNELS, WIDE):
            for j in range(6):
                d = _six(v, at + (tile * PLACES + j) * CHANNELS + lane, 6 * CHANNELS)
                _write(_to_inputs(d), scratch, j * WIDE, 6 * WIDE)
            for i in range(6):
                d0, d1, d2, d3, d4, d5 = _to_inputs(_six(scratch, 6 * i * WIDE, WIDE))
                row = corner + i * width + lane
                e0, e1, e2, e3, e4, e5 = _six(x, row, CHANNELS)
                _write((e0 + d0, e1 + d1, e2 + d2, e3 + d3, e4 + d4, e5 + d5), x, row, CHANNELS)


@njit(**KERNEL)
def _join_outputs(m, at, tiles, y, to, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write Aᵀ M A of every tile at m[at] to the outputs at y[to], 4·tiles on each side."""
    width = 4 * tiles * CHANNELS
    for tile in range(tiles * tiles):
        corner = to + tile // tiles * 4 * width + tile % tiles * 4 * CHANNELS
        for lane in range(0, CHANNELS, WIDE):
            for j in range(6):
                y0, y1, y2, y3 = _to_outputs(_six(m, at + (tile * PLACES + j) * CHANNELS + lane, 6 * CHANNELS))
                store(scratch, j * WIDE, y0)
                store(scratch, (6 + j) * WIDE, y1)
                store(scratch, (12 + j) * WIDE, y2)
                store(scratch, (18 + j) * WIDE, y3)
            for i in range(4):
                y0, y1, y2, y3 = _to_outputs(_six(scratch, 6 * i * WIDE, WIDE))
                row = corner + i * width + lane
                store(y, row, y0)
                store(y, row + CHANNELS, y1)
                store(y, row + 2 * CHANNELS, y2)
                store(y, row + 3 * CHANNELS, y3)


@njit(**KERNEL)
def _cut_outputs(y, at, tiles, m, to, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write A dY Aᵀ of every tile of the gradient at y[at] to m[to]: the transpose of `_join_outputs`."""
    width = 4 * tiles * CHANNELS
    for tile in range(tiles * tiles):
        corner = at + tile // tiles * 4 * width + tile % tiles * 4 * CHANNELS
        for lane in range(0, CHANNELS, WIDE):
            for j in range(4):
                top = corner + j * CHANNELS + lane
                low = load_wide(y, top + 2 * width), load_wide(y, top + 3 * width)
                _write(_of_outputs(load_wide(y, top), load_wide(y, top + width), *low), scratch, j * WIDE, 4 * WIDE)
            for i in range(6):
                left = 4 * i * WIDE
                right = load_wide(scratch, left + 2 * WIDE), load_wide(scratch, left + 3 * WIDE)
                dm = _of_outputs(load_wide(scratch, left), load_wide(scratch, left + WIDE), *right)
                _write(dm, m, to + (tile * PLACES + 6 * i) * CHANNELS + lane, CHANNELS)


@njit(**KERNEL)
def _four_rows(a, at, row, step, count, b, b_at, b_step, c, c_at, c_row, add):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set C = A·B, or C += A·B, for four rows of A and `WIDE` columns of B, in registers."""
    if add:
        s0, s1, s2, s3 = (
            load_wide(c, c_at),
            load_wide(c, c_at + c_row),
            load_wide(c, c_at + 2 * c_row),
            load_wide(c, c_at + 3 * c_row),
        )
    else:
        s0 = s1 = s2 = s3 = wide(float32(0))
    for k in range(count):
        w, i = load_wide(b, b_at + k * b_step), at + k * step
        s0 = fma(wide(a[i]), w, s0)
        s1 = fma(wide(a[i + row]), w, s1)
        s2 = fma(wide(a[i + 2 * row]), w, s2)
        s3 = fma(wide(a[i + 3 * row]), w, s3)
    store(c, c_at, s0)
    store(c, c_at + c_row, s1)
    store(c, c_at + 2 * c_row, s2)
    store(c, c_at + 3 * c_row, s3)


@njit(**KERNEL)
def _multiply(v, table, tiles, m):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set M = V·U at each place, for at least four tiles. The last rows may be computed twice."""
    for place in range(PLACES):
        for tile in range(0, tiles, 4):
            at = (min(tile, tiles - 4) * PLACES + place) * CHANNELS
            for lane in range(0, CHANNELS, WIDE):
                b = place * MATRIX + lane
                _four_rows(v, at, TILE, 1, CHANNELS, table, b, CHANNELS, m, at + lane, TILE, False)


@njit(**KERNEL)
def _multiply_back(v, m, tiles, table):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add Vᵀ·dM to dU at each place."""
    for place in range(PLACES):
        at = place * CHANNELS
        for channel in range(0, CHANNELS, 4):
            for lane in range(0, CHANNELS, WIDE):
                to = place * MATRIX + channel * CHANNELS + lane
                _four_rows(v, at + channel, 1, TILE, tiles, m, at + lane, TILE, table, to, CHANNELS, True)
