"""The state of parts: whatever is in it survives, and whatever does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from qafel.algorithm import Part, Rows
from qafel.algorithm.state import Arrays, as_arrays, restore_, states
from qafel.errors import ConfigError, DataError


class Bag(Part):
    """A part with one of each: an array, one of any length, numbers, a table of vectors and one of payloads."""

    def __init__(self) -> None:
        self.vector = np.zeros(4, np.float32)
        self.log = np.empty((0, 2), np.int64)
        self.count, self.share, self.on = 0, 0.0, False
        self.vectors, self.payloads = Rows(), Rows()
        self.name = "a setting, which is not state"


class Slotted(Part):
    __slots__ = ("count", "unset")

    def __init__(self) -> None:
        self.count = 3


def filled() -> Bag:
    bag = Bag()
    bag.vector = np.arange(4, dtype=np.float32)
    bag.log = np.array([[1, 2], [3, 4], [5, 6]])
    bag.count, bag.share, bag.on = 7, 0.1, True
    bag.vectors[5], bag.vectors[2] = np.array([1, 2], np.float32), np.array([3], np.float32)
    bag.payloads[9], bag.payloads[1] = b"abc", b""
    return bag


def saved(part: Part) -> Arrays:
    return as_arrays(states({"bag": part}))


def restored(arrays: Arrays) -> Bag:
    bag = Bag()
    restore_({"bag": bag}, arrays)
    return bag


def same(one: Rows, other: Rows) -> bool:
    return list(one) == list(other) and all(bytes(one[key]) == bytes(other[key]) for key in one)


def test_every_kind_of_state_comes_back_as_it_was() -> None:
    before, after = filled(), restored(saved(filled()))
    assert saved(before).keys() == saved(after).keys()
    assert all((saved(after)[name] == array).all() for name, array in saved(before).items())
    assert (after.count, after.share, after.on, after.name) == (7, 0.1, True, before.name)
    assert [type(value) for value in (after.count, after.share, after.on)] == [int, float, bool]
    assert after.vectors[5].dtype == np.float32
    assert after.payloads[9] == b"abc"
    assert isinstance(after.payloads[1], bytes)
    assert same(before.vectors, after.vectors)
    assert same(before.payloads, after.payloads)


def test_a_part_without_state_has_none_and_slots_are_attributes_too() -> None:
    assert Slotted().state() == {"count": 3}
    assert saved(Slotted())["bag.count"] == 3
    assert Part().state() == {}


def test_what_was_saved_does_not_change_with_the_part() -> None:
    bag = filled()
    arrays = saved(bag)
    bag.vector[0] = 99
    bag.vectors[5][0] = 99
    again = restored(arrays)
    assert again.vector[0] == 0
    assert again.vectors[5][0] == 1
    again.vector[1] = 99
    again.vectors[5][0] = 99
    assert restored(arrays).vector[1] == 1
    assert restored(arrays).vectors[5][0] == 1


@given(
    st.dictionaries(
        st.integers(0, 2**63 - 1),
        st.integers(0, 9).flatmap(lambda size: arrays_of.arrays(np.float64, size, elements=st.floats(-1e9, 1e9))),
        max_size=8,
    )
)
def test_any_table_of_vectors_comes_back(rows: dict[int, Any]) -> None:
    bag = Bag()
    for client, row in rows.items():
        bag.vectors[client] = row
    assert same(restored(saved(bag)).vectors, bag.vectors)


@given(st.dictionaries(st.integers(0, 2**63 - 1), st.binary(max_size=20), max_size=8))
def test_any_table_of_payloads_comes_back(rows: dict[int, bytes]) -> None:
    bag = Bag()
    bag.payloads.update(rows)
    assert dict(restored(saved(bag)).payloads) == rows


def test_rows_are_a_mapping_that_knows_what_changed() -> None:
    rows = Rows({3: b"a"})
    rows.changed.clear()
    rows[5] = b"b"
    assert (len(rows), list(rows), rows.get(4), rows.changed) == (2, [3, 5], None, {5})
    del rows[3]
    assert (dict(rows), rows.changed) == ({5: b"b"}, {3, 5})


@pytest.mark.parametrize(
    "rows",
    [
        {1: np.zeros((2, 2), np.float32)},
        {1: np.zeros(2, np.uint8)},
        {1: np.zeros(2, np.float32), 2: np.zeros(2, np.float64)},
        {1: np.zeros(2, np.float32), 2: b"ab"},
    ],
    ids=["matrix", "bytes as an array", "two types", "vectors and bytes"],
)
def test_a_table_that_would_not_come_back_as_it_was_is_refused(rows: dict[int, Any]) -> None:
    bag = Bag()
    bag.vectors = Rows(rows)
    with pytest.raises(ConfigError, match="row"):
        saved(bag)


def is_refused(arrays: Arrays) -> bool:
    try:
        restored(arrays)
    except DataError:
        return True
    return False


def damages(arrays: Arrays, name: str) -> Any:
    array = arrays[name]
    others = {key: kept for key, kept in arrays.items() if key != name}
    yield "missing", others
    yield "misnamed", {**others, f"{name}s": array}
    yield "reshaped", {**others, name: array[None]}
    if not name.endswith(".rows"):  # the table's own type
        yield "retyped", {**others, name: array.astype(np.float32 if array.dtype == np.float64 else np.float64)}
    if array.ndim and name != "bag.log":  # of any length
        yield "shortened", {**others, name: array[:-1]}
        yield "lengthened", {**others, name: np.concatenate([array, array[-1:]])}


def test_an_array_that_is_missing_or_misshapen_is_refused() -> None:
    arrays = saved(filled())
    for name in arrays:
        for what, damaged in damages(arrays, name):
            assert is_refused(damaged), f"{name} was {what}"
    negative = arrays["bag.payloads.lengths"].copy()
    negative[:] = [4, -1]
    assert is_refused({**arrays, "bag.payloads.lengths": negative})
    assert is_refused({**arrays, "bag.payloads.clients": np.array([9, 9])}), "one client twice"
