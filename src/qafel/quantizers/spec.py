"""Parsers: from text, or from the sixteen bytes in a message's header, to a quantizer.

A spec is name[:first][,key=value]…[+zstd]:

    qsgd:4                               4 bits a coordinate
    qsgd:levels=8,norm=l2,bucket=none
    top_k:0.01,values=qsgd:4             a quantizer as an argument takes the rest of the text
    trellis:0.5,states=32                half a bit a coordinate
    top_k:0.5,round=down                 56 of 113 coordinates instead of 57
    scaled:qsgd:4
    layers:trellis:2                     tensors of different magnitudes kept apart

A family owns its name, the number of its codec and its arguments. To add one, write a file and add it to `_ALL`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from qafel.errors import SpecError, WrongCodec
from qafel.params import Layout
from qafel.quantizers import protocol
from qafel.quantizers.affine import Affine, Identity
from qafel.quantizers.family import Family, FixedRate
from qafel.quantizers.levels import Dithered, Qsgd, Sign
from qafel.quantizers.protocol import CODEC_BYTES, Quantizer
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sparse import RandK, TopK
from qafel.quantizers.trellis import Trellis
from qafel.quantizers.wrappers import Layers, Scaled, Zstd
from qafel.text import did_you_mean

_ZSTD: Final = "+zstd"
_ALL: Final[tuple[type[Family], ...]] = (
    Identity, Qsgd, TopK, RandK, Affine, Sign, Dithered, Rotated, Trellis, Scaled, Layers,
)  # fmt: skip
_BY_NAME: Final = {family.NAME: family for family in _ALL}
_BY_ID: Final = {family.CODEC_ID: family for family in _ALL}
FAMILIES: Final = tuple(sorted(_BY_NAME))
"""The names that a spec can start with."""


def parse(spec: str, layout: Layout | None = None) -> Quantizer:
    """The quantizer that a text spec such as "qsgd:4" describes. A process parses each text once.

    `layout` gives the shapes of the model's tensors, for `affine` and `layers`. Without one they see a single tensor.
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
        raise SpecError(f"unknown suffix {suffix!r} in {spec!r}; the only suffix is {_ZSTD}, at the very end")
    name, _, rest = text.partition(":")
    if name not in _BY_NAME:
        raise SpecError(f"unknown quantizer {name!r}{did_you_mean(name, FAMILIES)}")
    return _BY_NAME[name].from_spec(**_arguments(_BY_NAME[name], rest))


def _arguments(family: type[Family], text: str) -> dict[str, Any]:
    """Split the text after a family's name into arguments. The first may be given without its name."""
    name, kinds, found = family.NAME, family.ARGUMENTS, dict[str, Any]()
    first = next(iter(kinds), "")
    if kinds.get(first) is Quantizer:
        return {first: _read(text)}
    while text:
        part, _, text = text.partition(",")
        key, equals, value = part.partition("=")
        if not equals:
            if found or not kinds:
                raise SpecError(f"{name}: unexpected {part!r}; write arguments as key=value")
            key, value = first, part
        if key not in kinds:
            raise SpecError(f"{name}: unknown key {key!r}{did_you_mean(key, kinds or ['(no keys)'])}")
        if key in found:
            raise SpecError(f"{name}: {key!r} is given twice")
        if kinds[key] is Quantizer:
            found[key], text = _read(f"{value},{text}" if text else value), ""
            continue
        try:
            found[key] = kinds[key].read(value)
        except ValueError:
            raise SpecError(f"{name}: {key} must be {kinds[key].kind}, found {value!r}") from None
    return found


def _compressed(inner: Quantizer) -> Zstd:
    if not isinstance(inner, FixedRate):
        raise SpecError(f"{inner.spec!r} does not compress further; remove {_ZSTD}")
    return Zstd(inner)


def from_codec(codec: bytes, layout: Layout | None = None) -> Quantizer:
    """The quantizer that the codec bytes in a message's header name. `layout` as for `parse`."""
    if len(codec) != CODEC_BYTES:
        raise WrongCodec(f"expected {CODEC_BYTES} codec bytes, found {len(codec)}")
    try:
        quantizer = _from_fields(codec, layout)
    except SpecError as error:
        raise WrongCodec(f"the codec bytes {codec.hex()} hold invalid parameters: {error}") from error
    if quantizer.codec != codec:
        raise WrongCodec(f"the codec bytes {codec.hex()} hold more than {quantizer.spec!r}; is the sender newer?")
    return quantizer


def _from_fields(codec: bytes, layout: Layout | None) -> Quantizer:
    codec_id, flags, fields, inner = protocol.split_codec(codec)
    if flags & protocol.ZSTD_FLAG:
        return _compressed(_from_fields(protocol.with_flags(codec, flags & ~protocol.ZSTD_FLAG), layout))
    if codec_id == protocol.CUSTOM:
        raise WrongCodec("a custom quantizer made this message; only the same quantizer can read it")
    if codec_id not in _BY_ID or (codec_id in {Scaled.CODEC_ID, Layers.CODEC_ID} and not inner):
        raise WrongCodec(f"unknown codec {codec_id}; this version knows up to {max(_BY_ID)}; is the sender newer?")
    return _BY_ID[codec_id].from_fields(fields, _from_fields(inner, layout) if inner else None, layout)
