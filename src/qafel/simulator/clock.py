"""The clock of virtual time: a heap of (time, priority, serial, event); the serial makes ties deterministic."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar, final

Event = TypeVar("Event")


@final
class Clock(Generic[Event]):
    """Events in the order of their time; at equal times by priority, then as they were scheduled."""

    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._serial = 0
        self._heap: list[tuple[float, int, int, Event]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, delay: float, event: Event, priority: int = 0) -> None:
        """Let the event happen `delay` from now."""
        heappush(self._heap, (self.now + delay, priority, self._serial, event))
        self._serial += 1

    def advance(self) -> Event:
        """Move to the next event and return it; an empty clock raises IndexError."""
        self.now, _, _, event = heappop(self._heap)
        return event
