"""What the simulator knows of each client between its trainings, saved and restored."""

from __future__ import annotations

import numpy as np
import pytest

from qafel.algorithm import Held, method
from qafel.algorithm.state import Arrays, Rows, pack, restore_, state_of
from qafel.errors import DataError
from qafel.simulator.fleet import Fleet

SIZE = 4
MCM = method("mcm").client_rule


def filled() -> Fleet:
    fleet = Fleet(3, MCM, SIZE)
    fleet.sequences[2] = 7
    fleet.held[0] = Held(100)
    fleet.held[1] = Held(50, False, 0)
    fleet.held[2] = Held(50, False, 8)
    fleet.remember_(2, {"h": np.arange(SIZE, dtype=np.float32)})
    return fleet


def saved(fleet: Fleet) -> tuple[Arrays, dict[str, Rows]]:
    return pack(state_of({"fleet": fleet}))


def test_what_a_client_holds_comes_back() -> None:
    fleet = Fleet(3, MCM, SIZE)
    assert fleet.held == [Held()] * 3
    restore_({"fleet": fleet}, *saved(filled()))
    assert fleet.held == [Held(100), Held(50, False, 0), Held(50, False, 8)]
    assert fleet.sequences == [0, 0, 7]


def test_memories_are_kept_of_clients_that_have_one() -> None:
    fleet = Fleet(3, MCM, SIZE)
    restore_({"fleet": fleet}, *saved(filled()))
    np.testing.assert_array_equal(fleet.memory(2)["h"], [0, 1, 2, 3])
    np.testing.assert_array_equal(fleet.memory(0)["h"], [0, 0, 0, 0])
    assert list(saved(fleet)[1]["fleet.memory_h"]) == [2]
    assert Fleet(3, method("qafel").client_rule, SIZE).memory(0) == {}


def test_a_fleet_of_another_size_or_rule_is_not_taken_up() -> None:
    kept = saved(filled())
    for other in (Fleet(4, MCM, SIZE), Fleet(2, MCM, SIZE)):
        with pytest.raises(DataError, match="fleet"):
            restore_({"fleet": other}, *kept)
    with pytest.raises(DataError, match="memory_h"):
        restore_({"fleet": Fleet(3, MCM, SIZE)}, *saved(Fleet(3, method("qafel").client_rule, SIZE)))
