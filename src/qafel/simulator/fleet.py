"""The simulator's record of each client between two trainings: O(1) per client, and its memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, final

import numpy as np

from qafel.algorithm import ClientRule, Held, Part, Rows, State
from qafel.algorithm.state import require_vectors
from qafel.errors import DataError

_NEVER = _EXACT = -1
_LEAST = {"sequences": 0, "positions": _NEVER, "overpaid": _EXACT, "linked": 0}


@final
class Fleet(Part):
    """How often each client started, what it holds, and its memory."""

    def __init__(self, clients: int, rule: ClientRule, size: int) -> None:
        self.new_memory = rule.new_memory(size)
        """Of a client without an accepted upload."""
        self.sequences = [0] * clients
        """How often each client started."""
        self.held = [Held()] * clients
        """What each client holds, for its next download. Clients that started from one version share one object."""
        self._memories = {name: Rows(dtype=value.dtype.type) for name, value in self.new_memory.items()}
        """Only of clients with an accepted upload."""

    def memory(self, client: int) -> State:
        """The client's memory; that of a new client before its first accepted upload."""
        return {name: rows.get(client, self.new_memory[name]) for name, rows in self._memories.items()}

    def remember_(self, client: int, memory: State) -> None:
        for name, value in memory.items():
            self._memories[name][client] = value

    def state(self) -> State:
        held = self.held
        columns = {
            "sequences": self.sequences,
            "positions": [_NEVER if it.position is None else it.position for it in held],
            "overpaid": [_EXACT if it.exact else it.overpaid for it in held],
            "linked": [it.linked for it in held],
        }
        arrays = {name: np.array(column, np.int64) for name, column in columns.items()}
        return {**arrays, **{f"memory_{name}": rows for name, rows in self._memories.items()}}

    def require_memories(self, tables: Mapping[str, Rows], holders: Collection[int]) -> None:
        """Raise `DataError` unless the tables hold memories of this rule, and all `holders` have one."""
        for name, new in self.new_memory.items():
            rows: Mapping[int, Any] = tables.get(name, {})
            require_vectors(rows, new, f"a memory {name}")
            if set(rows) != set(holders):
                raise DataError(f"the memories {name} do not fit the clients")
        if unknown := tables.keys() - self.new_memory.keys():
            raise DataError(f"the client rule keeps no memory {min(unknown)}")

    def restore_(self, state: Any) -> None:
        memories = {name: state[f"memory_{name}"] for name in self._memories}
        holders = next((set(rows) for rows in memories.values()), set())
        self.require_memories(memories, holders)
        known = all(0 <= client < len(self.sequences) for client in holders)
        if not known or any((state[name] < low).any() for name, low in _LEAST.items()):
            raise DataError("the records of clients do not fit together")
        self.sequences = state["sequences"].tolist()
        places = zip(*(state[name].tolist() for name in ("positions", "overpaid", "linked")), strict=True)
        self.held = [_held(*place) for place in places]
        self._memories = memories


@lru_cache(maxsize=1024)
def _held(position: int, overpaid: int, linked: int) -> Held:
    if position == _NEVER:
        return Held()
    return Held(position) if overpaid == _EXACT else Held(position, False, overpaid, bool(linked))
