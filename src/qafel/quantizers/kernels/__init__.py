"""Compiled kernels: what runs over every coordinate, and nothing else.

They are module-level Numba functions, cached on disk, free of the GIL and of fast-math (qafel/compiled.py), and they
work on ranges of independent spans, so that any number of threads gives the same bytes. See
docs/decisions/quantizers-kernels.md.

    levels    a step per bucket or tensor and a code per coordinate: QSGD, sign, dither, affine
    rotation  a random rotation of a block
    blocks    rotated blocks to the best levels for a Gaussian and back
    windows   rotated windows to the numbers of trellis and back, with
    sharing   which table a group takes,
    search    the best path through a trellis, and
    rans      numbers to as many bits as they carry
    sparse    selection and index coding for top-k and rand-k
    shared    what they share: a keyed counter hash, a maximum over absolute values, packing, the end of every decoder

Here are the constants of the formats, which load nothing. The kernels load when they are first used, and Numba with
them: write `kernels.levels.encode_spans(…)` and import no kernel's name elsewhere. Without Numba these names stand for
the same kernels in NumPy, quantizers/plain.

Random numbers are a hash of the coordinate's counter, so any part of a vector can be made alone, in any order and by
any thread. 32-bit multiplications vectorise on every CPU of the last decade; 64-bit ones do not.

Packing is planar. A group of up to 512 codes is packed plane by plane: a b-bit code is cut into pieces of 8, 4, 2 and 1
bits (b's binary digits), and each piece goes to its own plane. In a plane of w-bit pieces, byte j holds the codes
j, j + m, j + 2m, … with m the plane's length in bytes. Neighbouring bytes come from neighbouring codes, so both
directions vectorise.

Indices are unsigned (`at + uint64(j)`): Numba need not look for negative ones, which would stop vectorisation, and
slices, which count references atomically, are not needed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from qafel.errors import ConfigError
from qafel.lazy import is_installed, lazily

if TYPE_CHECKING:
    from qafel.quantizers.kernels import blocks as blocks
    from qafel.quantizers.kernels import levels as levels
    from qafel.quantizers.kernels import shared as shared
    from qafel.quantizers.kernels import sparse as sparse
    from qafel.quantizers.kernels import windows as windows

CHOICE = "QAFEL_KERNELS"
"""The environment's name for which kernels to take, numba or numpy; by default Numba's where it is installed."""


def are_compiled() -> bool:
    """Whether the kernels are Numba's, or NumPy's, which give the same bits, take a third of the memory and start at
    once, and are some ten times slower (those of `trellis` some hundred times).
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "numba", "numpy"):
        raise ConfigError(f"{CHOICE} is numba or numpy, found {choice!r}")
    if choice == "numpy":
        return False
    there = is_installed("numba")
    if choice == "numba" and not there:
        raise ConfigError(f"{CHOICE}=numba needs Numba: pip install 'qafel[fast]', or take numpy")
    return there


def _homes() -> dict[str, str]:
    names = ("blocks", "levels", "shared", "sparse", "windows")
    if are_compiled():
        return {name: f"{__name__}.{name}" for name in names}
    plain = __name__.removesuffix("kernels")
    return {name: f"{plain}plain.{name}" for name in names} | {"windows": f"{plain}trellis.plain"}


__getattr__, __dir__ = lazily(__name__, _homes())

GROUP = 512  # codes that are packed together
ASSIGN, ADD = 0, 1  # what a decoder does with the target
OK, BAD_STEP, BAD_CODE = 0, 1, 2  # what a decoder found
MAX_ABS, L2 = 0, 1  # the norm that is a bucket's scale
BITMAP, MAX_RICE = 255, 31  # how indices are coded: 255 in the place of the Rice parameter is a bitmap
BLOCK, COLUMNS = 4096, 16  # coordinates that are rotated together
SHORTEST = 32  # rows of the shortest column
SEED_BYTES = 8
CODES, MIDDLE = 4096, 256  # of trellis: codes of a table, half of its numbers
HIDDEN_BYTES = 30  # that its coders begin with
ROOM = 48  # words that a stream of it may take beside one for each number

INFINITY_BITS = np.int32(0x7F800000)
MAGNITUDE_BITS = np.int32(0x7FFFFFFF)
LARGEST = np.float32(np.finfo(np.float32).max)
WEYL = np.uint32(0x9E3779B1)


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of `size` packed codes."""
    full, rest = divmod(size, GROUP)
    return full * (GROUP * bits // 8) + sum(-(-rest * width // 8) for width in (8, 4, 2, 1) if bits & width)
