"""Keep freed memory in the process.

glibc returns every large block to the system when it is freed, and takes it back, page by page and zeroed, at the next
batch: a quarter of the time of training a small network. Two settings of its allocator end that.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more on 64-bit machines
_NEVER = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Tell glibc to serve blocks up to 32 MiB from its heap and never to shrink that; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has no mallopt
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
