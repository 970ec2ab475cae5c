"""The constants that quantizers state, against numerical worst cases and independent derivations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from qafel.params import Layout
from qafel.quantizers import measure_error, parse
from qafel.quantizers.measure import gaussian
from qafel.quantizers.rotated import LEVELS, OMEGA
from tests.quantizers.specs import stream


@pytest.mark.parametrize(("bits", "bucket"), [(4, 512), (4, 256), (3, 64), (2, 16), (8, 512)])
def test_omega_of_max_abs_qsgd_is_the_worst_case_and_is_attained(bits: int, bucket: int) -> None:
    s, n = 2 ** (bits - 1) - 1, bucket - 1
    omega = parse(f"qsgd:{bits},bucket={bucket}").omega(10 * bucket)
    worst = optimize.minimize_scalar(lambda f: -n * f * (1 - f) / (s * s + n * f * f), bounds=(0, 1), method="bounded")
    assert omega == pytest.approx(-worst.fun, rel=1e-6)
    fraction = s * (math.sqrt(s * s + n) - s) / n
    assert worst.x == pytest.approx(fraction, abs=1e-4)
    vector = np.full(bucket, fraction / s, np.float32)
    vector[0] = 1.0
    found = measure_error(parse(f"qsgd:{bits},bucket={bucket}"), [vector], 400, stream()).nmse
    assert found == pytest.approx(omega, rel=0.05)  # 400 × n draws: five standard errors are below 4 %


def test_default_qsgd_has_no_delta_and_smaller_buckets_have() -> None:
    assert parse("qsgd:4").omega(29_282) == pytest.approx(1.19, abs=0.01)
    assert parse("qsgd:4").delta(29_282) < 0
    assert parse("qsgd:4,bucket=256").delta(29_282) == pytest.approx(0.255, abs=0.01)
    assert parse("scaled:qsgd:4").delta(29_282) == pytest.approx(1 / 2.19, abs=0.01)
    assert parse("qsgd:4").delta(113) > 0.5


def test_textbook_qsgd_has_an_error_above_eight_times_the_vector() -> None:
    textbook = parse("qsgd:4,norm=l2,bucket=none")
    assert measure_error(textbook, [gaussian(29_282)], 3, stream()).nmse > 8
    assert textbook.omega(29_282) == pytest.approx(math.sqrt(29_282) / 7)


@pytest.mark.parametrize("bits", sorted(LEVELS))
def test_levels_are_the_fixed_point_of_lloyd(bits: int) -> None:
    levels = LEVELS[bits].astype(np.float64)
    edges = np.concatenate([[0], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    mass = np.diff(stats.norm.cdf(edges))
    means = -np.diff(stats.norm.pdf(edges)) / mass
    np.testing.assert_allclose(levels, means, rtol=2e-6)


@pytest.mark.parametrize("bits", sorted(OMEGA))
def test_no_draw_of_rotated_exceeds_omega(bits: int) -> None:
    """A few nearly equal numbers: without another rotation, one draw in two hundred has several times this error."""
    vector = np.zeros(40, np.float32)
    vector[:2] = 1.0, 0.97
    quantizer, energy = parse(f"rotated:{bits}"), float(np.vdot(vector, vector))
    decoded = (quantizer.decode(quantizer.encode(vector, stream(n)), 40) for n in range(1500))
    worst = max(float(np.square(each.astype(np.float64) - vector).sum()) for each in decoded) / energy
    assert 0.4 * OMEGA[bits] < worst <= 1.0001 * OMEGA[bits]
    assert quantizer.delta(40) > 0


def test_affine_bound_is_attained() -> None:
    size = 1000
    vector = np.full(size, 0.5 / 15 * 2, np.float32)  # half a step from the level nearest to zero
    vector[0], vector[1] = 1.0, -1.0
    vector[2:] = np.float32(-1 + 2 / 15 * 7.5)
    assert measure_error(parse("affine:4"), [vector], 1, stream()).nmse <= parse("affine:4").omega(size)
    assert parse("affine:8", Layout.of({"a": (10, 10), "b": (1000,)})).omega(1100) == pytest.approx(98 / 2 / 255**2)


def test_scaled_contracts_what_does_not() -> None:
    textbook = parse("scaled:qsgd:4,norm=l2,bucket=none")
    result = measure_error(textbook, [gaussian(29_282)], 3, stream())
    assert 0 < textbook.delta(29_282) <= result.delta
