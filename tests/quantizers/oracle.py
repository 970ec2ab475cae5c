"""Random numbers, rounding and packing in slow NumPy, written from docs/wire-format.md.

The module imports nothing from `qafel`, so that it can check the kernels. `decoder` reads every codec with it.
"""

from __future__ import annotations

import math

import numpy as np

Keys = tuple[int, int, int, int]
MASK64 = 2**64 - 1


def mix64(word: int) -> int:
    """The finaliser of SplitMix64."""
    z = (word + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def round_keys(words: tuple[int, int]) -> Keys:
    """The four 32-bit keys of the counter hash."""
    first = mix64(words[0] ^ mix64(words[1]))
    second = mix64(words[1] ^ first)
    return first % 2**32, first >> 32, second % 2**32, second >> 32


def hash_pair(counters: np.ndarray, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
    """Two 32-bit words for each counter, in 64-bit arithmetic modulo 2³²."""
    low = np.uint64(0xFFFFFFFF)
    k0, k1, k2, k3 = (np.uint64(key) for key in keys)
    h = (counters.astype(np.uint64) * np.uint64(0x9E3779B1) + k0) & low
    h = ((h ^ (h >> np.uint64(16))) * np.uint64(0x7FEB352D) + k1) & low
    h ^= h >> np.uint64(15)
    words = [(h * np.uint64(factor) + key) & low for factor, key in ((0x846CA68B, k2), (0x31848BAB, k3))]
    first, second = ((word ^ (word >> np.uint64(16))).astype(np.uint32) for word in words)
    return first, second


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
