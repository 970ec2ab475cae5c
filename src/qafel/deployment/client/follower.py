"""The client background process, Algorithm 3: keep x̂ up to date, in version order, over an unreliable network.

A connected client applies live broadcasts. If it missed some, the method's `CatchUp` decides what it downloads. If the
client follows only for its starts, `CatchUp` decides before each of them:

broadcasts  by version, from the stream
whole       the snapshot and the broadcasts after it; for whole models, the newest one
quantized   a copy for one start, which no broadcast advances
link        the difference to the client's last start, made by the server for this client

The server's state lists the sizes that the plan needs. A snapshot replaces broadcasts that the stream no longer has.
The state also shows whether the client is behind, ahead or has drifted, and whether the server started a new run under
the same name.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from qafel.algorithm import Client, Held, HiddenState, Kind, Means, Offer, Plan
from qafel.algorithm.messages import HEADER_BYTES, expectations, version_of
from qafel.deployment.client.starts import StartRequests
from qafel.deployment.connection import Broker, Stored
from qafel.deployment.keys import Verifier, fingerprint, signed_name
from qafel.deployment.messages import Agreement, StartReply, StartRequest, read_agreement, verified_state
from qafel.deployment.names import EPOCH, KEY_VALUE_STREAM, OBJECT, SIGNATURE, START, Names, number_in
from qafel.errors import DataError, HiddenStateError, MessageError
from qafel.runs.live import LiveState
from qafel.text import human_seconds

_AT_ONCE: Final = 32
_FRESH_S: Final = 10.0  # a download for a start serves it for so long
_COPY_ATTEMPTS: Final = 3  # then a client takes x̂ whole instead of a quantized copy
_LARGE: Final = 1 << 20  # coordinates; a thread applies broadcasts to larger models
_AHEAD_S: Final = 6.0
_CLOCKS_S: Final = 60.0  # tolerated difference between the clocks of two machines
log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class Follower:
    """Keeps one client's hidden state up to date."""

    names: Names
    run_id: str
    """The run's identity, which every signature of the server covers."""
    client: Client
    """Holds x̂. Version -1 means none: only a snapshot or a whole model replaces it."""
    held: Held
    """What the client holds, for its next download."""
    starts: StartRequests
    sleeps: bool
    """Whether the client follows only for its starts."""
    _number: Callable[[], int]
    """Returns the number of the next start."""
    _verifier: Verifier
    _on_advance: Callable[[int, int], None]
    """Called with each new version and its bytes."""
    _news: asyncio.Event
    """Set when a start may begin, and when the run has ended."""
    _on_new_session: Callable[[], None]
    """Called when the server connected again."""
    _on_new_run: Callable[[Agreement], None]
    """Called with the agreement of a new run under the same name."""
    held_run_id: str = field(init=False)
    """The run that the held x̂ belongs to. It lags behind `run_id` until the new run's snapshot arrives."""
    state: LiveState | None = None
    heard_at: float = field(default_factory=time.monotonic)
    """When the server last sent a new state, as far as clocks agree."""
    ended: bool = False
    ready: bool = False
    """Whether a start may begin: x̂ was up to date once, or what this start needs was downloaded."""
    ignored: Counter[str] = field(default_factory=Counter)
    _head: int = 0
    """The newest known version."""
    _head_before: int = 0
    """`_head` at the last heartbeat."""
    _ahead: bool = False
    """Whether the last heartbeat was older than the held version."""
    _waiting: dict[int, bytes] = field(default_factory=dict)
    _restart: bool = False
    _ready_for: tuple[int, float] = (-1, 0.0)
    """The start that a download was made for, and when."""
    _copy_failures: int = 0
    """Consecutive failed attempts to fetch a quantized copy."""
    _completes: bool = False
    """Whether the broadcasts after a snapshot complete this start."""
    _listening: bool = False
    """Whether this session receives live broadcasts."""
    _check_agreement: bool = False
    """Whether the last state came from another run of this name."""
    _last_beat: tuple[int, int] = (0, 0)
    """Epoch and beat of the newest state, of any run."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _moved_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.held_run_id = self.run_id

    @property
    def version(self) -> int:
        return self.client.hidden_state.version

    @property
    def newest(self) -> int:
        """The newest known version."""
        return max(self._head, self.version)

    @property
    def caught_up(self) -> bool:
        """Whether the client holds the server's last announced version, or what broadcasts never advance."""
        return self.by_start or (self.state is not None and self.version >= self.state.version)

    @property
    def waits_for(self) -> str:
        """What a start that may not begin yet waits for."""
        wait_s = math.ceil(self.starts.waits_s)
        return f"a start, which the server's limits allow in {human_seconds(wait_s)}" if wait_s else "the hidden state"

    @property
    def by_start(self) -> bool:
        """Whether the client downloads for each start, instead of following all broadcasts."""
        return self.sleeps or not self.client.hidden_state.exact

    def prepare(self) -> None:
        """Plan the download of the next start, if each has its own. `ready` says when the start may begin."""
        number, at = self._ready_for
        if self.by_start and (number != self._number() or time.monotonic() - at > _FRESH_S):
            self.ready = False
            self._wake.set()

    async def attach(self, broker: Broker) -> None:
        """Subscribe to the server's messages, then read its last state."""
        self._listening = self._completes = False
        catch_up = self.client.algorithm.catch_up
        if not (catch_up.quantizers or self.sleeps):
            await self._listen(broker)
        if catch_up.link is not None:
            await broker.subscribe(self.names.started(self.client.number), self._on_start)
        await broker.subscribe(self.names.state, self._on_state)
        if (state := await broker.stored(KEY_VALUE_STREAM, self.names.state)) is not None:
            await self._on_state(state)

    async def follow(self, broker: Broker) -> None:
        """Apply broadcasts as they arrive, forever."""
        pause_s = 0.05
        while True:
            self._wake.clear()
            while self._check_agreement or self._is_behind():
                if self._check_agreement:
                    await self._find_new_run(broker)
                elif await self._move(broker):
                    pause_s = 0.05
                else:  # the server has not refilled the broker yet
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.0, 2 * pause_s)
            self._completes = False
            self._waiting = {version: data for version, data in self._waiting.items() if version >= self.version}
            if not self.by_start:
                await self._listen(broker)
            if not self.ready:
                self._get_ready()
            await self._wake.wait()

    def _is_behind(self) -> bool:
        if self._restart or (self.by_start and self.ready):
            return self._restart
        return self.version < self._head or not self.client.hidden_state.exact

    def _get_ready(self) -> bool:
        self.ready, self._ready_for = True, (self._number(), time.monotonic())
        self._news.set()
        return True

    def restart(self) -> None:
        """Begin again, because the held x̂ is not the server's. The next linked start does not depend on it."""
        self._restart = not self.held.linked
        self._wake.set()

    def switch_run(self, run_id: str) -> None:
        """Follow the run with this identity from now on, starting with its snapshot."""
        self.run_id, self.state, self._head = run_id, None, 0
        self.held = Held()
        self._waiting.clear()
        self.restart()

    async def _find_new_run(self, broker: Broker) -> None:
        """Check whether the server started a new run. It stores the agreement last, after everything else."""
        self._check_agreement = False
        try:
            agreement = await read_agreement(broker, self.names, self._verifier)
        except MessageError as error:
            self.ignored[error.reason] += 1
            return
        if agreement is not None and agreement.run_id != self.run_id:
            self._on_new_run(agreement)

    async def _listen(self, broker: Broker) -> None:
        if not self._listening:
            self._listening = True
            await broker.subscribe(self.names.broadcasts, self._on_broadcast)

    async def _move(self, broker: Broker) -> bool:
        """Take the next step towards the newest version. Return False if nothing was found."""
        if self._restart and self.client.algorithm.catch_up.link is None:
            return await self._take_snapshot(broker)
        if self._restart:
            self.client.hidden_state = HiddenState.of(np.zeros_like(self.client.hidden_state.vector), -1)
            self.held, self.ready = Held(), False
            self._begin_again()
        if self.version not in self._waiting:
            plan = self._plan()
            if plan.means is Means.QUANTIZED:
                return await self._take_copy(broker, plan)
            if plan.means is Means.LINK:
                return await self._take_link(broker, plan)
            if not self.sleeps:
                await self._listen(broker)
            if plan.means is Means.WHOLE and not self._sends_whole and await self._take_snapshot(broker):
                return True
            await self._fetch(broker)
        # The newest whole model replaces all before it.
        wanted = max(self._waiting, default=-1) if self._sends_whole else self.version
        if (frame := self._waiting.pop(wanted, None)) is not None and wanted >= self.version:
            return await self._apply(frame)
        return await self._take_snapshot(broker)

    @property
    def _sends_whole(self) -> bool:
        return self.client.algorithm.downlink.kind is Kind.MODEL

    def _plan(self) -> Plan:
        """Ask the method's `CatchUp` how to reach the newest version."""
        state, held = self.state, self.held
        catch_up, follows = self.client.algorithm.catch_up, held.exact and held.position is not None
        if self._completes and follows:
            return Plan(Means.BROADCASTS, 0, held)
        if state is None or not state.snapshot_bytes:  # the sizes are not known yet
            inexact = Means.QUANTIZED if held.position is not None else Means.WHOLE
            means = Means.BROADCASTS if follows else Means.LINK if catch_up.link is not None else inexact
            return Plan(means, 0, held)
        whole = state.snapshot_bytes + state.position - state.snapshot_position
        shortest = state.last_bytes if self._sends_whole and 0 < state.last_bytes < whole else whole
        # A copy has the snapshot's version. The client may hold something newer than the last heartbeat.
        newest = state.position if follows or catch_up.link is not None else state.snapshot_position
        position = max(newest, held.position or 0)
        newer = held.position is None or state.snapshot_position > held.position
        quantized_bytes = state.quantized_bytes if newer and state.quantized_bytes else whole
        offer = Offer(
            position, Held(position), whole, shortest, lambda: quantized_bytes, self.client.hidden_state.vector.size
        )
        plan = catch_up.plan(held, offer)
        # A listening client pays for live broadcasts already; another start point would waste them.
        whole_instead = self._listening or self._copy_failures >= _COPY_ATTEMPTS
        if plan.means in (Means.QUANTIZED, Means.LINK) and plan.download_bytes and whole_instead:
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
        return self._moved(len(frame), Held((self.held.position or 0) + len(frame)))

    def _moved(self, received_bytes: int, held: Held) -> bool:
        self.held, self._copy_failures = held, 0
        self._moved_at = time.monotonic()
        self._on_advance(self.version, received_bytes)
        return True

    async def _fetch(self, broker: Broker) -> None:
        """Read missed broadcasts from the stream, a few at a time; for whole models, the newest."""
        first = max(0, self.version, self._head - 1 if self._sends_whole else 0)
        wanted = range(first, min(self._head, first + _AT_ONCE))
        found = await asyncio.gather(
            *(broker.stored(self.names.broadcast_stream, self.names.broadcast(version)) for version in wanted)
        )
        for version, stored in zip(wanted, found, strict=True):
            if stored is not None and (frame := await self._frame(broker, stored)) is not None:
                self._waiting[version] = frame

    def _is_superseded(self, epoch: int) -> bool:
        """Whether a later server has taken over from the server of this epoch."""
        if self.state is None or epoch >= self.state.epoch:
            return False
        self.ignored["epoch"] += 1
        return True

    def is_genuine(self, name: str, stored: Stored) -> bool:
        """Whether the run's current server signed this message."""
        epoch = _epoch_of(stored)
        return not self._is_superseded(epoch) and self._is_signed(
            name, stored.data, stored.headers.get(SIGNATURE), epoch
        )

    async def _frame(self, broker: Broker, stored: Stored) -> bytes | None:
        """Return a broadcast's bytes, from its object if it has one; None if it is not genuine.

        Broadcasts from before the current epoch stay valid, whichever server sent them.
        """
        version, epoch = number_in(stored.subject), _epoch_of(stored)
        if version is None or (self.state is not None and version >= self.state.since and self._is_superseded(epoch)):
            return None
        if not self._is_signed(self._signed(stored, version), stored.data, stored.headers.get(SIGNATURE), epoch):
            return None
        if OBJECT not in stored.headers:
            return stored.data
        _, most_bytes = expectations(self.client.algorithm.server_quantizer, self.client.hidden_state.vector.size)
        found = await broker.object(self.names.broadcast_object(version), HEADER_BYTES + most_bytes)
        return None if found is None or fingerprint(found[0]) != stored.data else found[0]

    def _signed(self, stored: Stored, version: int) -> str:
        """The name that a broadcast's signature covers: its subject, or the object that it points to."""
        return f"{self.names.broadcast_object(version)} pointer" if OBJECT in stored.headers else stored.subject

    async def _object(self, broker: Broker, name: str, most_bytes: int) -> tuple[bytes, int] | None:
        """Return a snapshot or copy and its position; None if it is missing or not genuine."""
        found = await broker.object(name, HEADER_BYTES + most_bytes)
        if found is None:
            return None
        frame, (epoch, position, signature) = found[0], read_description(found[1])
        if self.state is not None and version_of(frame) > self.state.since and self._is_superseded(epoch):
            return None
        return (frame, position) if self._is_signed(f"{name} {position}", frame, signature, epoch) else None

    async def _take_copy(self, broker: Broker, plan: Plan) -> bool:
        """Start from the held copy if it is the newest, else from the broker's."""
        if not plan.download_bytes:
            return self._get_ready()
        quantizer, size = self.client.algorithm.catch_up.quantizer, self.client.hidden_state.vector.size
        assert quantizer is not None
        self._copy_failures += 1  # reset by `_moved`
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
        self._moved(len(frame), plan.held._replace(position=position))
        return self._get_ready()

    async def _take_link(self, broker: Broker, plan: Plan) -> bool:
        """Ask the server for the difference to the held start point. The server knows whether there is a newer x̂."""
        client = self.client
        if self.state is None or not self.state.session:  # the server does not take requests yet
            return False
        digest = client.hidden_state.digest if self.held.linked else 0
        initial = 0 if client.initial is None else client.initial.digest
        reply = await self.starts.ask(broker, self.run_id, StartRequest(self._number(), digest, initial))
        if reply is None or self._restart:
            return False
        if reply.frame:
            try:
                client.receive(reply.frame)
            except (MessageError, HiddenStateError) as error:
                log.warning("The server's start does not fit this client (%s). Beginning again.", error)
                self.ignored[error.reason] += 1
                self._restart = True
                return False
            self._moved(len(reply.frame), plan.held._replace(position=reply.position, exact=False, linked=True))
        elif not digest:  # "keep what you hold" makes no sense
            self.ignored["no-start"] += 1
            return False
        return self._get_ready()

    async def _take_snapshot(self, broker: Broker) -> bool:
        """Take x̂ whole, with the server's memory if the method has one."""
        found = await self._object(broker, self.names.snapshot, 8 * self.client.hidden_state.vector.size)
        if found is None:
            return False
        (frame, position), before = found, self.client.hidden_state
        try:
            anew = self._restart or not before.exact  # of an older version too, because broadcasts move it
            known = not anew and not self.client.receive(frame)
            if anew:
                self.client.restart(frame)
        except (MessageError, HiddenStateError) as error:
            self.ignored[error.reason] += 1
            return False
        if known or not self.client.hidden_state.exact:
            self.client.hidden_state = before
            return False
        if self._restart:
            self._begin_again()
        self._completes = True
        log.info("Took a snapshot of version %d.", self.version)
        return self._moved(len(frame), Held(position))

    def _begin_again(self) -> None:
        """Discard what is known of versions that the server may not have."""
        self._head = max(self.version, self.state.version if self.state else 0)
        self._waiting.clear()
        self._restart, self.held_run_id = False, self.run_id

    async def _on_start(self, stored: Stored) -> None:
        head = stored.headers.get(START, "")
        if not self.is_genuine(f"{self.names.started(self.client.number)} {head}", stored):
            return
        try:
            self.starts.add(*StartReply.from_head(head), stored.data)
        except MessageError as error:
            self.ignored[error.reason] += 1

    async def _on_broadcast(self, stored: Stored) -> None:
        version = number_in(stored.subject)
        if version is None or version < self.version or not self.is_genuine(self._signed(stored, version), stored):
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
            state = verified_state(self.names, self._verifier, stored)
        except (MessageError, DataError) as error:
            self.ignored["state" if isinstance(error, DataError) else error.reason] += 1
            return
        beat = (state.epoch, state.beat)
        if state.run_id != self.run_id:
            # An old run of this name, or a new one, which has a higher epoch. Clocks may be wrong.
            if beat > self._last_beat:
                self._last_beat, self._check_agreement = beat, True
                self.starts.ask_again()
                self._wake.set()
            else:
                self.ignored["another-run"] += 1
            return
        before = self.state
        if before is not None and beat <= (before.epoch, before.beat):
            # Repeated, delayed, or from a server that lost the run.
            self.ignored["epoch" if state.epoch < before.epoch else "old"] += state.beat != before.beat
            return
        if before is not None and before.session != state.session:
            self._on_new_session()
            self.starts.ask_again()
        age_s = time.time() - state.at
        self.state, self.heard_at = state, time.monotonic() - (age_s if age_s > _CLOCKS_S else 0.0)
        self._last_beat = max(self._last_beat, beat)
        self._compare(state, before)
        # Broadcasts may be newer than a delayed heartbeat. If they are newer than the next one too, they are not valid.
        self._head = state.version if self._head <= self._head_before else max(self._head, state.version)
        self._head_before = self._head
        self._wake.set()
        if state.ended:
            self.ended = True
            self._news.set()

    def _compare(self, state: LiveState, before: LiveState | None) -> None:
        """Restart if the held x̂ is not of the server's history. The next linked start does not depend on it."""
        held = self.client.hidden_state
        if self.held.linked:
            return
        ahead = state.version < held.version and time.monotonic() - self._moved_at > _AHEAD_S
        drifted = state.version == held.version and state.digest != held.digest and held.exact
        # The digest of a copy proves nothing, so a copy from a superseded server is discarded.
        forked = not held.exact and before is not None and before.epoch < state.epoch and state.since < held.version
        was_ahead, self._ahead = self._ahead, ahead
        if drifted or forked or (ahead and was_ahead):  # a single heartbeat may be delayed
            log.warning(
                "The server is at version %d; this client holds another version %d. Starting again.",
                state.version,
                held.version,
            )
            self._restart = True

    def _is_signed(self, name: str, data: bytes, signature: str | None, epoch: int) -> bool:
        try:
            self._verifier.check(signed_name(name, self.run_id, epoch), data, signature)
        except MessageError as error:
            self.ignored[error.reason] += 1
            log.warning("Ignored: %s", error)
            return False
        return True


def _epoch_of(stored: Stored) -> int:
    """The epoch in a message's headers; zero if there is none."""
    return number_in(stored.headers.get(EPOCH, "")) or 0


def read_description(description: str) -> tuple[int, int, str | None]:
    """Read an object's description: the server's epoch, the position of its x̂, and the signature, if any."""
    epoch, _, rest = description.partition(" ")
    position, _, signature = rest.partition(" ")
    return number_in(epoch) or 0, number_in(position) or 0, signature or None
