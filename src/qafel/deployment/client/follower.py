"""The client-background process, Algorithm 3: x̂ in version order, whatever the network does.

A connected client follows the live broadcasts. If it missed some, the method's `CatchUp` decides what it fetches: the
missed broadcasts, by version from the stream; x̂ whole, which is the snapshot and the broadcasts after it, or of whole
models the newest; or a quantized copy, which serves one start and is never advanced. The plan's figures are in the
server's state. What the stream no longer has is skipped with a snapshot. The server's heartbeat tells a client that it
is behind, ahead, or has drifted; and that the run is another one now, because its server began it anew under the same
name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from qafel.algorithm import Client, Held, Kind, Means, Offer, Plan
from qafel.algorithm.messages import HEADER_BYTES, expectations, version_of
from qafel.deployment.connection import Broker, Stored
from qafel.deployment.keys import Verifier, fingerprint, signed_name
from qafel.deployment.messages import Agreement
from qafel.deployment.names import EPOCH, KEY_VALUE_STREAM, OBJECT, SIGNATURE, Names, number_in
from qafel.errors import DataError, HiddenStateError, MessageError
from qafel.runs.live import LiveState

_AT_ONCE: Final = 32
_COPY_ATTEMPTS: Final = 3  # then a client takes x̂ whole instead of a quantized copy
_LARGE: Final = 1 << 20  # coordinates; beyond, a step is applied in a thread
_AHEAD_S: Final = 6.0
_CLOCKS_S: Final = 60.0  # by which the clocks of two machines may differ
log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class Follower:
    """Keeps one client's hidden state up to date."""

    names: Names
    run_id: str
    """Which run of this name we take part in: what the server signs, it signs for that one."""
    client: Client
    """It holds x̂; before the first of it a vector at version -1, which only a whole model or snapshot replaces."""
    held: Held
    """What it holds, for its next download."""
    copy: bytes
    """The quantized copy that it holds, if it holds one; else empty."""
    _verifier: Verifier
    _advanced: Callable[[int, int], None]
    """Called with every new version and its bytes."""
    _news: asyncio.Event
    """Set when the run has ended."""
    _new_session: Callable[[], None]
    """Called when the server had to connect again."""
    _begun_anew: Callable[[Agreement], None]
    """Called with the agreement of another run that the server has begun under this name."""
    held_run_id: str = field(init=False)
    """Of which run the hidden state is that we hold: until its snapshot is here, not of another that was begun."""
    state: LiveState | None = None
    heard_at: float = field(default_factory=time.monotonic)
    """When the server last said something new, as far as we can tell."""
    ended: bool = False
    ready: bool = False
    """Whether a start may begin: from x̂, after it was up to date once, or from a copy that was fetched for it."""
    ignored: Counter[str] = field(default_factory=Counter)
    _head: int = 0
    """The newest version that we know of."""
    _head_before: int = 0
    """That of the last heartbeat."""
    _ahead: bool = False
    """Whether the last heartbeat was behind what we hold."""
    _waiting: dict[int, bytes] = field(default_factory=dict)
    _restart: bool = False
    _copy_failures: int = 0
    """Attempts in a row at fetching a quantized copy that failed."""
    _listening: bool = False
    """Whether this session receives live broadcasts."""
    _another_run: bool = False
    """Whether the server's last word was of another run than ours."""
    _last_word: tuple[int, int] = (0, 0)
    """Epoch and beat of that."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _moved_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.held_run_id = self.run_id

    @property
    def version(self) -> int:
        return self.client.hidden_state.version

    @property
    def newest(self) -> int:
        """The newest version that we know of."""
        return max(self._head, self.version)

    @property
    def caught_up(self) -> bool:
        """Whether we hold what the server's last state spoke of, or a copy, which nothing moves."""
        return bool(self.copy) or (self.state is not None and self.version >= self.state.version)

    def prepare(self) -> None:
        """A start is about to begin: of one who holds a copy, have the next download planned; `ready` says when."""
        if self.copy:
            self.ready = False
            self._wake.set()

    async def attach(self, broker: Broker) -> None:
        """Listen, then look what was missed."""
        self._listening = False
        if self.client.algorithm.catch_up.quantizer is None:
            await self._listen(broker)
        await broker.subscribe(self.names.state, self._on_state)
        if (state := await broker.stored(KEY_VALUE_STREAM, self.names.state)) is not None:
            await self._on_state(state)

    async def follow(self, broker: Broker) -> None:
        """Apply steps as they come, forever."""
        pause_s = 0.05
        while True:
            self._wake.clear()
            if self._another_run:
                await self._look_at_agreement(broker)
            while self._restart or (not self.ready if self.copy else self.version < self._head):
                if await self._move(broker):
                    pause_s = 0.05
                else:  # nothing there yet: the server is about to refill the broker
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.0, 2 * pause_s)
            self._waiting = {version: data for version, data in self._waiting.items() if version >= self.version}
            if not self.copy:  # x̂ of the newest version that we know of
                await self._listen(broker)
                self.ready = True
                self._news.set()
            await self._wake.wait()

    def restart(self) -> None:
        """Start again from a snapshot: what we hold is not what the server has."""
        self._restart = True
        self._wake.set()

    def follow_another(self, run_id: str) -> None:
        """From here on take part in the run with this identity, from its snapshot."""
        self.run_id, self.state, self._head = run_id, None, 0
        self.copy, self.held = b"", Held()
        self._waiting.clear()
        self.restart()

    async def _look_at_agreement(self, broker: Broker) -> None:
        """Whether the server has begun the run anew. It replaces the agreement last, so that all else is there."""
        self._another_run = False
        stored = await broker.stored(KEY_VALUE_STREAM, self.names.config)
        if stored is None:
            return
        try:
            self._verifier.check(signed_name(self.names.config), stored.data, stored.headers.get(SIGNATURE))
            agreement = Agreement.from_bytes(stored.data)
        except MessageError as error:
            self.ignored[error.reason] += 1
            return
        if agreement.run_id != self.run_id:
            self._begun_anew(agreement)

    async def _listen(self, broker: Broker) -> None:
        """Have live broadcasts from here on."""
        if not self._listening:
            self._listening = True
            await broker.subscribe(self.names.broadcasts, self._on_broadcast)

    async def _move(self, broker: Broker) -> bool:
        if self._restart:
            return await self._take_snapshot(broker)
        if self.version not in self._waiting:
            plan = self._plan()
            if plan.means is Means.QUANTIZED:
                return await self._take_copy(broker, plan)
            await self._listen(broker)
            if plan.means is Means.WHOLE and not self._sends_whole and await self._take_snapshot(broker):
                return True
            await self._fetch(broker)
        # Of whole models the newest is enough.
        wanted = max(self._waiting, default=-1) if self._sends_whole else self.version
        if (frame := self._waiting.pop(wanted, None)) is not None and wanted >= self.version:
            return await self._apply(frame)
        return await self._take_snapshot(broker)

    @property
    def _sends_whole(self) -> bool:
        return self.client.algorithm.downlink.kind is Kind.MODEL

    def _plan(self) -> Plan:
        """How to get to the newest version. Before the server's first word, with broadcasts, if we hold x̂."""
        state, held = self.state, self.held
        if state is None or not state.snapshot_bytes:  # the server has not said what the broker has
            unknown = Means.WHOLE if held.position is None else Means.BROADCASTS
            return Plan(Means.QUANTIZED if self.copy else unknown, 0, held)
        whole = state.snapshot_bytes + state.position - state.snapshot_position
        shortest = state.last_bytes if self._sends_whole and 0 < state.last_bytes < whole else whole
        follows = held.exact and held.position is not None
        # A copy is of the snapshot's version. What we hold may be newer than the server's last state.
        position = max(state.position if follows else state.snapshot_position, held.position or 0)
        newer = not follows or state.snapshot_position > (held.position or 0)
        quantized_bytes = state.quantized_bytes if newer and state.quantized_bytes else whole
        offer = Offer(position, Held(position), whole, shortest, lambda: quantized_bytes)
        plan = self.client.algorithm.catch_up.plan(held, offer)
        # A listener pays for live broadcasts, and a copy would waste them.
        whole_instead = self._listening or self._copy_failures >= _COPY_ATTEMPTS
        if plan.means is Means.QUANTIZED and plan.download_bytes and whole_instead:
            return plan._replace(means=Means.WHOLE)
        return plan

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
        position = 0 if self.held.position is None else self.held.position
        return self._moved(len(frame), Held(position + len(frame)))

    def _moved(self, received_bytes: int, held: Held, copy: bytes = b"") -> bool:
        self.held, self.copy, self._copy_failures = held, copy, 0
        self._moved_at = time.monotonic()
        self._advanced(self.version, received_bytes)
        return True

    async def _fetch(self, broker: Broker) -> None:
        """What the stream has of the steps we lack, a few at a time; of whole models the newest."""
        first = max(0, self.version, self._head - 1 if self._sends_whole else 0)
        wanted = range(first, min(self._head, first + _AT_ONCE))
        found = await asyncio.gather(
            *(broker.stored(self.names.broadcast_stream, self.names.broadcast(version)) for version in wanted)
        )
        for version, stored in zip(wanted, found, strict=True):
            if stored is not None and (frame := await self._frame(broker, stored)) is not None:
                self._waiting[version] = frame

    def superseded(self, epoch: int) -> bool:
        """Whether it comes from a server that has lost the run to a later one."""
        if self.state is None or epoch >= self.state.epoch:
            return False
        self.ignored["epoch"] += 1
        return True

    def genuine(self, name: str, stored: Stored) -> bool:
        """Whether our run's server signed this message, in the epoch that it names and that is not over."""
        epoch = epoch_of(stored)
        return not self.superseded(epoch) and self._is_signed(name, stored.data, stored.headers.get(SIGNATURE), epoch)

    async def _frame(self, broker: Broker, stored: Stored) -> bytes | None:
        """A broadcast's bytes, from its object if it was too large for a message; None if it is not genuine, or of a
        server that has lost the run. What was broadcast before an epoch began stays, whoever did.
        """
        version, epoch = number_in(stored.subject), epoch_of(stored)
        if version is None or (self.state is not None and version >= self.state.since and self.superseded(epoch)):
            return None
        if not self._is_signed(self._signed(stored, version), stored.data, stored.headers.get(SIGNATURE), epoch):
            return None
        if OBJECT not in stored.headers:
            return stored.data
        _, most_bytes = expectations(self.client.algorithm.server_quantizer, self.client.hidden_state.vector.size)
        found = await broker.object(self.names.broadcast_object(version), HEADER_BYTES + most_bytes)
        if found is None or fingerprint(found[0]) != stored.data:
            return None
        return found[0]

    def _signed(self, stored: Stored, version: int) -> str:
        """What a broadcast's signature names: its subject, or the object that it points to."""
        return f"{self.names.broadcast_object(version)} pointer" if OBJECT in stored.headers else stored.subject

    async def _object(self, broker: Broker, name: str, most_bytes: int) -> tuple[bytes, int] | None:
        """A snapshot or copy and its position; None if there is none, or it is not genuine."""
        found = await broker.object(name, HEADER_BYTES + most_bytes)
        if found is None:
            return None
        frame, (epoch, position, signature) = found[0], read_description(found[1])
        if self.state is not None and version_of(frame) > self.state.since and self.superseded(epoch):
            return None
        return (frame, position) if self._is_signed(f"{name} {position}", frame, signature, epoch) else None

    async def _take_copy(self, broker: Broker, plan: Plan) -> bool:
        """Start from the quantized copy: the one that we hold if there is no newer one, else that of the broker."""
        if plan.download_bytes and not await self._fetch_copy(broker, plan):
            self._copy_failures += 1
            return False
        self.ready = True
        self._news.set()
        return True

    async def _fetch_copy(self, broker: Broker, plan: Plan) -> bool:
        quantizer, size = self.client.algorithm.catch_up.quantizer, self.client.hidden_state.vector.size
        assert quantizer is not None
        found = await self._object(broker, self.names.copy, quantizer.max_payload_bytes(size))
        if found is None:
            return False
        frame, position = found
        if self.state is not None and position < self.state.snapshot_position:
            self.ignored["old"] += 1
            return False
        try:
            self.client.restart(frame)
        except (MessageError, HiddenStateError) as error:
            self.ignored[error.reason] += 1
            return False
        return self._moved(len(frame), plan.held._replace(position=position), frame)

    async def _take_snapshot(self, broker: Broker) -> bool:
        """Take x̂ whole. A snapshot has x̂ and, where there is one, the server's memory."""
        found = await self._object(broker, self.names.snapshot, 8 * self.client.hidden_state.vector.size)
        if found is None:
            return False
        (frame, position), before = found, self.client.hidden_state
        try:
            known = not self._restart and not self.client.receive(frame)
            if self._restart:
                self.client.restart(frame)
        except (MessageError, HiddenStateError) as error:
            self.ignored[error.reason] += 1
            return False
        if known or not self.client.hidden_state.exact:
            self.client.hidden_state = before
            return False
        if self._restart:
            self._head = max(self.version, self.state.version if self.state else 0)
            self._waiting.clear()
            self._restart, self.held_run_id = False, self.run_id
        log.info("took a snapshot of version %d", self.version)
        return self._moved(len(frame), Held(position))

    async def _on_broadcast(self, stored: Stored) -> None:
        version = number_in(stored.subject)
        if version is None or version < self.version or not self.genuine(self._signed(stored, version), stored):
            return
        if OBJECT not in stored.headers:
            if version_of(stored.data) != version:
                self.ignored["version"] += 1
                return
            if len(self._waiting) < 4 * _AT_ONCE:
                self._waiting[version] = stored.data
        self._head = max(self._head, version + 1)
        self._wake.set()

    async def _on_state(self, stored: Stored) -> None:
        try:
            self._verifier.check(signed_name(self.names.state), stored.data, stored.headers.get(SIGNATURE))
            state = LiveState.from_bytes(stored.data)
        except (MessageError, DataError) as error:
            self.ignored["state" if isinstance(error, DataError) else error.reason] += 1
            return
        if state.run_id != self.run_id:
            self._hear_of_another(state)
            return
        before = self.state
        if before is not None and (state.epoch, state.beat) <= (before.epoch, before.beat):
            # Said again, or held back until now, or of a server that has lost the run.
            self.ignored["epoch" if state.epoch < before.epoch else "old"] += state.beat != before.beat
            return
        if before is not None and before.session != state.session:
            self._new_session()
        age_s = time.time() - state.at
        self.state, self.heard_at = state, time.monotonic() - (age_s if age_s > _CLOCKS_S else 0.0)
        self._last_word = max(self._last_word, (state.epoch, state.beat))
        held = self.client.hidden_state
        ahead = state.version < held.version and time.monotonic() - self._moved_at > _AHEAD_S
        drifted = state.version == held.version and state.digest != held.digest and held.exact
        # A copy has no digest to compare: one that a lost server may have made is of no use.
        forked = bool(self.copy) and before is not None and before.epoch < state.epoch and state.since < held.version
        before_too, self._ahead = self._ahead, ahead
        if drifted or forked or (ahead and before_too):  # one heartbeat may have been on its way for long
            log.warning("the server is at version %d, we hold another %d: starting again", state.version, held.version)
            self._restart = True
        # Broadcasts may be ahead of a heartbeat that was on its way. If they are ahead of the next, nobody made them.
        self._head = state.version if self._head <= self._head_before else max(self._head, state.version)
        self._head_before = self._head
        self._wake.set()
        if state.ended:
            self.ended = True
            self._news.set()

    def _hear_of_another(self, state: LiveState) -> None:
        """A state of another run of this name: of one that is over, or of one that was begun since, which has a higher
        epoch. The server's clock may be wrong.
        """
        if (state.epoch, state.beat) <= self._last_word:
            self.ignored["another-run"] += 1
            return
        self._last_word, self._another_run = (state.epoch, state.beat), True
        self._wake.set()

    def _is_signed(self, name: str, data: bytes, signature: str | None, epoch: int) -> bool:
        try:
            self._verifier.check(signed_name(name, self.run_id, epoch), data, signature)
        except MessageError as error:
            self.ignored[error.reason] += 1
            log.warning("%s: ignored", error)
            return False
        return True


def epoch_of(stored: Stored) -> int:
    """The epoch of the server that a message names; zero if it names none."""
    found = stored.headers.get(EPOCH, "")
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 20 else 0


def read_description(description: str) -> tuple[int, int, str | None]:
    """What stands with an object: the epoch of the server that made it, the position of the x̂ in it, and its signature,
    if the server signs.
    """
    epoch, _, rest = description.partition(" ")
    position, _, signature = rest.partition(" ")
    return number_in(epoch) or 0, number_in(position) or 0, signature or None
