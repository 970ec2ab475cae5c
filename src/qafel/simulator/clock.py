"""The clock of virtual time: a heap of (time, priority, serial, event); the serial makes ties deterministic."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar, final

Event = TypeVar("Event")


@final
class Clock(Generic[Event]):
    """Events in the order of their time; at equal times by priority, then as they were scheduled."""

    __slots__ = ("_heap", "now", "serial")

    def __init__(self) -> None:
        self.now = 0.0
        self.serial = 0
        self._heap: list[tuple[float, int, int, Event]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, delay: float, event: Event, priority: int = 0) -> None:
        """Let the event happen `delay` from now."""
        heappush(self._heap, (self.now + delay, priority, self.serial, event))
        self.serial += 1

    def advance(self) -> Event:
        """Move to the next event and return it; an empty clock raises IndexError."""
        self.now, _, _, event = heappop(self._heap)
        return event

    def entries(self) -> list[tuple[float, int, int, Event]]:
        """All that is to happen, as (time, priority, serial, event), in no particular order."""
        return self._heap.copy()

    def restore(self, now: float, serial: int, entries: list[tuple[float, int, int, Event]]) -> None:
        """Take up a clock that stood still."""
        self.now, self.serial, self._heap = now, serial, entries
        heapify(self._heap)
