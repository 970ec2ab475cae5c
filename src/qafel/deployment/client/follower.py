"""The client-background process, Algorithm 3: x̂ in version order, whatever the network does.

Live broadcasts come first. What was missed is read from the stream by version; what the stream no longer has is skipped
with a snapshot. The server's heartbeat tells a client that it is behind, ahead, or has drifted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from qafel.algorithm import Client
from qafel.deployment.connection import Broker, Stored
from qafel.deployment.keys import Verifier
from qafel.deployment.messages import RunState
from qafel.deployment.names import EPOCH, KEY_VALUE_STREAM, OBJECT, SIGNATURE, Names, number_in
from qafel.errors import DataError, HiddenStateError, MessageError

_AT_ONCE: Final = 32
_LARGE: Final = 1 << 20  # coordinates; beyond, a step is applied in a thread
_AHEAD_S: Final = 6.0
_VERSION: Final = slice(28, 36)  # where a frame says it; docs/wire-format.md
log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class Follower:
    """Keeps one client's hidden state up to date."""

    names: Names
    client: Client
    _verifier: Verifier
    _advanced: Callable[[int, int], None]
    """Called with every new version and its bytes."""
    _news: asyncio.Event
    """Set when the run has ended."""
    _new_session: Callable[[], None]
    """Called when the server had to connect again."""
    state: RunState | None = None
    heard_at: float = field(default_factory=time.monotonic)
    """When the server's state came last."""
    ended: bool = False
    ignored: Counter[str] = field(default_factory=Counter)
    _head: int = 0
    _waiting: dict[int, bytes] = field(default_factory=dict)
    _restart: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _moved_at: float = field(default_factory=time.monotonic)

    @property
    def version(self) -> int:
        return self.client.hidden_state.version

    @property
    def caught_up(self) -> bool:
        """Whether we hold what the server's last state spoke of."""
        return self.state is not None and self.version >= self.state.version

    async def attach(self, broker: Broker) -> None:
        """Listen, then look what was missed."""
        await broker.subscribe(self.names.broadcasts, self._on_broadcast)
        await broker.subscribe(self.names.state, self._on_state)
        if (state := await broker.stored(KEY_VALUE_STREAM, self.names.state)) is not None:
            await self._on_state(state)

    async def follow(self, broker: Broker) -> None:
        """Apply steps as they come, forever."""
        pause_s = 0.05
        while True:
            while self._restart or self.version < self._head:
                if await self._move(broker):
                    pause_s = 0.05
                else:  # nothing there yet: the server is about to refill the broker
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.0, 2 * pause_s)
            self._waiting = {version: data for version, data in self._waiting.items() if version >= self.version}
            self._wake.clear()
            await self._wake.wait()

    def restart(self) -> None:
        """Start again from a snapshot: what we hold is not what the server has."""
        self._restart = True
        self._wake.set()

    async def _move(self, broker: Broker) -> bool:
        if self._restart:
            return await self._take_snapshot(broker)
        if self.version not in self._waiting:
            await self._fetch(broker)
        if (frame := self._waiting.pop(self.version, None)) is not None:
            return await self._apply(frame)
        return await self._take_snapshot(broker)

    async def _apply(self, frame: bytes) -> bool:
        try:
            if self.client.hidden_state.vector.size > _LARGE:
                await asyncio.to_thread(self.client.receive, frame)
            else:
                self.client.receive(frame)
        except HiddenStateError as error:
            log.warning("%s", error)
            self._restart = True
            return False
        except MessageError as error:
            self.ignored[error.reason] += 1
            return False
        return self._moved(len(frame))

    def _moved(self, received_bytes: int) -> bool:
        self._moved_at = time.monotonic()
        self._advanced(self.version, received_bytes)
        return True

    async def _fetch(self, broker: Broker) -> None:
        """What the stream has of the steps we lack, a few at a time."""
        wanted = range(self.version, min(self._head, self.version + _AT_ONCE))
        found = await asyncio.gather(
            *(broker.stored(self.names.broadcast_stream, self.names.broadcast(version)) for version in wanted)
        )
        for version, stored in zip(wanted, found, strict=True):
            if stored is not None and (frame := await self._frame(broker, stored)) is not None:
                self._waiting[version] = frame

    def superseded(self, stored: Stored) -> bool:
        """Whether it comes from a server that has lost the run to a later one."""
        epoch = stored.headers.get(EPOCH, "0")
        if self.state is None or (int(epoch) if epoch.isdecimal() else 0) >= self.state.epoch:
            return False
        self.ignored["epoch"] += 1
        return True

    async def _frame(self, broker: Broker, stored: Stored) -> bytes | None:
        """A broadcast's bytes, from its object if it was too large for a message; None if it is not genuine, or of a
        server that has lost the run. What was broadcast before an epoch began stays, whoever did.
        """
        data, version = stored.data, number_in(stored.subject)
        if self.state is not None and version is not None and version >= self.state.since and self.superseded(stored):
            return None
        if (name := stored.headers.get(OBJECT)) is not None:
            found = await broker.object(name)
            if found is None:
                return None
            data = found[0]
        return data if self._genuine(stored.subject, data, stored.headers.get(SIGNATURE)) else None

    async def _take_snapshot(self, broker: Broker) -> bool:
        found = await broker.object(self.names.snapshot)
        if found is None or not self._genuine(self.names.snapshot, *found):
            return False
        try:
            if self._restart:
                self.client.restart(found[0])
                self._head = max(self.version, self.state.version if self.state else 0)
                self._waiting.clear()
                self._restart = False
            elif not self.client.receive(found[0]):
                return False
        except (MessageError, HiddenStateError) as error:
            self.ignored[error.reason] += 1
            return False
        log.info("took a snapshot of version %d", self.version)
        return self._moved(len(found[0]))

    async def _on_broadcast(self, stored: Stored) -> None:
        version = number_in(stored.subject)
        if version is None or version < self.version or self.superseded(stored):
            return
        if OBJECT not in stored.headers:
            if not self._genuine(stored.subject, stored.data, stored.headers.get(SIGNATURE)):
                return
            if int.from_bytes(stored.data[_VERSION], "little") != version:
                self.ignored["version"] += 1
                return
            if len(self._waiting) < 4 * _AT_ONCE:
                self._waiting[version] = stored.data
        elif version > max(self._head, self.version) + _AT_ONCE:
            return  # a pointer carries no proof of its own; the heartbeat will tell
        self._head = max(self._head, version + 1)
        self._wake.set()

    async def _on_state(self, stored: Stored) -> None:
        if not self._genuine(self.names.state, stored.data, stored.headers.get(SIGNATURE)):
            return
        try:
            state = RunState.from_bytes(stored.data)
        except DataError:
            self.ignored["state"] += 1
            return
        if self.state is not None and state.run_id == self.state.run_id and state.epoch < self.state.epoch:
            self.ignored["epoch"] += 1
            return
        if self.state is not None and self.state.session != state.session:
            self._new_session()
        self.state, self.heard_at = state, time.monotonic()
        held = self.client.hidden_state
        ahead = state.version < held.version and time.monotonic() - self._moved_at > _AHEAD_S
        drifted = state.version == held.version and state.digest != held.digest
        if ahead or drifted:
            log.warning("the server is at version %d, we hold another %d: starting again", state.version, held.version)
            self._restart = True
        self._head = max(self._head, state.version)
        self._wake.set()
        if state.ended:
            self.ended = True
            self._news.set()

    def _genuine(self, context: str, data: bytes, signature: str | None) -> bool:
        try:
            self._verifier.check(context, data, signature)
        except MessageError as error:
            self.ignored[error.reason] += 1
            log.warning("%s: ignored", error)
            return False
        return True
