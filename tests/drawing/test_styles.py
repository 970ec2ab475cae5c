"""Labels fit and differ, colours and dashes too, and a curve of fewer points is the same curve."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qafel.drawing.styles import short_labels, styles_for, thin

# A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
