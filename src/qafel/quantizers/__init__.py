"""Codecs: a vector to few bytes and back, each with its theory.

protocol     what a quantizer is
spec, family text or codec bytes to a quantizer
identity, qsgd, top_k    the quantizers
bucketed, indices, checks, codec, parallel    what they share
kernels      compiled loops
"""

from qafel.quantizers.family import from_codec, parse
from qafel.quantizers.identity import Identity
from qafel.quantizers.parallel import set_threads, threads
from qafel.quantizers.protocol import CODEC_BYTES, Payload, Quantizer
from qafel.quantizers.qsgd import Qsgd
from qafel.quantizers.top_k import TopK

__all__ = [
    "CODEC_BYTES",
    "Identity",
    "Payload",
    "Qsgd",
    "Quantizer",
    "TopK",
    "from_codec",
    "parse",
    "set_threads",
    "threads",
]
