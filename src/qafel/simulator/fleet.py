"""What the simulator knows of each client between its trainings: O(1) each, and the memory of its client rule."""

from __future__ import annotations

from array import array
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
        self._new_memory = rule.new_memory(size)
        self.sequences = array("q", [0]) * clients
        """How often each client started."""
        self._positions = array("q", [_NEVER]) * clients
        self._overpaid = array("q", [_EXACT]) * clients
        self._memories = {name: Rows(dtype=np.asarray(value).dtype.type) for name, value in self._new_memory.items()}
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
        return {name: rows.get(client, self._new_memory[name]) for name, rows in self._memories.items()}

    def remember_(self, client: int, memory: State) -> None:
        for name, value in memory.items():
            self._memories[name][client] = value

    def state(self) -> State:
        tables = {"sequences": self.sequences, "positions": self._positions, "overpaid": self._overpaid}
        arrays = {name: np.array(table) for name, table in tables.items()}
        return {**arrays, **{f"memory_{name}": rows for name, rows in self._memories.items()}}

    def restore_(self, state: Any) -> None:
        rows = [state[f"memory_{name}"] for name in self._memories]
        forms = {name: (np.shape(value), np.asarray(value).dtype) for name, value in self._new_memory.items()}
        tables = zip(forms.values(), rows, strict=True)
        sound = all((np.shape(row), np.asarray(row).dtype) == form for form, table in tables for row in table.values())
        known = all(0 <= client < len(self.sequences) for table in rows for client in table)
        if not (sound and known) or any((state[name] < low).any() for name, low in _LEAST.items()):
            raise DataError("what clients hold does not fit together")
        self.sequences, self._positions, self._overpaid = (
            array("q", state[name].tobytes()) for name in ("sequences", "positions", "overpaid")
        )
        self._memories = {name: state[f"memory_{name}"] for name in self._memories}
