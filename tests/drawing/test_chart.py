"""A chart's values decide its labels, looks and limits, whoever draws it; a curve of fewer points is the same curve."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qafel.drawing.chart import (
    GREY,
    PALETTE,
    Axis,
    Bars,
    Panel,
    Series,
    limits_of,
    panel_styles,
    short_labels,
    styles_for,
    thin,
)

X = np.array([0.0, 1.0, 10.0])
# A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def panel(x: Axis, y: Axis, *values: list[float], **about) -> Panel:
    return Panel("key", "title", x, y, tuple(Series("a", X[: len(own)], np.array(own)) for own in values), **about)


def test_labels_are_listed_once_and_references_last_in_grey():
    target = Series("target", X, X, kind="reference")
    panels = [Panel("p", "", Axis("x"), Axis("y"), (target, Series("a", X, X)), bars=(Bars("b", X, X),))] * 2
    looks = {style.label: style.colour for style in panel_styles(panels)}
    assert list(looks.items()) == [("b", PALETTE[0]), ("a", PALETTE[1]), ("target", GREY)]


def test_limits_leave_room_around_what_is_finite_and_a_log_axis_starts_at_what_is_positive():
    limits = limits_of(panel(Axis("x"), Axis("y"), [0.0, 1e-3, np.inf], [np.nan, 1.0]), "y")
    assert limits["linear"] == (0.0, pytest.approx(1.04))
    low, high = limits["log"]
    assert 5e-4 < low < 1e-3
    assert 1 < high < 2
    assert limits_of(panel(Axis("x"), Axis("y"), [90.0, 100.0]), "y")["linear"][0] == pytest.approx(89.6)


def test_stated_limits_hold_and_allow_a_logarithm_only_if_positive():
    assert limits_of(panel(Axis("x", limits=(0, 5)), Axis("y")), "x") == {"linear": (0, 5)}
    both = {"linear": (0, 5), "log": (1, 6)}
    assert limits_of(panel(Axis("x", limits=(0, 5), log_limits=(1, 6)), Axis("y")), "x") == both


@pytest.mark.parametrize("values", [[], [np.nan], [0.0], [-1.0], [7.0]])
@pytest.mark.parametrize("log", [False, True])
def test_odd_values_have_limits_too(values, log):
    own = panel(Axis("x", log), Axis("y", log), values)
    for name in ("x", "y"):
        for low, high in limits_of(own, name).values():
            assert low < high
        assert own.x.scale in limits_of(own, name)


def test_rows_leave_room_for_the_words_beyond_the_longest():
    rows = (Bars("a", np.array([0.0]), np.array([2.0])), Bars("a", np.array([0.0]), np.array([8.0])))
    own = panel(Axis("bytes"), Axis("", names=("run",)), bars=rows, arrangement="rows")
    assert limits_of(own, "x") == {"linear": (0.0, 13.0)}
    assert limits_of(own, "y") == {"linear": (-0.5, 0.5)}


@patient
@given(st.lists(st.floats(width=32), min_size=1, max_size=3000), st.integers(12, 400))
def test_thinning_keeps_ends_extremes_and_the_limit(values, limit):
    column = np.array(values, dtype=np.float64)
    rows = thin(column, limit)
    assert rows[0] == 0
    assert rows[-1] == len(column) - 1
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= limit + 8
    finite = column[np.isfinite(column)]
    if finite.size:
        assert {finite.min(), finite.max()} <= set(column[rows])
    assert np.isfinite(column).all() == np.isfinite(column[rows]).all()


def test_thinning_is_the_same_every_time_and_finer_at_the_start():
    column = np.random.default_rng(1).normal(size=10_000)
    rows = thin(column, 1200)
    assert np.array_equal(rows, thin(column, 1200))
    assert (rows < 100).sum() > 5 * (rows > 9_900).sum()


def test_no_two_of_twenty_eight_labels_look_alike():
    styles = styles_for([str(number) for number in range(28)])
    assert len({(style.colour, style.dash) for style in styles}) == 28


def test_long_labels_lose_what_they_share_and_stay_different():
    ends = ("qafel", "fedbuff")
    labels = [f"a-recipe-with-a-very-long-name-{end}-and-so-on-every100 · seed 0" for end in ends]
    assert short_labels(labels) == ends
    assert short_labels(["short", "a"]) == ("short", "a")


@patient
@given(st.lists(st.text("ab-· ", max_size=60), unique=True, min_size=1, max_size=6), st.integers(12, 50))
def test_shortened_labels_differ_and_fit(labels, most):
    short = short_labels(labels, most)
    assert len(set(short)) == len(labels)
    assert all(len(label) <= most for label in short)
