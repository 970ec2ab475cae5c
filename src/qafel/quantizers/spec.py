"""From text, or from the sixteen bytes in a message's header, to a quantizer.

A spec is name[:positional][,key=value]…[+zstd]:

    qsgd:4                               4 bits a coordinate
    qsgd:levels=8,norm=l2,bucket=none
    top_k:0.01,values=qsgd:4             `values=` comes last and takes the rest
    trellis:0.5,states=32                half a bit a coordinate
    top_k:0.5,round=down                 56 of 113 coordinates instead of 57
    scaled:qsgd:4                        takes the rest

A family owns its name, the number of its codec and both parsers. A new family is a file, and a name in `_ALL`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, cast

from qafel.errors import SpecError, WrongCodec
from qafel.params import Layout
from qafel.quantizers import protocol
from qafel.quantizers.affine import Affine
from qafel.quantizers.arguments import SpecArguments
from qafel.quantizers.dithered import Dithered
from qafel.quantizers.identity import Identity
from qafel.quantizers.protocol import CODEC_BYTES, Family, FixedLength, Quantizer
from qafel.quantizers.qsgd import Qsgd
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sign import Sign
from qafel.quantizers.sparse import RandK, TopK
from qafel.quantizers.trellis import Trellis
from qafel.quantizers.wrappers import Scaled, Zstd
from qafel.text import did_you_mean

_ZSTD: Final = "+zstd"
_ALL: Final[tuple[type[Family], ...]] = (
    Identity, Qsgd, TopK, RandK, Affine, Sign, Dithered, Rotated, Trellis, Scaled,
)  # fmt: skip
_BY_NAME: Final = {family.NAME: family for family in _ALL}
_BY_ID: Final = {family.CODEC_ID: family for family in _ALL}
FAMILIES: Final = tuple(sorted(_BY_NAME))
"""What a spec begins with."""


def parse(spec: str, layout: Layout | None = None) -> Quantizer:
    """The quantizer that a text spec such as "qsgd:4" stands for. A process reads each text once.

    `layout` says where the model's tensors lie; it matters to `affine` alone, which without one sees a single tensor.
    """
    quantizer = _read(spec)
    if layout is None or not hasattr(quantizer, "for_layout"):
        return quantizer
    laid_out: Quantizer = quantizer.for_layout(layout)
    return laid_out


@lru_cache(1024)
def _read(spec: str) -> Quantizer:
    text = spec.strip()
    plain = text.removesuffix(_ZSTD)
    if plain != text:
        return _compressed(_read(plain))
    if "+" in text:
        suffix = text[text.index("+") :]
        raise SpecError(f"unknown suffix {suffix!r} in {spec!r}: only {_ZSTD} can follow a quantizer, at the very end")
    name, _, rest = text.partition(":")
    if name not in _BY_NAME:
        raise SpecError(f"unknown quantizer {name!r}{did_you_mean(name, FAMILIES)}")
    return _BY_NAME[name].from_spec(SpecArguments(name, _read, rest))


def _compressed(inner: Quantizer) -> Zstd:
    if not hasattr(inner, "payload_bytes"):
        raise SpecError(f"{inner.spec!r} is already packed tightly: leave out {_ZSTD}")
    return Zstd(cast(FixedLength, inner))


def from_codec(codec: bytes, layout: Layout | None = None) -> Quantizer:
    """The quantizer that wrote a message, from the codec bytes in its header; `layout` as for `parse`."""
    if len(codec) != CODEC_BYTES:
        raise WrongCodec(f"expected {CODEC_BYTES} bytes that name a codec, found {len(codec)}")
    try:
        quantizer = _from_fields(codec, layout)
    except SpecError as error:
        raise WrongCodec(f"the codec bytes {codec.hex()} hold impossible parameters: {error}") from error
    if quantizer.codec != codec:
        raise WrongCodec(f"the codec bytes {codec.hex()} hold more than {quantizer.spec!r} says: a newer sender?")
    return quantizer


def _from_fields(codec: bytes, layout: Layout | None) -> Quantizer:
    codec_id, flags, fields, inner = protocol.split_codec(codec)
    if flags & protocol.ZSTD_FLAG:
        return _compressed(_from_fields(protocol.with_flags(codec, flags & ~protocol.ZSTD_FLAG), layout))
    if codec_id == protocol.OWN:
        raise WrongCodec("the message was made by a custom quantizer, which only the same object reads")
    if codec_id not in _BY_ID or (codec_id == Scaled.CODEC_ID and not inner):
        raise WrongCodec(f"codec {codec_id} is unknown: this version knows up to {max(_BY_ID)}; a newer sender?")
    return _BY_ID[codec_id].from_fields(fields, _from_fields(inner, layout) if inner else None, layout)
