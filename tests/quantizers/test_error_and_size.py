"""Little error in few bytes: figures on fixed data."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.quantizers import measure_error, parse
from qafel.quantizers.measure import gaussian, heavy_tailed
from tests.quantizers import oracle
from tests.quantizers.specs import CELEBA, stream

SIZE = 29_282
FRAME_BYTES = 64  # no message header is longer


def nmse(spec: str, vector: np.ndarray, repeats: int = 5) -> float:
    return measure_error(parse(spec), [vector], repeats, stream()).nmse


def test_dithered_halves_the_error_of_qsgd() -> None:
    assert nmse("dithered:4", gaussian(SIZE)) <= 0.55 * nmse("qsgd:4", gaussian(SIZE))


def test_rotated_has_under_a_third_of_the_error_of_qsgd() -> None:
    assert nmse("rotated:4", gaussian(SIZE)) <= 0.3 * nmse("qsgd:4", gaussian(SIZE))


def test_rotated_does_not_mind_heavy_tails() -> None:
    assert nmse("rotated:4", heavy_tailed(SIZE)) <= 0.06


def test_rotated_reaches_the_lloyd_max_distortion() -> None:
    for bits, distortion in ((1, 0.3634), (2, 0.1175), (3, 0.03455), (4, 0.009501)):
        assert nmse(f"rotated:{bits}", gaussian(SIZE)) == pytest.approx(distortion / (1 - distortion), rel=0.03)


def test_no_quantizer_beats_the_rate_distortion_bound() -> None:
    for spec in ("qsgd:4+zstd", "dithered:4+zstd", "rotated:4", "rotated:2", "affine:4+zstd"):
        result = measure_error(parse(spec), [gaussian(SIZE)], 1, stream())
        assert result.nmse > 2 ** (-2 * result.bits_per_coordinate), spec


@pytest.mark.parametrize("size", [SIZE, 1_000_000])
def test_zstd_comes_within_3_percent_of_the_entropy_of_the_levels(size: int) -> None:
    vector = gaussian(size)
    plain = parse("qsgd:4").encode(vector, stream())
    head = 4 * -(-size // 512)
    counts = np.bincount(oracle.unpack(plain[head:], size, 4))
    shares = counts[counts > 0] / size
    entropy_bytes = -(shares * np.log2(shares)).sum() * size / 8
    coded = len(parse("qsgd:4+zstd").encode(vector, stream())) - head
    assert coded <= 1.03 * entropy_bytes


def test_zstd_never_enlarges() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 2, 10, 100, 600):
        for scale in (0.0, 1.0):
            vector = (generator.uniform(-1, 1, size) * scale).astype(np.float32)
            for spec in ("qsgd:8", "none", "dithered:4", "affine:4", "scaled:qsgd:2", "rand_k:0.5"):
                plain = len(parse(spec).encode(vector, stream()))
                assert len(parse(spec + "+zstd").encode(vector, stream())) <= plain


def test_celeba_upload_with_qsgd_fits_the_papers_size_with_all_parameters_quantized() -> None:
    assert parse("qsgd:4").max_payload_bytes(CELEBA.size) + FRAME_BYTES <= 15_380
    assert len(parse("qsgd:4+zstd").encode(gaussian(CELEBA.size), stream())) + FRAME_BYTES <= 12_500


def test_affine_has_the_sizes_of_table_iii() -> None:
    assert CELEBA.size == SIZE
    for bits, expected in ((8, 29_924), (4, 15_380), (2, 8_108)):
        assert len(parse(f"affine:{bits}", CELEBA).encode(gaussian(SIZE), stream())) == expected


def test_indices_come_within_3_percent_of_their_information() -> None:
    for fraction, size in ((0.01, SIZE), (0.1, SIZE), (0.01, 1_000_000), (0.1, 1_000_000)):
        quantizer, count = parse(f"top_k:{fraction}"), round(fraction * size)
        index_bits = 8 * (len(quantizer.encode(gaussian(size), stream())) - 4 * count)
        information = (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)
        assert index_bits / count <= 1.03 * information / count, (fraction, size)


def test_rand_k_sends_no_indices() -> None:
    assert len(parse("rand_k:0.1").encode(gaussian(1000), stream())) == 8 + 4 * 100
