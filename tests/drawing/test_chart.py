"""A chart's values decide its labels and limits, whoever draws it."""

import numpy as np
import pytest

from qafel.drawing.chart import Axis, Bars, Panel, Series, limits_of, panel_styles
from qafel.drawing.styles import GREY, PALETTE

X = np.array([0.0, 1.0, 10.0])


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
