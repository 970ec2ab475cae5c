"""Compiled kernels: what runs over every coordinate, and nothing else.

They are module-level Numba functions, cached on disk, free of the GIL and of fast-math, and they work on ranges of
independent spans, so that any number of threads gives the same bytes.

    numeric   the keyed counter hash and the maximum over bit patterns, shared by all
    packing   codes of 1 to 8 bits to bytes and back
    levels    QSGD: random rounding to codes, one step per bucket
    signs     signs and the mean magnitude of a bucket
    decode    codes times steps, assigned or added
    dither    subtractive dither
    rotation  randomised Hadamard blocks
    gaussian  rotated blocks to Gaussian levels and back
    sparse    selection and index coding for top-k and rand-k
    affine    min-max per tensor
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def _forget_stale_kernels() -> None:
    """Drop cached kernels that are older than any source file here.

    Numba's cache notices a change in the file that a kernel stands in, but not in the files of the inner functions
    that it was compiled with: an old hash would go on being used, and two ends would not understand each other.
    """
    folder = Path(__file__).parent
    with suppress(OSError):
        newest = max(source.stat().st_mtime_ns for source in folder.glob("*.py"))
        for index in (folder / "__pycache__").glob("*.nbi"):
            if index.stat().st_mtime_ns < newest:
                index.unlink(missing_ok=True)


_forget_stale_kernels()
