"""Plain, slow NumPy: what encoding kernels should compute, and what decoding shares with them.

Written from the description and not from the kernels. `tests.quantizers.decoder` reads every codec with it.
"""

from __future__ import annotations

import math

import numpy as np

from qafel.quantizers.trellis.plain import hash_pair, round_keys


def uniform16(size: int, words: tuple[int, int]) -> np.ndarray:
    """The 16-bit random integer of every coordinate: group by group, a hash shared by one of each quarter."""
    keys = round_keys(words)
    result = np.empty(size, np.int64)
    for start in range(0, size, 512):
        count = min(512, size - start)
        half = (count + 1) // 2
        quarter = (half + 1) // 2
        first, second = hash_pair(start + np.arange(quarter), keys)
        lows = np.concatenate([first, second[: half - quarter]])
        result[start : start + half] = lows & 0xFFFF
        result[start + half : start + count] = (lows >> 16)[: count - half]
    return result


def steps_of(x: np.ndarray, bucket: int, levels: float, norm: str) -> np.ndarray:
    parts = [x[i : i + bucket].astype(np.float64) for i in range(0, x.size, bucket)]
    scales = [np.abs(p).max() if norm == "max" else max(math.sqrt((p * p).sum()), np.abs(p).max()) for p in parts]
    return np.array([np.float32(scale / levels) for scale in scales], np.float32)


def codes_of(
    x: np.ndarray, steps: np.ndarray, bucket: int, levels: float, bits: int, words: tuple[int, int]
) -> np.ndarray:
    """Stochastic rounding in fixed point, for normal steps."""
    fraction = 15 if bits == 8 else 16
    sign_only = bits == 1 and levels == 1
    one = np.float32(1 << fraction) * np.float32(1 - 2.0**-22) * np.float32(0.5 if sign_only else 1)
    magic = np.float32(2.0**23 + (1 << fraction) * (0.5 if sign_only else levels))
    step = np.repeat(steps, bucket)[: x.size]
    scale = np.divide(one, step, out=np.zeros_like(step), where=step > 0)
    fixed = (x * scale + magic).astype(np.int64) - 2**23
    return (fixed + (uniform16(x.size, words) >> (16 - fraction))) >> fraction


def pack(codes: np.ndarray, bits: int) -> bytes:
    out = b""
    for start in range(0, codes.size, 512):
        group, low = codes[start : start + 512], 0
        for width in (1, 2, 4, 8):
            if not bits & width:
                continue
            per = 8 // width
            stride = -(-group.size // per)
            padded = np.zeros(stride * per, np.int64)
            padded[: group.size] = (group >> low) & ((1 << width) - 1)
            shifts = np.arange(per)[:, None] * width
            out += (padded.reshape(per, stride) << shifts).sum(0).astype(np.uint8).tobytes()
            low += width
    return out


def unpack(packed: bytes, size: int, bits: int) -> np.ndarray:
    codes, at = np.zeros(size, np.int64), 0
    for start in range(0, size, 512):
        count, low = min(512, size - start), 0
        for width in (1, 2, 4, 8):
            if not bits & width:
                continue
            per = 8 // width
            stride = -(-count // per)
            plane = np.frombuffer(packed, np.uint8, stride, at).astype(np.int64)
            pieces = (plane[None, :] >> (np.arange(per)[:, None] * width)) & ((1 << width) - 1)
            codes[start : start + count] |= pieces.ravel()[:count] << low
            at, low = at + stride, low + width
    return codes
