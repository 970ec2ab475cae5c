"""Codecs: a vector to few bytes and back, each with its theory.

protocol    what a quantizer is, and the sixteen bytes that name one in a message
spec        text, or those bytes, to a quantizer
arguments   what a spec says after the family's name
identity    float32 as it is
qsgd        random rounding to levels of a bucket's scale
dithered    subtractive dither: half of QSGD's variance
sign        one bit a coordinate
rotated     a random rotation, then the best levels for a Gaussian: the quality mode
trellis     the same rotation, then the best path through a trellis, in as many bits as it carries: the fewest bytes
affine      min-max per tensor
sparse      top_k, the largest coordinates; rand_k, random ones
wrappers    around another quantizer: scaled, entropy coded
own         a user's object with encode and decode as a quantizer
payloads    what the families share: checks, payloads of steps and codes, threads
kernels     compiled loops
plain       the same in NumPy, for a device without Numba
measure     a quantizer's error on data, and which role it suits
"""

from qafel.quantizers.affine import Affine
from qafel.quantizers.dithered import Dithered
from qafel.quantizers.identity import Identity
from qafel.quantizers.measure import MeasuredError, fitness, measured
from qafel.quantizers.own import Own, as_quantizer, make_quantizer
from qafel.quantizers.payloads import set_threads, threads
from qafel.quantizers.protocol import CODEC_BYTES, Codec, Payload, Quantizer, is_measured
from qafel.quantizers.qsgd import Qsgd
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sign import Sign
from qafel.quantizers.sparse import RandK, TopK
from qafel.quantizers.spec import from_codec, parse
from qafel.quantizers.trellis import Trellis
from qafel.quantizers.wrappers import Scaled, Zstd

__all__ = [
    "CODEC_BYTES",
    "Affine",
    "Codec",
    "Dithered",
    "Identity",
    "MeasuredError",
    "Own",
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
    "measured",
    "parse",
    "set_threads",
    "threads",
]
