"""Quantizers: a vector to few bytes and back, each with its theory.

protocol    what a quantizer is, and the sixteen bytes that name one in a message
family      base classes of the families, checks, threads
spec        parsers of text and of codec bytes
levels      random rounding to levels of a bucket's scale: QSGD, dithered, sign
rotated     a random rotation, then the best levels for a Gaussian: the quality mode
trellis     the same rotation, then the best path through a trellis: the fewest bytes
affine      float32 coordinates; min-max per tensor
sparse      top_k, the largest coordinates; rand_k, random ones
wrappers    around another quantizer: scaled, compressed, sorted by magnitude
custom      a user's object with encode and decode as a quantizer
measure     a quantizer's error on data, and its fitness for a role
kernels     compiled loops
plain       the same in NumPy, for a device without Numba
"""

from qafel.quantizers.affine import Affine, Identity
from qafel.quantizers.custom import Custom, as_quantizer, make_quantizer
from qafel.quantizers.family import set_threads, threads
from qafel.quantizers.levels import Dithered, Qsgd, Sign
from qafel.quantizers.measure import MeasuredError, fitness, measure_error
from qafel.quantizers.protocol import CODEC_BYTES, Codec, Payload, Quantizer, is_measured
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sparse import RandK, TopK
from qafel.quantizers.spec import from_codec, parse
from qafel.quantizers.trellis import Trellis
from qafel.quantizers.wrappers import Layers, Scaled, Zstd

__all__ = [
    "CODEC_BYTES",
    "Affine",
    "Codec",
    "Custom",
    "Dithered",
    "Identity",
    "Layers",
    "MeasuredError",
    "Payload",
    "Qsgd",
    "Quantizer",
    "RandK",
    "Rotated",
    "Scaled",
    "Sign",
    "TopK",
    "Trellis",
    "Zstd",
    "as_quantizer",
    "fitness",
    "from_codec",
    "is_measured",
    "make_quantizer",
    "measure_error",
    "parse",
    "set_threads",
    "threads",
]
