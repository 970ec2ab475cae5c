"""Frames that lie: no claim in a message makes the receiver allocate more than it expects."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zstandard

from qafel.errors import MalformedPayload
from qafel.quantizers import parse
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
