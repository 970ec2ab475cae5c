"""Measured errors agree with known ones, and fitness for a role agrees with theory."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from qafel.quantizers import fitness, measure_error, parse
from qafel.quantizers.measure import gaussian
from tests.quantizers.specs import SPECS, stream


def test_fitness_speaks_exactly_where_theory_does() -> None:
    for quantizer in map(parse, SPECS):
        assert bool(fitness(quantizer, 29_282, "client")) == (not quantizer.unbiased(29_282)), quantizer
        assert bool(fitness(quantizer, 29_282, "server")) == (quantizer.delta(29_282) <= 0), quantizer


def test_a_snapshot_may_be_biased_but_keeps_half() -> None:
    assert not fitness(parse("trellis:2,scale=least"), 29_282, "snapshot")
    assert not fitness(parse("top_k:0.5"), 29_282, "snapshot")
    (sentence,) = fitness(parse("top_k:0.1"), 29_282, "snapshot")
    assert "90%" in sentence


def test_a_memory_needs_an_unbiased_quantizer_and_a_rate_below_its_limit() -> None:
    (sentence,) = fitness(parse("top_k:0.1"), 100, "server", 0.3)
    assert "biased" in sentence
    tenth = parse("rand_k:0.1")  # ω = 9: the limit is 0.2
    assert fitness(tenth, 100, "server"), "without a memory it must contract"
    assert not fitness(tenth, 100, "server", 0.19)
    (sentence,) = fitness(tenth, 100, "server", 0.2)
    assert "ω = 9" in sentence
    assert "from-omega" in sentence


def test_fitness_names_reason_and_remedies() -> None:
    (sentence,) = fitness(parse("qsgd:4,norm=l2,bucket=none"), 29_282, "server")
    for part in ("no δ > 0", "29282", "norm=max", "qsgd:4,bucket=256", "scaled:qsgd:4,norm=l2,bucket=none"):
        assert part in sentence
    (sentence,) = fitness(parse("top_k:0.1"), 29_282, "client")
    assert "biased" in sentence
    assert "trellis:4" in sentence
    assert not fitness(parse("trellis:4"), 29_282, "client")
    assert parse("qsgd:4,bucket=256").delta(29_282) > 0


def test_measured_agrees_with_what_is_known() -> None:
    vector = gaussian(2000)
    exact = measure_error(parse("none"), [vector], 2, stream())
    assert (exact.nmse, exact.delta, exact.bias, exact.bits_per_coordinate) == (0, 1, 0, 32)
    sparse = measure_error(parse("rand_k:0.25"), [vector], 200, stream())
    assert sparse.nmse == pytest.approx(3, rel=0.05)
    assert abs(sparse.bias) < 0.1
    biased = measure_error(parse("top_k:0.5"), [vector], 2, stream())
    assert biased.bias == pytest.approx(biased.nmse)
    assert math.isnan(measure_error(parse("qsgd:4"), [vector], 1, stream()).bias)
    assert measure_error(parse("qsgd:4"), [np.zeros(5, np.float32)], 2, stream()).nmse == 0


@pytest.mark.parametrize(("spec", "size"), [("trellis:0.9", 2048), ("layers:trellis:0.5", 29_282), ("rand_k:0.1", 100)])
def test_what_is_recommended_for_an_unfit_quantizer_exists_and_is_fit(spec: str, size: int) -> None:
    (sentence,) = fitness(parse(spec), size, "server")
    (recommended,) = re.findall(r"\((\S+), with δ", sentence)
    assert fitness(parse(recommended), size, "server") == []
