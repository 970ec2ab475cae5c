"""Plans as messages: what a client receives that downloads what `CatchUp` planned."""

from __future__ import annotations

from collections import deque

from qafel.algorithm import Batch, HiddenState, Kind, Means, Plan, Server
from qafel.algorithm.catch_up import own_start
from qafel.errors import MissedBroadcast


class Recorder:
    """Keeps the last broadcasts of a server, and turns plans into messages."""

    def __init__(self, server: Server, capacity: int = 10**6) -> None:
        self.server = server
        self._kept: deque[bytes] = deque(maxlen=capacity)
        step = server.step

        def recorded(batch: Batch) -> bytes:
            broadcast = step(batch)
            self._kept.append(broadcast)
            return broadcast

        server.step = recorded  # type: ignore[method-assign]

    def last(self, count: int) -> list[bytes]:
        """The last `count` broadcasts, in order."""
        if count > len(self._kept):
            raise MissedBroadcast(f"the last {len(self._kept)} broadcasts are kept, {count} were missed")
        return list(self._kept)[len(self._kept) - count :]

    def messages(self, plan: Plan, version: int, client: int = 0, sequence: int = 0) -> list[bytes]:
        """The messages of a plan for a client at this version that makes its update `sequence`."""
        server = self.server
        whole = server.algorithm.downlink.kind is Kind.MODEL and server.version > 0
        match plan.means:
            case Means.BROADCASTS:
                return self.last(1 if whole else server.version - version)
            case Means.WHOLE:
                shorter = server.offer().whole_bytes < server.hidden_state.snapshot_bytes
                return self.last(1) if shorter else [server.hidden_state.to_snapshot()]
            case Means.QUANTIZED:
                return [server.quantized()] if plan.download_bytes else []
            case Means.OWN:
                exact = HiddenState.of(server.model.copy(), server.version)
                return [own_start(exact, server.algorithm, server.seed, client, sequence)]
        return []
