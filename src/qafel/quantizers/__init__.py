"""Codecs: a vector to few bytes and back, each with its theory.

protocol     what a quantizer is
spec, family text or codec bytes to a quantizer
identity, qsgd, top_k    the quantizers
bucketed, indices, checks, codec, parallel    what they share
kernels      compiled loops
"""

from qafel.quantizers.family import from_codec, parse
from qafel.quantizers.fitness import fitness
from qafel.quantizers.identity import Identity
from qafel.quantizers.measure import Measured, measured
from qafel.quantizers.parallel import set_threads, threads
from qafel.quantizers.protocol import CODEC_BYTES, Payload, Quantizer
from qafel.quantizers.qsgd import Qsgd
from qafel.quantizers.top_k import TopK

__all__ = [
    "CODEC_BYTES",
    "Identity",
    "Measured",
    "Payload",
    "Qsgd",
    "Quantizer",
    "TopK",
    "fitness",
    "from_codec",
    "measured",
    "parse",
    "set_threads",
    "threads",
]
