"""Plans as messages: what a client receives that downloads what `CatchUp` planned."""

from __future__ import annotations

from collections import deque

from qafel.algorithm import Batch, HiddenState, Kind, Means, Plan, Server
from qafel.algorithm.catch_up import Links, own_start
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

    def linked_start(self, links: Links, client: int, sequence: int, held: HiddenState | None) -> bytes:
        """The server's reply to a client that names the point that it holds, without a change of its memory."""
        memory = dict(links.memory)
        digest = 0 if held is None else held.digest
        message, _ = links.reply(client, sequence, digest, self.server.hidden_state)
        links.memory = memory
        return message

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
