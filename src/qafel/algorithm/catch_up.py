"""What a client missed: the last broadcasts in order, or a snapshot where that is fewer bytes.

The paper is silent on clients that miss broadcasts or join late; without this they could never train again.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import final

from qafel.algorithm.hidden_state import HiddenState
from qafel.algorithm.messages import HEADER_BYTES, Kind
from qafel.errors import ClientAhead, ConfigError, Drifted


@final
class BroadcastLog:
    """The last broadcasts, at most `capacity`, and the digest of the hidden state before each of them."""

    __slots__ = ("_entries",)

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ConfigError(f"the broadcast log's capacity is zero or more, got {capacity}")
        self._entries: deque[tuple[int, bytes]] = deque(maxlen=capacity)

    def append(self, digest_before: int, broadcast: bytes) -> None:
        self._entries.append((digest_before, broadcast))

    def missed(self, current: HiddenState, version: int, digest: int | None, kind: Kind) -> list[bytes]:
        """Messages that bring a client from its version (and, if it says, its digest) to the current hidden state."""
        if version > current.version:
            raise ClientAhead(
                f"the client holds hidden state {version}, the server {current.version}: "
                "one of them belongs to another run or lost its state; start again from a snapshot"
            )
        behind = current.version - version
        held = digest if behind > len(self._entries) else self._digest(current, behind)
        if digest is not None and digest != held:
            raise Drifted(
                f"hidden state {version} has digest {held:016x} here, {digest:016x} at the client: "
                "it has drifted, start again from a snapshot"
            )
        if behind == 0:
            return []
        if behind <= len(self._entries):
            # A whole model replaces whatever the client holds: only the last one matters.
            wanted = 1 if kind is Kind.MODEL else behind
            messages = [data for _, data in islice(self._entries, len(self._entries) - wanted, None)]
            if sum(map(len, messages)) <= HEADER_BYTES + current.vector.nbytes:
                return messages
        return [current.to_snapshot()]

    def _digest(self, current: HiddenState, behind: int) -> int:
        return current.digest if behind == 0 else self._entries[-behind][0]
