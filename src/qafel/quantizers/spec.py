"""The whole family: from a spec, or from the sixteen bytes in a message, to a quantizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from qafel.errors import SpecError, WrongCodec
from qafel.params import Layout
from qafel.quantizers import protocol as ids
from qafel.quantizers.affine import Affine
from qafel.quantizers.dithered import Dithered
from qafel.quantizers.identity import Identity
from qafel.quantizers.protocol import (
    CODEC_BYTES,
    ZSTD_FLAG,
    FixedLength,
    Quantizer,
    Scalable,
    split_codec,
    without_flag,
)
from qafel.quantizers.qsgd import DEFAULT_BUCKET, Norm, Qsgd
from qafel.quantizers.rand_k import RandK
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sign import Sign
from qafel.quantizers.top_k import PLAIN, TopK, share_from_fields
from qafel.quantizers.wrappers import Scaled, Zstd
from qafel.text import did_you_mean

# Text to quantizer: name[:positional][,key=value]…[+zstd].
#
# qsgd:4                       4 bits a coordinate
# qsgd:levels=8,norm=l2,bucket=none
# top_k:0.01,values=qsgd:4     `values=` comes last and takes the rest
# scaled:qsgd:4                takes the rest


@dataclass(slots=True)
class Arguments:
    """The arguments of one spec, taken one by one; whatever is left over at the end is an error."""

    name: str
    positional: str | None = None
    named: dict[str, str] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)

    @staticmethod
    def read(name: str, text: str) -> Arguments:
        arguments = Arguments(name)
        rest = text
        while rest:
            if rest.startswith("values="):
                arguments.named["values"] = rest.removeprefix("values=")
                break
            part, _, rest = rest.partition(",")
            key, equals, value = part.partition("=")
            if not equals:
                if arguments.positional is not None or arguments.named:
                    raise SpecError(f"{name}: {part!r} has no name; write key=value after the first argument")
                arguments.positional = part
            elif key in arguments.named:
                raise SpecError(f"{name}: {key!r} is given twice")
            else:
                arguments.named[key] = value
        return arguments

    def text(self, key: str, default: str | None = None, *, first: bool = False) -> str | None:
        """The argument `key`; with `first`, also as the positional one."""
        self.allowed.append(key)
        value = self.named.pop(key, None)
        if first and self.positional is not None:
            if value is not None:
                raise SpecError(f"{self.name}: {key!r} is given twice, as {self.positional!r} and as {value!r}")
            value, self.positional = self.positional, None
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, first: bool = False) -> int | None:
        value = self.text(key, first=first)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise SpecError(f"{self.name}: {key} must be a whole number, found {value!r}") from None

    def needed(self, key: str) -> int:
        """A whole number that has no default, given first or by name."""
        value = self.integer(key, first=True)
        if value is None:
            raise SpecError(f"{self.name} needs {key}: write {self.name}:4")
        return value

    def number(self, key: str, *, first: bool = False) -> float | None:
        value = self.text(key, first=first)
        if value is None:
            return None
        try:
            return float(value)
        except ValueError:
            raise SpecError(f"{self.name}: {key} must be a number, found {value!r}") from None

    def bucket(self, default: int | None) -> int | None:
        value = self.text("bucket")
        if value is None:
            return default
        if value == "none":
            return None
        if not value.isdecimal():
            raise SpecError(f"{self.name}: bucket must be a whole number or none, found {value!r}")
        return int(value)

    def end(self) -> None:
        """Refuse what no one asked for."""
        if self.positional is not None:
            raise SpecError(f"{self.name}: unexpected {self.positional!r}")
        for key in self.named:
            raise SpecError(f"{self.name}: unknown key {key!r}" + did_you_mean(key, self.allowed or ["(no keys)"]))


NAMES = ("none", "qsgd", "top_k", "rand_k", "affine", "sign", "dithered", "rotated", "scaled")


_ZSTD = "+zstd"


def parse(spec: str, layout: Layout | None = None) -> Quantizer:
    """The quantizer that a text spec such as "qsgd:4" stands for. `layout` matters to `affine` alone."""
    text = spec.strip()
    plain = text.removesuffix(_ZSTD)
    if plain != text:
        return _compressed(parse(plain, layout))
    if "+" in text:
        suffix = text[text.index("+") :]
        raise SpecError(f"unknown suffix {suffix!r} in {spec!r}: only {_ZSTD} can follow a quantizer, at the very end")
    name, _, rest = text.partition(":")
    if name == "scaled":
        return Scaled(_scalable(parse(rest, layout)))
    arguments = Arguments.read(name, rest)
    quantizer = _build(arguments, layout)
    arguments.end()
    return quantizer


def _build(arguments: Arguments, layout: Layout | None) -> Quantizer:  # noqa: PLR0911 — one return a name
    match arguments.name:
        case "none":
            return Identity()
        case "qsgd":
            return _qsgd(arguments)
        case "top_k":
            return TopK(_share(arguments), _values(arguments))
        case "rand_k":
            return RandK(_share(arguments), _values(arguments))
        case "affine":
            return Affine(arguments.needed("bits"), layout)
        case "sign":
            return Sign(arguments.bucket(DEFAULT_BUCKET))
        case "dithered":
            return Dithered(arguments.needed("bits"), arguments.bucket(DEFAULT_BUCKET))
        case "rotated":
            return Rotated(arguments.needed("bits"))
        case name:
            raise SpecError(f"unknown quantizer {name!r}{did_you_mean(name, sorted(NAMES))}")


def _compressed(inner: Quantizer) -> Zstd:
    if isinstance(inner, TopK | Zstd):
        raise SpecError(f"{inner.spec!r} is packed tightly already: leave out {_ZSTD}")
    return Zstd(cast(FixedLength, inner))


def _scalable(inner: Quantizer) -> Scalable:
    if not isinstance(inner, Identity | Qsgd | RandK | Dithered | Rotated):
        raise SpecError(f"scaled takes qsgd, rand_k, dithered or rotated, which are unbiased, found {inner.spec!r}")
    if isinstance(inner, RandK) and inner.values != PLAIN:
        raise SpecError(f"{inner.spec!r} is too deep inside scaled: there is room for one quantizer within another")
    return inner


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
    if not isinstance(inner, Qsgd | Sign | Dithered | Rotated):
        raise SpecError(
            f"{arguments.name}: values must be qsgd, dithered, rotated or sign, such as qsgd:4, found {spec!r}"
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


def _from_fields(codec: bytes, layout: Layout | None) -> Quantizer:  # noqa: PLR0911 — one return a codec
    codec_id, flags, fields, inner = split_codec(codec)
    if flags & ZSTD_FLAG:
        return _compressed(_from_fields(without_flag(codec, ZSTD_FLAG), layout))
    match codec_id:
        case ids.NONE:
            return Identity()
        case ids.QSGD:
            return Qsgd.from_parameters(fields)
        case ids.TOP_K:
            return TopK(share_from_fields(fields), _inner_values(inner))
        case ids.RAND_K:
            return RandK(share_from_fields(fields), _inner_values(inner))
        case ids.AFFINE:
            return _affine_from(fields, layout)
        case ids.SIGN:
            return Sign.from_parameters(fields)
        case ids.DITHERED:
            return Dithered.from_parameters(fields)
        case ids.ROTATED:
            return Rotated.from_parameters(fields)
        case ids.SCALED if inner:
            return Scaled(_scalable(_from_fields(inner, layout)))
        case _:
            raise WrongCodec(f"codec {codec_id} is unknown: this version knows 1 to {ids.SCALED}; a newer sender?")


def _inner_values(inner: bytes) -> FixedLength:
    return cast(FixedLength, _from_fields(inner, None)) if inner else PLAIN


def _affine_from(fields: bytes, layout: Layout | None) -> Affine:
    if not any(fields[1:5]):
        return Affine(fields[0])
    if layout is None or layout.fingerprint != fields[1:5]:
        raise WrongCodec("the affine codec was made for another model: the tensors' shapes differ from this receiver's")
    return Affine(fields[0], layout)
