"""Compiled kernels: the loops over every coordinate.

They are module-level Numba functions, cached on disk, free of the GIL and of fast-math (qafel/compiled.py). They work
on ranges of independent spans, so that any number of threads gives the same bytes. See
docs/decisions/quantizers.md.

    levels    a step per bucket or tensor and a code per coordinate: QSGD, sign, dithered, affine
    rotated   a random rotation of blocks, to the best levels for a Gaussian and back
    windows   rotated windows to the numbers of trellis and back, with
    trellis   the best path through a trellis and the entropy coder, and
    tables    the code tables and the windows of a vector (without Numba)
    sparse    selection and index coding for top-k and rand-k
    shared    a keyed counter hash, a maximum over absolute values, packing, the end of every decoder

This file holds only the constants of the formats. A kernel, and Numba with it, loads at its first
use: write `kernels.levels.encode_spans(…)` and do not import kernels by name elsewhere. Without Numba these names refer
to the same kernels in NumPy, quantizers/plain.

Random numbers are a hash of the coordinate's counter, so any thread can compute any part of a vector in any order. The
hash uses 32-bit multiplications, because 64-bit ones do not vectorise on most CPUs.

Packing is planar. A b-bit code is split into pieces of 8, 4, 2 and 1 bits (b's binary digits). A group of up to 512
codes has a plane for each of these pieces. In a plane of w-bit pieces, byte j holds the codes j, j + m, j + 2m, …, with
m the plane's length in bytes. Neighbouring bytes come from neighbouring codes, so both directions vectorise.

Indices are unsigned (`at + uint64(j)`). Then Numba does not test for negative indices, which would prevent
vectorisation. Kernels avoid slices, which count references atomically.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError
from qafel.lazy import is_installed, lazily

if TYPE_CHECKING:
    from qafel.quantizers.kernels import levels as levels
    from qafel.quantizers.kernels import rotated as rotated
    from qafel.quantizers.kernels import shared as shared
    from qafel.quantizers.kernels import sparse as sparse
    from qafel.quantizers.kernels import windows as windows

CHOICE = "QAFEL_KERNELS"
"""The environment variable that selects the kernels: numba or numpy. The default is Numba if it is installed."""


def are_compiled() -> bool:
    """Whether the kernels are Numba's. NumPy's give the same bits with a third of the memory and no compilation.

    They are some ten times slower, those of `trellis` some hundred times.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "numba", "numpy"):
        raise ConfigError(f"{CHOICE} must be numba or numpy, found {choice!r}")
    if choice == "numpy":
        return False
    installed = is_installed("numba")
    if choice == "numba" and not installed:
        raise ConfigError(f"{CHOICE}=numba needs Numba: pip install 'qafel[fast]', or set numpy")
    return installed


def _homes() -> dict[str, str]:
    if are_compiled():
        return {name: f"{__name__}.{name}" for name in ("levels", "rotated", "shared", "sparse", "windows")}
    plain = __name__.removesuffix("kernels") + "plain"
    levels, rotated = f"{plain}.levels", f"{plain}.rotated"
    return {"shared": plain, "levels": levels, "sparse": levels, "rotated": rotated, "windows": rotated}


__getattr__, __dir__ = lazily(__name__, _homes())

GROUP = 512  # codes that are packed together
ASSIGN, ADD = 0, 1  # modes of a decoder
OK, BAD_STEP, BAD_CODE = 0, 1, 2  # results of a decoder's checks
MAX_ABS, L2, MEAN = 0, 1, 2  # norms for a bucket's scale; with the mean magnitude a code is a sign
BITMAP, MAX_RICE = 255, 31  # coding of indices: 255 instead of a Rice parameter is a bitmap
BLOCK, COLUMNS = 4096, 16  # coordinates and columns of a full block
SHORTEST = 32  # rows of the shortest column
SEED_BYTES = 8
CODES, MIDDLE = 4096, 256  # of trellis: codes of a table, half of its numbers
HIDDEN_BYTES = 30  # bytes of its notes that its coders start with
ROOM = 48  # words of a stream of it, beside one per number

INFINITY_BITS = np.int32(0x7F800000)
MAGNITUDE_BITS = np.int32(0x7FFFFFFF)
LARGEST = np.float32(np.finfo(np.float32).max)
WEYL = np.uint32(0x9E3779B1)


def _angles() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """√2·cos θ and √2·sin θ of sixteen angles, between 28° and 64°. They are part of the format.

    With t = tan(θ/2) they are rational, so every machine computes the same numbers.
    """
    t = 0.25 + 0.375 * (np.arange(1, 32, 2, dtype=np.uint32) * WEYL / 2.0**32)
    root = np.sqrt(2.0) / (1.0 + t * t)
    return (root * (1.0 - t * t)).astype(np.float32), (root * (t + t)).astype(np.float32)


COSINES, SINES = (np.tile(part, 16) for part in _angles())  # along half of the longest column, 512 rows


def turns_of(rows):  # type: ignore[no-untyped-def]
    """The number of turns for a column, and the inverse of their factor."""
    return (1, 1.0 / rows) if rows >= 128 else (2, 1.0 / (rows * rows))


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of `size` packed codes."""
    full, rest = divmod(size, GROUP)
    return full * (GROUP * bits // 8) + sum(-(-rest * width // 8) for width in (8, 4, 2, 1) if bits & width)
