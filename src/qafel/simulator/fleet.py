"""What the simulator knows of each client between its trainings: O(1) each, and the memory of its client rule."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from typing import Any, final

import numpy as np

from qafel.algorithm import ClientRule, Held, Part, Rows, State
from qafel.errors import DataError

_NEVER = -1
_EXACT = -1
_LEAST = {"sequences": 0, "positions": _NEVER, "overpaid": _EXACT}


@final
class Fleet(Part):
    """How often each client started, what it holds, and its memory."""

    def __init__(self, clients: int, rule: ClientRule, size: int) -> None:
        self.new_memory = rule.new_memory(size)
        """Of a client without an accepted upload."""
        self.sequences = array("q", [0]) * clients
        """How often each client started."""
        self._positions = array("q", [_NEVER]) * clients
        self._overpaid = array("q", [_EXACT]) * clients
        self._memories = {name: Rows(dtype=value.dtype.type) for name, value in self.new_memory.items()}
        """Only of clients with an accepted upload."""

    def held(self, client: int) -> Held:
        """What the client holds, for its next download."""
        if (position := self._positions[client]) == _NEVER:
            return Held()
        overpaid = self._overpaid[client]
        return Held(position) if overpaid == _EXACT else Held(position, False, overpaid)

    def hold_(self, client: int, held: Held) -> None:
        self._positions[client] = _NEVER if held.position is None else held.position
        self._overpaid[client] = _EXACT if held.exact else held.overpaid

    def memory(self, client: int) -> State:
        """The client's memory; that of a new client before its first accepted upload."""
        return {name: rows.get(client, self.new_memory[name]) for name, rows in self._memories.items()}

    def remember_(self, client: int, memory: State) -> None:
        for name, value in memory.items():
            self._memories[name][client] = value

    def state(self) -> State:
        tables = {"sequences": self.sequences, "positions": self._positions, "overpaid": self._overpaid}
        arrays = {name: np.array(table) for name, table in tables.items()}
        return {**arrays, **{f"memory_{name}": rows for name, rows in self._memories.items()}}

    def require_memories(self, tables: Mapping[str, Rows], holders: Collection[int]) -> None:
        """Raise `DataError` unless the tables hold memories of this rule, and all `holders` have one."""
        for name, new in self.new_memory.items():
            rows: Mapping[int, Any] = tables.get(name, {})
            if set(rows) != set(holders) or any(
                not isinstance(row, np.ndarray) or (row.shape, row.dtype) != (new.shape, new.dtype)
                for row in rows.values()
            ):
                raise DataError(f"the memories {name} do not fit the client rule or the clients")
        if unknown := tables.keys() - self.new_memory.keys():
            raise DataError(f"the client rule has no memory {min(unknown)}")

    def restore_(self, state: Any) -> None:
        memories = {name: state[f"memory_{name}"] for name in self._memories}
        holders = next((set(rows) for rows in memories.values()), set())
        self.require_memories(memories, holders)
        known = all(0 <= client < len(self.sequences) for client in holders)
        if not known or any((state[name] < low).any() for name, low in _LEAST.items()):
            raise DataError("what clients hold does not fit together")
        self.sequences, self._positions, self._overpaid = (
            array("q", state[name].tobytes()) for name in ("sequences", "positions", "overpaid")
        )
        self._memories = memories
