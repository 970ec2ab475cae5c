"""The state of parts: whatever is in it survives, and whatever does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from qafel.algorithm import Part, Rows
from qafel.algorithm.state import Arrays, pack, restore_, state_of
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


Saved = tuple[Arrays, dict[str, Rows]]


def saved(part: Part) -> Saved:
    return pack(state_of({"bag": part}))


def restored(saved: Saved) -> Bag:
    bag = Bag()
    restore_({"bag": bag}, *saved)
    return bag


def same(one: Rows, other: Rows) -> bool:
    return list(one) == list(other) and all(bytes(one[key]) == bytes(other[key]) for key in one)


def test_every_kind_of_state_comes_back_as_it_was() -> None:
    before, after = filled(), restored(saved(filled()))
    assert saved(before)[0].keys() == saved(after)[0].keys()
    assert all((saved(after)[0][name] == array).all() for name, array in saved(before)[0].items())
    assert (after.count, after.share, after.on, after.name) == (7, 0.1, True, before.name)
    assert [type(value) for value in (after.count, after.share, after.on)] == [int, float, bool]
    assert after.vectors[5].dtype == np.float32
    assert after.payloads[9] == b"abc"
    assert isinstance(after.payloads[1], bytes)
    assert same(before.vectors, after.vectors)
    assert same(before.payloads, after.payloads)


def test_a_part_without_state_has_none_and_slots_are_attributes_too() -> None:
    assert Slotted().state() == {"count": 3}
    assert saved(Slotted())[0]["bag.count"] == 3
    assert Part().state() == {}


def test_what_was_saved_does_not_change_with_the_part() -> None:
    bag = filled()
    kept = saved(bag)
    bag.vector[0] = 99
    bag.vectors[5] = np.array([99], np.float32)
    again = restored(kept)
    assert again.vector[0] == 0
    assert again.vectors[5][0] == 1
    again.vector[1] = 99
    again.vectors[5] = np.array([99], np.float32)
    assert restored(kept).vector[1] == 1
    assert restored(kept).vectors[5][0] == 1


def test_a_row_cannot_be_changed_behind_the_tables_back() -> None:
    rows, whole = Rows(), np.zeros((2, 3), np.float32)
    rows[0] = mine = np.zeros(3, np.float32)
    rows[1] = whole[1]
    whole[1] = 9
    for changed in (mine, rows[0], rows[1]):
        with pytest.raises(ValueError, match="read-only"):
            np.add(changed, 1, out=changed)
    assert not rows[1].any()
    payloads = Rows()
    payloads[0] = buffer = bytearray(b"ab")
    buffer[0] = 0
    assert payloads[0] == b"ab"


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


def test_rows_are_a_mapping() -> None:
    rows = Rows({3: b"a"})
    rows[5] = b"b"
    copied = rows.copy()
    assert (len(rows), list(rows), rows.get(4)) == (2, [3, 5], None)
    del rows[3]
    assert (dict(rows), len(copied)) == ({5: b"b"}, 2)


@pytest.mark.parametrize(
    "rows",
    [
        {1: np.zeros((2, 2), np.float32)},
        {1: np.zeros(2, np.uint8)},
        {1: 0.5},
        {1: np.array([None])},
        {1: np.zeros(2, np.float32), 2: np.zeros(2, np.float64)},
        {1: np.zeros(2, np.float32), 2: b"ab"},
    ],
    ids=["matrix", "bytes as an array", "a number", "objects", "two types", "vectors and bytes"],
)
def test_a_table_that_would_not_come_back_as_it_was_is_refused(rows: dict[int, Any]) -> None:
    with pytest.raises(ConfigError, match="row"):
        Rows(rows)


def is_refused(arrays: Arrays, rows: dict[str, Rows]) -> bool:
    try:
        restored((arrays, rows))
    except DataError:
        return True
    return False


def damages(arrays: Arrays, name: str) -> Any:
    array = arrays[name]
    others = {key: kept for key, kept in arrays.items() if key != name}
    yield "missing", others
    yield "misnamed", {**others, f"{name}s": array}
    yield "reshaped", {**others, name: array[None]}
    yield "retyped", {**others, name: array.astype(np.float32 if array.dtype == np.float64 else np.float64)}
    if array.ndim and name != "bag.log":  # of any length
        yield "shortened", {**others, name: array[:-1]}
        yield "lengthened", {**others, name: np.concatenate([array, array[-1:]])}


def test_an_array_that_is_missing_or_misshapen_is_refused() -> None:
    arrays, rows = saved(filled())
    for name in arrays:
        for what, damaged in damages(arrays, name):
            assert is_refused(damaged, rows), f"{name} was {what}"
    assert is_refused(arrays, {"bag.vectors": rows["bag.vectors"]}), "a table is missing"
    assert is_refused(arrays, {**rows, "bag.others": Rows()}), "a table more"
    assert is_refused(arrays, {**rows, "bag.vectors": Rows({1: np.array([np.nan], np.float32)})})
