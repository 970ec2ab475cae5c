from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.errors import MalformedPayload
from qafel.quantizers import TopK, from_codec, parse
from qafel.quantizers.sparse import decode_indices, encode_indices, max_index_bytes
from tests.quantizers.specs import stream


@pytest.mark.parametrize(
    ("share", "size", "count"), [(0.01, 113, 1), (0.5, 113, 57), (0.01, 29_282, 293), (0.29, 100, 29), (1e-6, 10, 1)]
)
def test_a_fraction_is_rounded_and_never_to_none(share: float, size: int, count: int) -> None:
    assert TopK(share).count(size) == count
    assert TopK(5).count(3) == 3


@pytest.mark.parametrize(
    ("share", "size", "count"), [(0.5, 113, 56), (0.01, 113, 1), (0.29, 100, 29), (0.1, 30, 3), (0.999, 1000, 999)]
)
def test_a_fraction_may_be_rounded_down_and_the_wire_says_so(share: float, size: int, count: int) -> None:
    quantizer = parse(f"top_k:{share},round=down")
    assert isinstance(quantizer, TopK)
    assert quantizer.count(size) == count
    assert from_codec(quantizer.codec) == quantizer != TopK(share)
    vector = np.arange(1, size + 1, dtype=np.float32)
    assert np.count_nonzero(from_codec(quantizer.codec).decode(quantizer.encode(vector, stream()), size)) == count


@given(st.integers(1, 3000), st.floats(0.001, 1.0), st.integers(0, 2**32))
@settings(deadline=None)
def test_top_k_keeps_the_largest_and_the_first_among_equals(size: int, fraction: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    vector = generator.integers(-5, 6, size).astype(np.float32)  # many ties
    quantizer = TopK(fraction)
    order = np.argsort(-np.abs(vector), kind="stable")[: quantizer.count(size)]
    expected = np.zeros(size, np.float32)
    expected[order] = vector[order]
    assert np.array_equal(quantizer.decode(quantizer.encode(vector, stream()), size), expected)


@given(st.integers(1, 5000), st.data())
@settings(deadline=None)
def test_indices_survive_their_code_within_its_bound(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    seed = data.draw(st.integers(0, 2**32))
    clustered = data.draw(st.booleans())
    generator = np.random.default_rng(seed)
    chosen = np.arange(size - count, size) if clustered else generator.choice(size, count, replace=False)
    indices = np.sort(chosen).astype(np.uint32)
    code = encode_indices(indices, size)
    assert len(code) <= max_index_bytes(count, size)
    assert np.array_equal(decode_indices(code, count, size), indices)


@given(st.binary(max_size=60), st.integers(1, 40), st.integers(1, 500))
@settings(deadline=None)
def test_garbage_indices_are_refused_or_valid(garbage: bytes, count: int, size: int) -> None:
    count = min(count, size)
    try:
        indices = decode_indices(garbage, count, size)
    except MalformedPayload:
        return
    assert indices.size == count
    assert (np.diff(indices.astype(np.int64)) > 0).all()
    assert indices[-1] < size


def test_composition_quantizes_the_kept_values() -> None:
    vector = np.random.default_rng(0).standard_normal(20_000, dtype=np.float32)
    plain, small = parse("top_k:0.05"), parse("top_k:0.05,values=qsgd:4")
    assert len(small.encode(vector, stream())) < 0.4 * len(plain.encode(vector, stream()))
    kept, rounded = (q.decode(q.encode(vector, stream()), vector.size) for q in (plain, small))
    assert not rounded[kept == 0].any()
    assert np.linalg.norm(rounded - kept) < 0.5 * np.linalg.norm(kept)
