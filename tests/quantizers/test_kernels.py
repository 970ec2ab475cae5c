"""The compiled kernels against the oracle, and the random numbers they make."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats

from qafel.quantizers import parse
from qafel.quantizers.kernels import packed_bytes
from qafel.quantizers.kernels.sparse import select_random
from qafel.rng import Stream
from tests.quantizers import decoder, oracle
from tests.quantizers.specs import same_bits, stream, vectors

SIZES = (1, 2, 5, 127, 511, 512, 513, 2049)


def test_qsgd_encodes_and_decodes_as_the_oracle() -> None:
    for bits, size, bucket, norm in itertools.product(range(1, 9), SIZES, (512, 128, 100), ("max", "l2")):
        levels = max(1, 2 ** (bits - 1) - 1)
        x, quantizer = vectors(size)["heavy-tailed"], parse(f"qsgd:{bits},norm={norm},bucket={bucket}")
        payload = quantizer.encode(x, stream())
        steps = oracle.steps_of(x, bucket, levels, norm)
        sent = np.frombuffer(payload, "<f4", steps.size)
        if norm == "max":
            assert same_bits(sent.astype(np.float32), steps)
        else:
            np.testing.assert_allclose(sent, steps, rtol=2e-7)  # the order of a float64 sum may differ
        codes = oracle.codes_of(x, sent, bucket, levels, bits, stream().words)
        assert payload[4 * steps.size :] == oracle.pack(codes, bits), (bits, size, bucket, norm)
        assert same_bits(quantizer.decode(payload, size), decoder.qsgd(payload, size, bucket, levels, bits))


def test_dithered_encodes_and_decodes_as_the_oracle() -> None:
    for bits, size in itertools.product(range(1, 9), SIZES):
        levels, quantizer = (2**bits - 1) / 2, parse(f"dithered:{bits},bucket=100")
        x = vectors(size)["gaussian"]
        payload = quantizer.encode(x, stream())
        steps = oracle.steps_of(x, 100, levels, "max")
        assert np.array_equal(np.frombuffer(payload, "<f4", steps.size, 8), steps)
        codes = oracle.codes_of(x, steps, 100, levels, bits, (int.from_bytes(payload[:8], "little"), 0))
        assert payload[8 + 4 * steps.size :] == oracle.pack(codes, bits), (bits, size)
        assert same_bits(quantizer.decode(payload, size), decoder.dithered(payload, size, 100, bits)), (bits, size)


def test_affine_reads_nothing_of_an_empty_tensor() -> None:
    """Not even its first value, which belongs to whatever lies there."""
    assert parse("affine:4").encode(np.full(4, 7.0, np.float32)[:0], stream()) == bytes(12)


def test_rotated_decodes_as_the_oracle() -> None:
    for bits, size in itertools.product(range(1, 7), (1, 2, 9, 33, 113, 512, 700, 4096, 4097, 9500)):
        quantizer = parse(f"rotated:{bits}")
        payload = quantizer.encode(vectors(size)["heavy-tailed"], stream())
        assert same_bits(quantizer.decode(payload, size), decoder.rotated(payload, size, bits)), (bits, size)


def test_packing_is_dense() -> None:
    for bits, size in itertools.product(range(1, 9), (0, 1, 3, 9, 511, 512, 1300)):
        codes = np.random.default_rng(0).integers(0, 1 << bits, size)
        packed = oracle.pack(codes, bits)
        assert len(packed) == packed_bytes(size, bits)
        assert np.array_equal(oracle.unpack(packed, size, bits), codes)
        assert size * bits / 8 <= len(packed) < size * bits / 8 + bits.bit_count()


def test_random_numbers_are_uniform_and_independent() -> None:
    """Chi-squared tests at 1e-6 each, over values, neighbours, and coordinates that share a hash."""
    u = oracle.uniform16(1 << 19, stream().words)
    top = u >> 8
    assert stats.chisquare(np.bincount(top, minlength=256)).pvalue > 1e-6
    assert stats.chisquare(np.bincount(u & 255, minlength=256)).pvalue > 1e-6
    for lag in (1, 2, 127, 128, 256, 384, 512):
        pairs = (u[:-lag] >> 12) * 16 + (u[lag:] >> 12)
        assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-6, lag


def test_related_seeds_repeat_no_block() -> None:
    """Streams whose keys differ by little, or swap their words, share no run of eight 16-bit numbers."""
    words = [(a, b) for a in range(8) for b in range(8)] + [(1 << k, 1 << j) for k in (31, 32, 63) for j in (0, 31, 63)]
    seen: dict[bytes, tuple[int, int]] = {}
    for key in words:
        u = oracle.uniform16(1024, key).astype(np.uint16)
        for block in np.lib.stride_tricks.sliding_window_view(u, 8):
            other = seen.setdefault(block.tobytes(), key)
            assert other == key, f"{key} repeats a block of {other}"


def test_streams_with_neighbouring_names_are_uncorrelated() -> None:
    """Correlation of 2¹⁶ numbers below 6 standard errors for 50 pairs: wrong alarm below 1e-6."""
    runs = [oracle.uniform16(1 << 16, Stream.named(s, "x").words).astype(np.float64) for s in range(51)]
    for a, b in itertools.pairwise(runs):
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / 256


def test_random_sets_are_uniform() -> None:
    """Each index is drawn about equally often, 5.5 standard errors: wrong alarm below 1e-5."""
    for size, count in ((50, 5), (50, 40), (64, 32), (1, 1)):
        hits = np.zeros(size)
        for seed in range(4000):
            chosen = np.empty(count, np.uint32)
            select_random(seed, size, chosen)
            assert (np.diff(chosen.astype(np.int64)) > 0).all()
            hits[chosen] += 1
        share = count / size
        assert (np.abs(hits - 4000 * share) <= 5.5 * np.sqrt(4000 * share * (1 - share)) + 1e-9).all()
