"""Flat vectors and their layout."""

import numpy as np
import pytest

from qafel.errors import DataError
from qafel.params import Layout

LAYOUT = Layout.of({"weight": (2, 3), "bias": (2,), "scale": ()})


def test_flatten_and_split_are_inverse():
    vector = np.arange(9, dtype=np.float32)
    views = LAYOUT.split(vector)
    assert LAYOUT.size == 9
    assert views["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(LAYOUT.flatten(views), vector)
    views["bias"][0] = 60
    assert vector[6] == 60, "split gives views"


def test_what_does_not_fit_is_named():
    with pytest.raises(DataError, match="9 parameters"):
        LAYOUT.split(np.zeros(8, np.float32))
    with pytest.raises(DataError, match="'bias' is missing"):
        LAYOUT.flatten({"weight": np.zeros((2, 3))})
    with pytest.raises(DataError, match="shape"):
        LAYOUT.flatten({"weight": np.zeros(6), "bias": np.zeros(2), "scale": np.zeros(())})


def test_layouts_of_other_shapes_have_other_fingerprints():
    assert LAYOUT.fingerprint == Layout.of({"w": (2, 3), "b": (2,), "s": ()}).fingerprint
    assert LAYOUT.fingerprint != Layout.of({"weight": (3, 2), "bias": (2,), "scale": ()}).fingerprint
