"""Frames that lie: no claim in a message makes the receiver allocate more than it expects. Pieces of tensors."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zstandard

from qafel.errors import MalformedPayload, SpecError, WrongCodec
from qafel.params import Layout
from qafel.quantizers import from_codec, parse
from tests.quantizers.specs import stream

SIZE = 5000


def forged(content: bytes, **options: bool) -> bytes:
    head = parse("qsgd:4").encode(np.ones(SIZE, np.float32), stream())[: 4 * 10]
    return head + zstandard.ZstdCompressor(**options).compress(content)


@pytest.mark.parametrize("claimed", [True, False])
def test_a_bomb_is_refused_without_being_unpacked(claimed: bool) -> None:
    bomb = forged(bytes(50_000_000), write_content_size=claimed)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedPayload):
            parse("qsgd:4+zstd").decode(bomb, SIZE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def test_frames_of_the_wrong_length_or_with_more_behind_them_are_refused() -> None:
    right = bytes([0x77]) * (SIZE // 2)
    quantizer = parse("qsgd:4+zstd")
    quantizer.decode(forged(right), SIZE)
    for wrong in (forged(right[:-1]), forged(right + b"\0"), forged(right) + b"\0", forged(right) * 2):
        with pytest.raises(MalformedPayload):
            quantizer.decode(wrong, SIZE)


def test_the_same_values_come_back_with_and_without() -> None:
    vector = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    for spec in ("qsgd:4", "qsgd:2", "dithered:4", "rotated:3", "affine:4", "scaled:qsgd:4"):
        plain, coded = parse(spec), parse(spec + "+zstd")
        payload = coded.encode(vector, stream())
        assert np.array_equal(coded.decode(payload, SIZE), plain.decode(plain.encode(vector, stream()), SIZE))


TENSORS = Layout.of({"empty": (0, 3), **{str(number): (16, 64) for number in range(24)}, "one": (1,)})


def of_different_magnitudes() -> np.ndarray:
    """Every tensor has half of another's magnitude, in random order."""
    generator = np.random.default_rng(0)
    scales = np.append(np.repeat(0.5 ** generator.permutation(24), 1024), 1.0).astype(np.float32)
    return generator.standard_normal(TENSORS.size, dtype=np.float32) * scales


def errors(spec: str) -> tuple[np.ndarray, int]:
    """The relative error of every tensor, and the length of the payload."""
    quantizer, vector = parse(spec, TENSORS), of_different_magnitudes()
    payload = quantizer.encode(vector, stream())
    difference = TENSORS.split(quantizer.decode(payload, vector.size) - vector)
    pairs = zip(difference.values(), TENSORS.split(vector).values(), strict=True)
    return np.array([np.square(a).sum() / np.square(b).sum() for a, b in pairs if b.size > 1]), len(payload)


@pytest.mark.parametrize("inner", ["rotated:2", "trellis:2"])
def test_layers_keep_small_tensors_out_of_the_noise_of_large_ones(inner: str) -> None:
    (plain, length), (layers, more) = errors(inner), errors(f"layers:{inner}")
    assert plain.max() > 1e6
    assert layers.max() < 1000
    assert more <= 1.03 * length  # of which 1 % is the tolerance of trellis


def test_layers_are_named_with_their_layout() -> None:
    quantizer = parse("layers:trellis:2", TENSORS)
    assert from_codec(quantizer.codec, TENSORS) == quantizer != parse("layers:trellis:2")
    for other in (None, Layout.flat(TENSORS.size)):
        with pytest.raises(WrongCodec, match="another model"):
            from_codec(quantizer.codec, other)
    with pytest.raises(ValueError, match="layout"):
        quantizer.encode(np.ones(TENSORS.size + 1, np.float32), stream())
    for inner in ("qsgd:4", "scaled:rotated:2", "layers:trellis:2"):
        with pytest.raises(SpecError, match="rotated or trellis"):
            parse(f"layers:{inner}")


def test_layers_with_more_tensors_than_pieces() -> None:
    layout = Layout.of({str(number): (3,) for number in range(400)})
    quantizer, vector = parse("layers:trellis:0.5", layout), np.ones(1200, np.float32)
    payload = quantizer.encode(vector, stream())
    assert len(payload) <= parse("trellis:0.5").max_payload_bytes(1200) + 1
    assert np.square(quantizer.decode(payload, 1200) - vector).sum() <= quantizer.omega(1200) * 1200


def test_layers_refuse_damaged_payloads_and_leave_the_target() -> None:
    quantizer, vector = parse("layers:trellis:2", TENSORS), of_different_magnitudes()
    payload, target = quantizer.encode(vector, stream()), vector.copy()
    for wrong in (b"", payload[:10], payload[:-2], payload + b"00", payload[:60] + bytes(len(payload) - 60)):
        with pytest.raises(MalformedPayload):
            quantizer.add_decoded_(target, wrong)
    assert np.array_equal(target, vector)
