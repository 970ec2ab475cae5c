"""The promises of every quantizer. A new one is added to SPECS."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.errors import MalformedPayload, NonFiniteVector
from qafel.quantizers import CODEC_BYTES, Quantizer, from_codec, parse, threads
from qafel.rng import Stream
from tests.quantizers.specs import SPECS, every_spec, same_bits, stream, vectors

SIZES = (0, 1, 2, 3, 31, 113, 511, 512, 513, 1023, 4097)


def round_trip(quantizer: Quantizer, vector: np.ndarray, number: int = 0) -> np.ndarray:
    return quantizer.decode(quantizer.encode(vector, stream(number)), vector.size)


@every_spec
def test_spec_and_codec_name_the_quantizer(spec: str) -> None:
    quantizer = parse(spec)
    assert quantizer.spec == spec
    assert parse(quantizer.spec) == quantizer
    assert len(quantizer.codec) == CODEC_BYTES
    assert from_codec(quantizer.codec) == quantizer


def test_codecs_differ_where_quantizers_do() -> None:
    assert len({parse(spec).codec for spec in SPECS}) == len(SPECS)


@every_spec
def test_round_trip_at_every_size(spec: str) -> None:
    quantizer = parse(spec)
    for size, (name, vector) in ((n, item) for n in SIZES for item in vectors(n).items()):
        kept = vector.copy()
        payload = quantizer.encode(vector, stream())
        assert isinstance(payload, bytes)  # a small one
        assert len(payload) <= quantizer.max_payload_bytes(size), (size, name)
        decoded = quantizer.decode(payload, size)
        assert decoded.dtype == np.float32, (size, name)
        assert decoded.shape == (size,), (size, name)
        assert np.isfinite(decoded).all(), (size, name)
        assert same_bits(vector, kept), "encode changed its input"
        if not vector.any():
            assert not decoded.any(), "zero must stay zero"


@every_spec
def test_huge_and_subnormal_values_stay_finite_and_near(spec: str) -> None:
    quantizer = parse(spec)
    for scale in (1e38, 3.4e38, 1e-38, 1e-40, 1e-44):
        vector = (np.random.default_rng(1).choice([-1.0, 0.5, 1.0], 700) * scale).astype(np.float32)
        decoded = round_trip(quantizer, vector)
        assert np.isfinite(decoded).all(), scale
        if 1e-40 <= scale <= 1e38:
            error = np.linalg.norm(decoded / scale - vector / scale) ** 2
            tolerance = 1.0 + quantizer.omega(vector.size)  # one draw, so twice the mean is plenty
            assert error <= 2 * tolerance * np.linalg.norm(vector / scale) ** 2, scale


@every_spec
def test_nan_and_infinity_are_refused(spec: str) -> None:
    for bad, size in itertools.product((np.nan, np.inf, -np.inf), (1, 29, 600)):
        vector = np.ones(size, np.float32)
        vector[-1] = bad
        with pytest.raises(NonFiniteVector, match=f"at {size - 1}"):
            parse(spec).encode(vector, stream())


@every_spec
def test_other_arrays_are_refused_or_converted(spec: str) -> None:
    quantizer = parse(spec)
    with pytest.raises(TypeError, match="float32"):
        quantizer.encode(np.ones(8), stream())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="flat"):
        quantizer.encode(np.ones((2, 4), np.float32), stream())
    every_second = np.random.default_rng(0).standard_normal(40, dtype=np.float32)[::2]
    assert quantizer.encode(every_second, stream()) == quantizer.encode(every_second.copy(), stream())
    payload = quantizer.encode(np.ones(8, np.float32), stream())
    with pytest.raises(ValueError, match="in place"):
        quantizer.add_decoded_(np.ones(16, np.float32)[::2], payload)


@every_spec
def test_the_stream_alone_decides(spec: str) -> None:
    quantizer = parse(spec)
    vector = vectors(1100)["gaussian"]
    assert quantizer.encode(vector, stream(1)) == quantizer.encode(vector, stream(1))
    if quantizer.unbiased(vector.size) and quantizer.omega(vector.size) > 0:
        assert quantizer.encode(vector, stream(1)) != quantizer.encode(vector, stream(2))


@every_spec
def test_add_decoded_equals_weight_times_decode_bit_for_bit(spec: str) -> None:
    quantizer = parse(spec)
    for size in (1, 113, 513, 4500):
        payload, target = quantizer.encode(vectors(size)["heavy-tailed"], stream()), vectors(size)["gaussian"]
        decoded = quantizer.decode(payload, size)
        forms = (payload, memoryview(payload), memoryview(b"odd" + payload)[3:], memoryview(bytearray(payload)))
        for weight, form in itertools.product((1.0, 0.3, -2.5, 0.0), forms):
            result = target.copy()
            quantizer.add_decoded_(result, form, weight)
            assert same_bits(result, target + np.float32(weight) * decoded), (size, weight)


@every_spec
def test_threads_change_no_bit(spec: str) -> None:
    quantizer = parse(spec)
    size = (1 << 19) + 777
    vector = np.random.default_rng(3).standard_normal(size, dtype=np.float32)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            payload = quantizer.encode(vector, stream())
            target = vector.copy()
            quantizer.add_decoded_(target, payload, 0.7)
            results.append((payload, quantizer.decode(payload, size).tobytes(), target.tobytes()))
    assert results[0] == results[1] == results[2]


@every_spec
def test_unbiased_where_claimed(spec: str) -> None:
    """Mean error over 600 draws along 24 directions within 5.5 standard errors: wrong alarm below 1e-6 a spec."""
    quantizer = parse(spec)
    if not quantizer.unbiased(300) or quantizer.omega(300) == 0:
        pytest.skip("claims no unbiasedness, or is exact")
    for name in ("heavy-tailed", "all-equal", "two-sparse"):
        vector = vectors(300)[name]
        directions = np.random.default_rng(5).choice([-1.0, 1.0], (24, 300))
        directions[0] = vector
        errors = np.array([round_trip(quantizer, vector, n) - vector for n in range(600)], np.float64) @ directions.T
        spread = errors.std(0, ddof=1) / np.sqrt(600)
        assert (np.abs(errors.mean(0)) <= 5.5 * spread + 1e-5 * np.abs(vector).sum()).all(), name


@every_spec
def test_error_within_omega_and_delta(spec: str) -> None:
    """Mean squared error over 150 draws at most ω‖x‖² and (1 − δ)‖x‖², within 5.5 standard errors."""
    quantizer = parse(spec)
    for size, (name, vector) in ((n, item) for n in (1, 40, 700) for item in vectors(n).items()):
        omega, delta = quantizer.omega(size), quantizer.delta(size)
        assert delta <= 1
        energy = float(np.vdot(vector.astype(np.float64), vector.astype(np.float64)))
        draws = [round_trip(quantizer, vector, n).astype(np.float64) - vector for n in range(150)]
        errors = np.array([np.vdot(error, error) for error in draws])
        slack = 5.5 * errors.std(ddof=1) / np.sqrt(errors.size) + 1e-5 * energy
        assert errors.mean() <= omega * energy + slack, (size, name)
        assert errors.mean() <= (1 - delta) * energy + slack, (size, name)


@every_spec
def test_wrong_lengths_raise_and_change_nothing(spec: str) -> None:
    quantizer = parse(spec)
    vector = vectors(700)["gaussian"]
    payload = quantizer.encode(vector, stream())
    for wrong in (b"", payload[:-1], payload[: len(payload) // 2], payload + b"\0", payload + payload, payload * 40):
        target = vector.copy()
        with pytest.raises(MalformedPayload):
            quantizer.decode(wrong, 700)
        with pytest.raises(MalformedPayload):
            quantizer.add_decoded_(target, wrong)
        assert same_bits(target, vector)


@every_spec
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_garbage_raises_or_decodes_to_finite_values(spec: str, data: st.DataObject) -> None:
    quantizer = parse(spec)
    size = data.draw(st.sampled_from([1, 5, 113, 600]))
    length = data.draw(st.integers(0, quantizer.max_payload_bytes(size) + 2))
    if data.draw(st.booleans()):
        length = len(quantizer.encode(vectors(size)["gaussian"], stream()))
    garbage = data.draw(st.binary(min_size=length, max_size=length))
    target = vectors(size)["gaussian"]
    before = target.copy()
    try:
        decoded = quantizer.decode(garbage, size)
    except MalformedPayload:
        with pytest.raises(MalformedPayload):
            quantizer.add_decoded_(target, garbage)
        assert same_bits(target, before)
    else:
        assert np.isfinite(decoded).all()


@every_spec
def test_flipped_bits_never_crash(spec: str) -> None:
    quantizer = parse(spec)
    payload = bytearray(quantizer.encode(vectors(300)["gaussian"], stream()))
    generator = np.random.default_rng(11)
    for _ in range(300):
        damaged = bytearray(payload)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(len(damaged))] ^= 1 << generator.integers(8)
        try:
            assert np.isfinite(quantizer.decode(bytes(damaged), 300)).all()
        except MalformedPayload:
            continue


@every_spec
def test_decoding_garbage_allocates_little(spec: str) -> None:
    quantizer = parse(spec)
    size = 5000
    garbage = np.random.default_rng(0).bytes(quantizer.max_payload_bytes(size))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedPayload):
            quantizer.decode(garbage[:-1] + b"\xff" * 3, size)
        for length in (len(garbage), len(garbage) // 2, 40):
            try:
                quantizer.decode(garbage[:length], size)
            except MalformedPayload:
                continue
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * size + 100_000


@pytest.mark.parametrize("spec", ["qsgd:4", "rotated:4", "qsgd:4+zstd", "top_k:0.5,values=qsgd:8", "rand_k:1.0"])
def test_a_large_payload_reads_like_bytes_and_cannot_be_changed(spec: str) -> None:
    """Large ones are handed out as the encoder wrote them; they still compare, slice, join and decode like bytes."""
    quantizer, vector = parse(spec), np.random.default_rng(0).normal(size=700_001).astype(np.float32)
    payload = quantizer.encode(vector, Stream.named(0, "large"))
    again = quantizer.encode(vector, Stream.named(0, "large"))
    copy = bytes(payload)
    assert payload == again == copy
    assert memoryview(payload).readonly
    assert len(payload) == len(copy) <= quantizer.max_payload_bytes(vector.size)
    assert b"".join((b"head", payload)) == b"head" + copy
    assert same_bits(quantizer.decode(payload, vector.size), quantizer.decode(copy, vector.size))
    vector[:] = 0.0
    assert payload == copy, "a payload shares no memory with what was encoded"
