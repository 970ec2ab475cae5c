"""The quantizers that every general test checks: one of each family by default, all of them in `make test-slow`."""

from __future__ import annotations

import numpy as np
import pytest

from qafel.params import Layout, Vector
from qafel.rng import Stream

SPECS = (
    "none",
    "none+zstd",
    "qsgd:1",
    "qsgd:2",
    "qsgd:3",
    "qsgd:4",
    "qsgd:5",
    "qsgd:8",
    "qsgd:4+zstd",
    "qsgd:4,bucket=128",
    "qsgd:4,bucket=100",
    "qsgd:4,norm=l2,bucket=64",
    "qsgd:levels=8,norm=l2,bucket=none",
    "qsgd:levels=100,bucket=32",
    "sign",
    "sign:bucket=none",
    "dithered:1",
    "dithered:4",
    "dithered:4+zstd",
    "dithered:8,bucket=100",
    "rotated:1",
    "rotated:3",
    "rotated:4",
    "rotated:6",
    "trellis:0.25",
    "trellis:0.5,states=32,scale=least",
    "trellis:1",
    "trellis:2.5,states=32",
    "trellis:4,scale=least",
    "trellis:6",
    "affine:8",
    "affine:4",
    "affine:3+zstd",
    "top_k:0.01",
    "top_k:0.5",
    "top_k:0.5,round=down",
    "top_k:1",
    "top_k:count=3",
    "top_k:0.1,values=qsgd:4",
    "top_k:0.1,values=rotated:4",
    "rand_k:0.1",
    "rand_k:0.7",
    "rand_k:0.7,round=down",
    "rand_k:count=3",
    "rand_k:0.1,values=dithered:4",
    "scaled:qsgd:4",
    "scaled:qsgd:4+zstd",
    "scaled:rand_k:0.1",
    "scaled:dithered:2",
    "scaled:rotated:2",
    "scaled:none",
    "layers:trellis:2",
    "layers:trellis:0.5,scale=least",
    "layers:rotated:3",
)

QUICK = {
    "none", "qsgd:4", "qsgd:4+zstd", "sign", "dithered:4", "rotated:4", "trellis:2.5,states=32", "affine:4",
    "top_k:0.1,values=qsgd:4", "rand_k:0.1", "scaled:qsgd:4",
    "layers:trellis:2",
}  # fmt: skip
"""One of each family."""

every_spec = pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=() if spec in QUICK else pytest.mark.slow) for spec in SPECS]
)

CELEBA = Layout.of(
    {
        "conv1.weight": (32, 3, 3, 3),
        "conv1.bias": (32,),
        "conv2.weight": (32, 32, 3, 3),
        "conv2.bias": (32,),
        "conv3.weight": (32, 32, 3, 3),
        "conv3.bias": (32,),
        "conv4.weight": (32, 32, 3, 3),
        "conv4.bias": (32,),
        "norm.weight": (32,),
        "norm.bias": (32,),
        "linear.weight": (2, 288),
        "linear.bias": (2,),
    }
)


def stream(number: int = 0) -> Stream:
    return Stream.named(7, "quantizer test", 0, number)


def vectors(size: int) -> dict[str, Vector]:
    """Vectors that quantizers find easy and hard."""
    generator = np.random.default_rng(size)
    spike = np.zeros(size, np.float32)
    pair = np.zeros(size, np.float32)
    if size:
        spike[size // 2] = -3.0
        pair[0], pair[-1] = 1.0, 0.3
    return {
        "gaussian": generator.standard_normal(size, dtype=np.float32),
        "heavy-tailed": generator.standard_t(3, size).astype(np.float32),
        "zero": np.zeros(size, np.float32),
        "all-equal": np.full(size, 0.7, np.float32),
        "spike": spike,
        "two-sparse": pair,
        "mixed scales": (generator.standard_normal(size) * 10.0 ** generator.integers(-20, 20, size)).astype(
            np.float32
        ),
    }


def same_bits(a: Vector, b: Vector) -> bool:
    return a.dtype == b.dtype == np.float32 and bool(np.array_equal(a.view(np.int32), b.view(np.int32)))
