"""Where an encoder writes: straight into the bytes that it returns, where a copy would cost as much as the encoding.

At 25 million coordinates a second buffer and its copy take longer than quantizing: the memory is new each time, and the
system hands it out page by page.
"""

from __future__ import annotations

import ctypes
import platform

import numpy as np

from qafel.quantizers.checks import Bytes

_LARGE = 1 << 18  # bytes; below, a plain copy is cheaper than making the view
_CONTENT = bytes.__basicsize__ - 1  # where CPython keeps a bytes object's content, before its final zero
_IS_CPYTHON = platform.python_implementation() == "CPython"
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize if _IS_CPYTHON else None
if _new_bytes is not None:
    _new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)


def new_output(size: int) -> tuple[Bytes, bytes | None]:
    """A buffer to fill; with it, where it is large, the bytes object whose content it is. `finish` wants both."""
    if size < _LARGE or _new_bytes is None:
        return np.empty(size, np.uint8), None
    data: bytes = _new_bytes(None, size)  # uninitialised, as C extensions make them
    memory = (ctypes.c_uint8 * size).from_address(id(data) + _CONTENT)
    return np.frombuffer(memoryview(memory), np.uint8), data


def finish(array: Bytes, data: bytes | None) -> bytes:
    """What was written. Nobody has seen the bytes object before."""
    return array.tobytes() if data is None else data
