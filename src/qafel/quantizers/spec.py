"""From text, or from the sixteen bytes in a message's header, to a quantizer.

A spec is name[:positional][,key=value]…[+zstd]:

    qsgd:4                               4 bits a coordinate
    qsgd:levels=8,norm=l2,bucket=none
    top_k:0.01,values=qsgd:4             `values=` comes last and takes the rest
    trellis:0.5,states=32                half a bit a coordinate
    top_k:0.5,round=down                 56 of 113 coordinates instead of 57
    scaled:qsgd:4                        takes the rest
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from qafel.errors import SpecError, WrongCodec
from qafel.params import Layout
from qafel.quantizers import protocol
from qafel.quantizers.affine import Affine
from qafel.quantizers.dithered import Dithered
from qafel.quantizers.identity import Identity
from qafel.quantizers.payloads import DEFAULT_BUCKET
from qafel.quantizers.protocol import CODEC_BYTES, FixedLength, Quantizer, Scalable
from qafel.quantizers.qsgd import Norm, Qsgd
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sign import Sign
from qafel.quantizers.sparse import PLAIN, RandK, Rounding, TopK
from qafel.quantizers.trellis import Scale, Trellis
from qafel.quantizers.wrappers import Scaled, Zstd
from qafel.text import did_you_mean

N = TypeVar("N", int, float)
S = TypeVar("S", TopK, RandK)

_ZSTD: Final = "+zstd"


@dataclass(slots=True)
class SpecArguments:
    """The arguments of one spec, taken one by one; whatever is left over at the end is an error."""

    name: str
    positional: str | None = None
    named: dict[str, str] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)

    @staticmethod
    def read(name: str, text: str) -> SpecArguments:
        """The arguments in `text`, what follows the colon of the quantizer `name`."""
        arguments = SpecArguments(name)
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
        """The argument `key`, or the default; with `first`, it may also be the positional one."""
        self.allowed.append(key)
        value = self.named.pop(key, None)
        if first and self.positional is not None:
            if value is not None:
                raise SpecError(f"{self.name}: {key!r} is given twice, as {self.positional!r} and as {value!r}")
            value, self.positional = self.positional, None
        return default if value is None else value

    def number(self, key: str, kind: type[N], *, first: bool = False) -> N | None:
        """The argument as a number of that kind, None if it is not given."""
        value = self.text(key, first=first)
        try:
            return None if value is None else kind(value)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise SpecError(f"{self.name}: {key} must be {wanted}, found {value!r}") from None

    def needed(self, key: str) -> int:
        """A whole number that must be given, first or by name."""
        value = self.number(key, int, first=True)
        if value is None:
            raise SpecError(f"{self.name} needs {key}: write {self.name}:4")
        return value

    def bucket(self) -> int | None:
        """The argument `bucket`: a whole number, or None for the whole vector."""
        value = self.text("bucket")
        if value is None:
            return DEFAULT_BUCKET
        if value == "none":
            return None
        if not value.isdecimal():
            raise SpecError(f"{self.name}: bucket must be a whole number or none, found {value!r}")
        return int(value)

    def end(self) -> None:
        """Refuse what was given and not taken."""
        if self.positional is not None:
            raise SpecError(f"{self.name}: unexpected {self.positional!r}")
        for key in self.named:
            raise SpecError(f"{self.name}: unknown key {key!r}" + did_you_mean(key, self.allowed or ["(no keys)"]))


def parse(spec: str, layout: Layout | None = None) -> Quantizer:
    """The quantizer that a text spec such as "qsgd:4" stands for.

    `layout` says where the model's tensors lie; it matters to `affine` alone, which without one sees a single tensor.
    """
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
    if name not in _BY_NAME:
        raise SpecError(f"unknown quantizer {name!r}{did_you_mean(name, FAMILIES)}")
    arguments = SpecArguments.read(name, rest)
    quantizer = _BY_NAME[name](arguments, layout)
    arguments.end()
    return quantizer


def _compressed(inner: Quantizer) -> Zstd:
    if isinstance(inner, TopK | Trellis | Zstd):
        raise SpecError(f"{inner.spec!r} is already packed tightly: leave out {_ZSTD}")
    return Zstd(cast(FixedLength, inner))


def _scalable(inner: Quantizer) -> Scalable:
    if not isinstance(inner, Identity | Qsgd | RandK | Dithered | Rotated):
        remedy = ": trellis has scale=least" if isinstance(inner, Trellis) else ""
        raise SpecError(
            f"scaled takes qsgd, rand_k, dithered or rotated, which are unbiased, found {inner.spec!r}{remedy}"
        )
    if isinstance(inner, RandK) and inner.values != PLAIN:
        raise SpecError(f"{inner.spec!r} is too deep inside scaled: there is room for one quantizer within another")
    return inner


def _qsgd(arguments: SpecArguments) -> Qsgd:
    bits, levels = arguments.number("bits", int, first=True), arguments.number("levels", int)
    norm = cast(Norm, arguments.text("norm", "max"))
    bucket = arguments.bucket()
    if (bits is None) == (levels is None):
        raise SpecError("qsgd takes either bits or levels: qsgd:4, or qsgd:levels=8")
    if bits is not None:
        return Qsgd.of_bits(bits, norm, bucket)
    return Qsgd.of_levels(cast(int, levels), norm, bucket)


def _trellis(arguments: SpecArguments) -> Trellis:
    rate, states = arguments.number("rate", float, first=True), arguments.number("states", int)
    if rate is None:
        raise SpecError("trellis needs a rate in bits a coordinate: write trellis:2, or trellis:0.5")
    return Trellis(rate, 8 if states is None else states, cast(Scale, arguments.text("scale", "unbiased")))


def _sparse(family: type[S], arguments: SpecArguments) -> S:
    rounding = cast(Rounding, arguments.text("round", "nearest"))
    return family(_share(arguments), _values(arguments), rounding)


def _share(arguments: SpecArguments) -> float | int:
    fraction, count = arguments.number("fraction", float, first=True), arguments.number("count", int)
    if (fraction is None) == (count is None):
        name = arguments.name
        raise SpecError(f"{name} takes a fraction or a count: {name}:0.01, or {name}:count=10")
    return cast("float | int", fraction if count is None else count)


def _values(arguments: SpecArguments) -> FixedLength:
    spec = arguments.text("values")
    if spec is None:
        return Identity()
    inner = parse(spec)
    if not isinstance(inner, Qsgd | Sign | Dithered | Rotated):
        name = arguments.name
        raise SpecError(f"{name}: values must be qsgd, dithered, rotated or sign, such as qsgd:4, found {spec!r}")
    return inner


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
    if sentence := protocol.retired(codec):
        raise WrongCodec(sentence)
    if codec_id == protocol.OWN:
        raise WrongCodec("the message was made by an own quantizer, which only the same object reads")
    if codec_id not in _BY_ID or (codec_id == protocol.SCALED and not inner):
        raise WrongCodec(f"codec {codec_id} is unknown: this version knows up to {max(_BY_ID)}; a newer sender?")
    return _BY_ID[codec_id](fields, inner, layout)


def _inner_values(inner: bytes) -> FixedLength:
    return cast(FixedLength, _from_fields(inner, None)) if inner else PLAIN


def _affine_from(fields: bytes, layout: Layout | None) -> Affine:
    if not any(fields[1:5]):
        return Affine(fields[0])
    if layout is None or layout.fingerprint != fields[1:5]:
        raise WrongCodec("the affine codec was made for another model: the tensors' shapes differ from this receiver's")
    return Affine(fields[0], layout)


_BY_NAME: Final[dict[str, Callable[[SpecArguments, Layout | None], Quantizer]]] = {
    "none": lambda given, layout: Identity(),
    "qsgd": lambda given, layout: _qsgd(given),
    "top_k": lambda given, layout: _sparse(TopK, given),
    "rand_k": lambda given, layout: _sparse(RandK, given),
    "affine": lambda given, layout: Affine(given.needed("bits"), layout),
    "sign": lambda given, layout: Sign(given.bucket()),
    "dithered": lambda given, layout: Dithered(given.needed("bits"), given.bucket()),
    "rotated": lambda given, layout: Rotated(given.needed("bits")),
    "trellis": lambda given, layout: _trellis(given),
}

FAMILIES: Final = (*sorted(_BY_NAME), "scaled")
"""What a spec begins with."""

_BY_ID: Final[dict[int, Callable[[bytes, bytes, Layout | None], Quantizer]]] = {
    protocol.NONE: lambda fields, inner, layout: Identity(),
    protocol.QSGD: lambda fields, inner, layout: Qsgd.from_parameters(fields),
    protocol.TOP_K: lambda fields, inner, layout: TopK.from_parameters(fields, _inner_values(inner)),
    protocol.RAND_K: lambda fields, inner, layout: RandK.from_parameters(fields, _inner_values(inner)),
    protocol.AFFINE: lambda fields, inner, layout: _affine_from(fields, layout),
    protocol.SIGN: lambda fields, inner, layout: Sign.from_parameters(fields),
    protocol.DITHERED: lambda fields, inner, layout: Dithered.from_parameters(fields),
    protocol.ROTATED: lambda fields, inner, layout: Rotated.from_parameters(fields),
    protocol.TRELLIS: lambda fields, inner, layout: Trellis.from_parameters(fields),
    protocol.SCALED: lambda fields, inner, layout: Scaled(_scalable(_from_fields(inner, layout))),
}
