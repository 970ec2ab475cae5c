"""Events happen in the order of time; ties are settled by priority, then by the order of scheduling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qafel.simulator.simulation import Clock


def test_ties_are_settled_by_priority_then_by_serial():
    clock: Clock[str] = Clock()
    for event, priority in (("late", 1), ("first", 0), ("second", 0), ("urgent", -1)):
        clock.schedule(1.0, event, priority)
    assert [clock.advance() for _ in range(4)] == ["urgent", "first", "second", "late"]
    assert clock.now == 1.0


@given(st.lists(st.floats(0, 1e6)))
def test_time_never_runs_backwards(delays):
    clock: Clock[float] = Clock()
    for delay in delays:
        clock.schedule(delay, delay)
    assert [clock.advance() for _ in delays] == sorted(delays)


def test_delays_count_from_now():
    clock: Clock[str] = Clock()
    clock.schedule(2.0, "a")
    clock.advance()
    clock.schedule(0.5, "b")
    clock.advance()
    assert clock.now == 2.5
    with pytest.raises(IndexError):
        clock.advance()


def test_events_need_not_be_comparable():
    clock: Clock[dict[str, int]] = Clock()
    clock.schedule(1.0, {})
    clock.schedule(1.0, {})
    assert clock.advance() == {}
