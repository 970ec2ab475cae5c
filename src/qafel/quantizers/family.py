"""The whole family: from a spec, or from the sixteen bytes in a message, to a quantizer."""

from __future__ import annotations

from typing import cast

from qafel.errors import SpecError, WrongCodec
from qafel.params import Layout
from qafel.quantizers import codec as ids
from qafel.quantizers.codec import split_codec
from qafel.quantizers.identity import Identity
from qafel.quantizers.protocol import CODEC_BYTES, FixedLength, Quantizer
from qafel.quantizers.qsgd import DEFAULT_BUCKET, Norm, Qsgd
from qafel.quantizers.spec import Arguments, nearest
from qafel.quantizers.top_k import TopK, share_from_fields

NAMES = ("none", "qsgd", "top_k")


def parse(spec: str, layout: Layout | None = None) -> Quantizer:
    """The quantizer that a text spec such as "qsgd:4" stands for. `layout` matters to `affine` alone."""
    name, _, rest = spec.strip().partition(":")
    return _build(name, rest, layout)


def _build(name: str, rest: str, layout: Layout | None) -> Quantizer:
    arguments = Arguments.read(name, rest)
    quantizer: Quantizer
    match name:
        case "none":
            quantizer = Identity()
        case "qsgd":
            quantizer = _qsgd(arguments)
        case "top_k":
            quantizer = TopK(_share(arguments), _values(arguments))
        case _:
            raise SpecError(f"unknown quantizer {name!r}; {nearest(name, NAMES)}")
    arguments.end()
    return quantizer


def _qsgd(arguments: Arguments) -> Qsgd:
    bits, levels = arguments.integer("bits", first=True), arguments.integer("levels")
    norm = cast(Norm, arguments.text("norm", "max"))
    bucket = arguments.bucket(DEFAULT_BUCKET)
    if (bits is None) == (levels is None):
        raise SpecError("qsgd takes either bits or levels: qsgd:4, or qsgd:levels=8")
    if bits is not None:
        return Qsgd.of_bits(bits, norm, bucket)
    return Qsgd.of_levels(cast(int, levels), norm, bucket)


def _share(arguments: Arguments) -> float | int:
    fraction, count = arguments.number("fraction", first=True), arguments.integer("count")
    if (fraction is None) == (count is None):
        raise SpecError(
            f"{arguments.name} takes a fraction or a count: {arguments.name}:0.01, or {arguments.name}:count=10"
        )
    return cast("float | int", fraction if count is None else count)


def _values(arguments: Arguments) -> FixedLength:
    spec = arguments.text("values")
    if spec is None:
        return Identity()
    inner = parse(spec)
    if not isinstance(inner, Qsgd):
        raise SpecError(
            f"{arguments.name}: values must be a plain fixed-length quantizer such as qsgd:4, found {spec!r}"
        )
    return inner


def from_codec(codec: bytes, layout: Layout | None = None) -> Quantizer:
    """The quantizer that wrote a message, from the codec bytes in its header."""
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
    codec_id, _, fields, inner = split_codec(codec)
    match codec_id:
        case ids.NONE:
            return Identity()
        case ids.QSGD:
            return Qsgd.from_parameters(fields)
        case ids.TOP_K:
            values = _from_fields(inner, layout) if inner else Identity()
            return TopK(share_from_fields(fields), cast(FixedLength, values))
        case _:
            raise WrongCodec(f"codec {codec_id} is unknown: this version knows 1 to {ids.SCALED}; a newer sender?")
