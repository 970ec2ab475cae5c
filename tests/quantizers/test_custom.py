"""An object with encode and decode is a quantizer; what it does not say follows, and what it breaks is refused."""

from __future__ import annotations

import itertools
import pickle
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.algorithm import Kind, Message, method
from qafel.errors import ConfigError, MalformedPayload, NonFiniteVector, WrongCodec
from qafel.params import Vector
from qafel.quantizers import (
    CODEC_BYTES,
    Quantizer,
    as_quantizer,
    fitness,
    from_codec,
    is_measured,
    measure_error,
    parse,
)
from qafel.quantizers.measure import gaussian
from qafel.rng import Stream
from tests.quantizers.specs import same_bits, stream, vectors


class Half:
    """The smallest custom quantizer."""

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return vector.astype(np.float16).tobytes()

    def decode(self, payload: bytes, size: int) -> Vector:
        return np.frombuffer(payload, np.float16, size).astype(np.float32)


class Packed:
    """A codec whose payloads differ in length."""

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return zlib.compress(vector.astype("<f4").tobytes(), 1)

    def decode(self, payload: bytes, size: int) -> Vector:
        return np.frombuffer(zlib.decompress(payload), "<f4")


@dataclass(frozen=True)
class Around:
    """A shipped quantizer as a user's two methods: the oracle of what is derived."""

    inner: Quantizer

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return bytes(self.inner.encode(vector, stream))

    def decode(self, payload: bytes, size: int) -> Vector:
        return self.inner.decode(payload, size)


@dataclass
class Rounded:
    """Parameters of several kinds; `_made` is nobody's business."""

    step: float = 0.5
    table: Any = field(default_factory=lambda: np.arange(3))
    _made: int = 0

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return np.clip(np.round(vector / self.step), -127, 127).astype(np.int8).tobytes()

    def decode(self, payload: bytes, size: int) -> Vector:
        return np.frombuffer(payload, np.int8, size) * np.float32(self.step)


class Knows(Half):
    """An object that states its theory and its size limit."""

    def unbiased(self, size: int) -> bool:
        return False

    def omega(self, size: int) -> float:
        return 0.25

    def max_payload_bytes(self, size: int) -> int:
        return 2 * size


def test_shipped_quantizers_pass_as_they_are_and_adapted_ones_are_not_adapted_again() -> None:
    shipped = parse("qsgd:4+zstd")
    assert as_quantizer(shipped) is shipped
    custom = as_quantizer(Half())
    assert as_quantizer(custom) is custom


@pytest.mark.parametrize("part", [Half(), Rounded(), Around(parse("qsgd:4")), Around(parse("top_k:0.1"))])
def test_adding_is_decoding_and_adding(part: Any) -> None:
    for size in (1, 113, 700):
        custom, vector, target = as_quantizer(part), vectors(size)["heavy-tailed"], vectors(size)["gaussian"]
        payload = custom.encode(vector, stream())
        decoded, forms = custom.decode(payload, size), (payload, memoryview(payload), memoryview(b"odd" + payload)[3:])
        assert payload == part.encode(vector, stream())
        assert same_bits(decoded, part.decode(payload, size))
        for weight, form in itertools.product((1.0, 0.3, -2.5, 0.0), forms):
            result = target.copy()
            custom.add_decoded_(result, form, weight)
            assert same_bits(result, target + np.float32(weight) * decoded), (size, weight)


@pytest.mark.parametrize(
    "spec", ["none", "qsgd:4", "qsgd:2", "dithered:4", "rotated:4", "rand_k:0.1", "sign", "affine:4"]
)
def test_what_is_derived_agrees_with_what_is_known(spec: str) -> None:
    known, custom, size = parse(spec), as_quantizer(Around(parse(spec))), 700
    assert custom.max_payload_bytes(size) == known.max_payload_bytes(size)
    assert custom.unbiased(size) == known.unbiased(size)
    assert 0 <= custom.omega(size) <= known.omega(size) + 1e-6
    assert custom.delta(size) == 1 - custom.omega(size)
    assert is_measured(custom)
    assert not is_measured(known)
    assert measure_error(Around(known), [gaussian(size)], 3, stream()) == measure_error(
        known, [gaussian(size)], 3, stream()
    )


def test_what_is_measured_is_said_to_be_measured() -> None:
    (biased,) = fitness(as_quantizer(Around(parse("top_k:0.1"))), 100, "client")
    assert "is biased, as measured" in biased
    (wild,) = fitness(as_quantizer(Around(parse("rand_k:0.1"))), 100, "server")
    assert "as measured)" in wild
    assert "worst case" not in wild
    assert "scaled:" not in wild, "there is no such spec for an custom quantizer"
    (known,) = fitness(as_quantizer(Knows()), 100, "client")
    assert "measured" not in known


def test_an_object_that_knows_better_is_believed() -> None:
    custom = as_quantizer(Knows())
    assert (custom.omega(9), custom.delta(9)) == (0.25, 0.75)
    assert (custom.unbiased(9), custom.max_payload_bytes(9)) == (False, 18)
    assert not is_measured(custom)


def test_codec_and_spec_tell_quantizers_and_their_parameters_apart() -> None:
    parts = [Half(), Packed(), Rounded(), Rounded(0.25), Rounded(table=np.arange(4)), Around(parse("qsgd:4"))]
    customs = [as_quantizer(part) for part in parts]
    codecs, specs = {custom.codec for custom in customs}, {custom.spec for custom in customs}
    assert len(codecs) == len(specs) == len(set(customs)) == len(parts)
    assert all(len(custom.codec) == CODEC_BYTES and custom.codec[0] == 11 for custom in customs)
    again = [as_quantizer(Rounded(_made=7)), as_quantizer(Half())]
    assert [custom.codec for custom in again] == [customs[2].codec, customs[0].codec]
    assert customs[0].spec == "tests.quantizers.test_custom:Half"
    assert customs[5].spec == "tests.quantizers.test_custom:Around(inner=qsgd:4)"
    assert as_quantizer(Rounded(), "mine").spec.startswith("mine(step=0.5, table=")


def test_two_sides_with_different_own_quantizers_refuse_each_other() -> None:
    ours, theirs = as_quantizer(Rounded(0.5)), as_quantizer(Rounded(0.25))
    message = Message(Kind.UPLOAD, theirs.codec, 9, 0, theirs.encode(gaussian(9), stream()))
    message.check(Kind.UPLOAD, 9, as_quantizer(Rounded(0.25)))
    with pytest.raises(WrongCodec, match="another custom quantizer"):
        message.check(Kind.UPLOAD, 9, ours)
    with pytest.raises(WrongCodec, match="another custom quantizer"):
        message.check(Kind.UPLOAD, 9, parse("qsgd:4"))
    with pytest.raises(WrongCodec, match="custom quantizer"):
        from_codec(theirs.codec)


def test_payloads_of_different_lengths_get_room_and_a_limit() -> None:
    custom = as_quantizer(Packed())
    for vector in vectors(500).values():
        assert len(custom.encode(vector, stream())) <= custom.max_payload_bytes(500)
    assert custom.max_payload_bytes(500) < 10 * 500

    class Growing(Packed):
        def encode(self, vector: Vector, stream: Stream) -> bytes:
            return super().encode(vector, stream) + bytes(int(abs(vector[0])))

    with pytest.raises(ConfigError, match=r"wrote .* max_payload_bytes\(size\)"):
        as_quantizer(Growing()).encode(np.full(50, 9e5, np.float32), stream())


class Faulty(Half):
    """Decodes soundly but for payloads that begin with four bytes 0xee."""

    def __init__(self, fault: Any) -> None:
        self._fault = fault

    def decode(self, payload: bytes, size: int) -> Any:
        if payload[:4] != b"\xee" * 4:
            return super().decode(payload, size)
        if isinstance(self._fault, BaseException):
            raise self._fault
        return self._fault


FAULTS = [
    ValueError("no"), KeyError(3), ZeroDivisionError(), MemoryError(), RecursionError(), StopIteration(),
    MalformedPayload("mine"), None, [1.0] * 9, np.zeros(8, np.float32), np.zeros((9, 1), np.float32), np.zeros(9, int),
    np.zeros(9, complex), np.full(9, np.nan, np.float32), np.full(9, np.inf), np.full(9, 1e300), np.array(["a"] * 9),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_whatever_decode_does_to_hostile_bytes_is_a_rejection(fault: Any) -> None:
    custom, target, hostile = as_quantizer(Faulty(fault)), gaussian(9), b"\xee" * 18
    before = target.copy()
    with pytest.raises(MalformedPayload, match="Faulty cannot read"):
        custom.decode(hostile, 9)
    with pytest.raises(MalformedPayload, match="Faulty cannot read"):
        custom.add_decoded_(target, hostile)
    assert same_bits(target, before)


def test_a_keyboard_interrupt_in_decode_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        as_quantizer(Faulty(KeyboardInterrupt())).decode(b"\xee" * 18, 9)


@settings(max_examples=60, deadline=None)
@given(garbage=st.binary(max_size=300), part=st.sampled_from([Half(), Packed(), Rounded(), Around(parse("qsgd:4"))]))
def test_garbage_is_rejected_or_decodes_to_finite_values(garbage: bytes, part: Any) -> None:
    try:
        decoded = as_quantizer(part).decode(garbage, 40)
    except MalformedPayload:
        return
    assert decoded.shape == (40,)
    assert np.isfinite(decoded).all()


def test_what_is_longer_than_any_payload_is_rejected_before_it_is_read() -> None:
    with pytest.raises(MalformedPayload, match="at most 18"):
        as_quantizer(Faulty(None)).decode(b"\xee" * 20, 9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_never_reaches_the_object(bad: float) -> None:
    with pytest.raises(NonFiniteVector):
        as_quantizer(Half()).encode(np.array([1, bad], np.float32), stream())


def test_an_encode_that_changes_its_argument_changes_a_copy() -> None:
    class Greedy(Half):
        def encode(self, vector: Vector, stream: Stream) -> bytes:
            vector /= 2
            return super().encode(vector, stream)

    vector = gaussian(9)
    before = vector.copy()
    as_quantizer(Greedy()).encode(vector, stream())
    assert same_bits(vector, before)


class ReturnsAnArray(Half):
    def encode(self, vector: Vector, stream: Stream) -> Any:
        return vector.astype(np.float16)


class TakesItsOwnRandomness(Half):
    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return super().encode(vector + np.random.default_rng().normal(size=vector.size).astype(np.float32), stream)


class Forgets(Half):
    def decode(self, payload: bytes, size: int) -> Vector:
        return super().decode(payload, size - 1)


class DividesByZero(Half):
    def encode(self, vector: Vector, stream: Stream) -> bytes:
        with np.errstate(all="ignore"):
            return super().encode(vector / np.abs(vector).max(), stream)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (ReturnsAnArray(), "ndarray"),
        (TakesItsOwnRandomness(), "different bytes"),
        (Forgets(), "does not decode"),
        (DividesByZero(), "zero vector"),
        (Half, "class Half"),
        ("half", "half"),
        (object(), "encode"),
    ],
)
def test_mistakes_get_a_sentence(part: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        as_quantizer(part).encode(gaussian(9), stream())


def test_a_method_takes_the_object_and_pickles_it() -> None:
    algorithm = method("qafel", client_quantizer=Half(), server_quantizer=Rounded())
    assert algorithm.client_quantizer.spec.endswith(":Half")
    again = pickle.loads(pickle.dumps(algorithm))
    assert again.client_quantizer == algorithm.client_quantizer
    assert again.client_quantizer.codec == algorithm.client_quantizer.codec
    with pytest.raises(ConfigError, match="encode"):
        method("qafel", client_quantizer=object())
    with pytest.raises(ConfigError, match="client_quantizer"):
        method("qafel", client_quantizer=3)
