"""Codecs: a vector to few bytes and back, each with its theory.

protocol                          what a quantizer is
spec, codec, family               text, or the bytes in a message's header, to a quantizer
identity, qsgd, dithered, sign    a code per coordinate and a scale per bucket
rotated, gaussian_levels          the quality mode
top_k, rand_k, indices            few coordinates
affine                            min-max per tensor
scaled, entropy_coded             around another quantizer
fitness, measure, samples         what suits which role, and what it does to data
bucketed, checks, parallel        what they share
kernels                           compiled loops
"""

from qafel.quantizers.affine import Affine
from qafel.quantizers.dithered import Dithered
from qafel.quantizers.identity import Identity
from qafel.quantizers.measure import Measured, fitness, measured
from qafel.quantizers.payloads import set_threads, threads
from qafel.quantizers.protocol import CODEC_BYTES, Payload, Quantizer
from qafel.quantizers.qsgd import Qsgd
from qafel.quantizers.rand_k import RandK
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sign import Sign
from qafel.quantizers.spec import from_codec, parse
from qafel.quantizers.top_k import TopK
from qafel.quantizers.wrappers import Scaled, Zstd

__all__ = [
    "CODEC_BYTES",
    "Affine",
    "Dithered",
    "Identity",
    "Measured",
    "Payload",
    "Qsgd",
    "Quantizer",
    "RandK",
    "Rotated",
    "Scaled",
    "Sign",
    "TopK",
    "Zstd",
    "fitness",
    "from_codec",
    "measured",
    "parse",
    "set_threads",
    "threads",
]
