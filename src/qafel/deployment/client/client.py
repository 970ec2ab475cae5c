"""The client: copy x̂, train, upload, and follow the broadcasts in the background.

Training uses a task of this package or a custom function, in a thread or in another process. It waits for the network
only when the window of uploads in flight is full. A broken connection does not disturb it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

from qafel.algorithm import Client, Held, HiddenState, Made
from qafel.algorithm.client import Train
from qafel.algorithm.messages import HEADER_BYTES
from qafel.deployment.client import ClientReport, ClientSettings
from qafel.deployment.client.follower import Follower
from qafel.deployment.client.outbox import ANOTHER_PROCESS, COUNTED, Outbox
from qafel.deployment.client.starts import StartRequests
from qafel.deployment.client.state import ClientState, Kept, Memory, Sent
from qafel.deployment.client.training import initial_model, train_with, training_in
from qafel.deployment.connection import Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement, read_agreement
from qafel.deployment.names import Names
from qafel.deployment.status import SILENT_S
from qafel.deployment.transport import run_until_one_ends
from qafel.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigError,
    DataError,
    MemoryMismatch,
    TrainingFailed,
)
from qafel.parts import errors_of
from qafel.tasks.protocol import ClientTraining
from qafel.text import human_seconds

_REPORT_MOST_S: Final = 60.0
_PAUSE_S: Final = 1.0
_SLEEP_S: Final = 10.0  # a client that follows only for its starts keeps its connection for shorter pauses
_PAUSE_MOST_S: Final = 16.0
_FAILURE_PAUSE_MOST_S: Final = 60.0
_TWIN_NUMBERS: Final = 8  # two processes with one client number choose among so many numbers
_WORKING: Final = ("", "receipts")  # what a client waits for while connection and server work
log = logging.getLogger(__name__)

ClientEvent: TypeAlias = dict[str, Any]
"""An event at a client: an update, a new version, a receipt, or a progress report."""
MakeTrain: TypeAlias = Callable[[Agreement, int, ClientSettings], tuple[Train, float]]
"""Makes a training function and the weight of its updates, from the agreement, the client's number and its settings."""


class CopiedState(NamedTuple):
    """The start of an update: the copied hidden state and the update's number."""

    client: Client
    sequence: int
    run_id: str
    """The run that the hidden state belongs to."""
    follows: int | None
    """The update that the client's memory follows, if it has a memory."""


@final
@dataclass
class DeploymentClient:
    """One client of one run."""

    core: Client
    _kept: Kept
    """What it holds at the start."""
    _train: Train
    _state: ClientState
    _agreement: Agreement
    names: Names
    _access: Access
    _settings: ClientSettings
    _on_event: Callable[[ClientEvent], None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a message arrives that training may wait for."""
    _saving: threading.Lock = field(default_factory=threading.Lock)
    """One save at a time."""
    _wire: Counter[str] = field(default_factory=Counter)
    _stopping: bool = False
    _pause_until: float = 0.0
    _pause_s: float = _PAUSE_S
    """The pause after a rate or share rejection. It doubles each time, until the server accepts an update."""
    _lost: str = ""
    """Why the connection is lost; empty while connected."""
    _sleeping: bool = False
    """Whether the client waits for its next start without a connection, once it has all receipts."""
    _full: bool = False
    """Whether training waits for receipts."""
    _reported_wait: bool = False
    """Whether the last progress event reported a wait."""
    _twin_until: float = 0.0
    """No second warning about another process under this number before this time."""
    _memory: Memory | None = None
    """The memory of the client rule, if it has one. Then one upload is in flight at a time."""
    _failures: int = 0
    """Consecutive failures of training."""
    _refused: str = ""
    """Why the server cannot count further updates of this client."""

    def __post_init__(self) -> None:
        number, access = self.core.number, self._access
        self.report = ClientReport(number)
        run_id, window, next_number = self._agreement.run_id, self._settings.window, self._state.next
        if self.core.algorithm.needs.client_memory:
            self._memory = Memory.load(self._state.folder, run_id, self.core.memory)
            window, next_number = 1, self._memory.next
        self.outbox = Outbox(
            self.names.upload(number), run_id, access.signer(), window, self._on_outcome, self._news, self._on_counted
        )
        self.outbox.newest = next_number - 1
        if self._memory is not None and (sent := self._memory.sent) is not None:  # it may have been counted
            self.outbox.add(sent.sequence, sent.frame, self._memory.follows)
        size, catch_up = self.core.hidden_state.vector.size, self.core.algorithm.catch_up
        most_bytes = HEADER_BYTES + max((q.max_payload_bytes(size) for q in catch_up.quantizers.values()), default=0)
        self.follower = Follower(
            self.names,
            run_id,
            self.core,
            self._kept.held,
            StartRequests(self.names.start(number), access.signer(), most_bytes),
            self._settings.follow == "start",
            self._next_number,
            access.verifier(),
            self._on_advance,
            self._news,
            self.outbox.send_again,
            self._switch_run,
        )

    def stop(self) -> None:
        """End after the current update."""
        self._stopping = True
        self._news.set()

    async def run(self) -> ClientReport:
        """Train and follow until the run ends, `max_updates` are done, or `stop` is called."""
        self._emit("version", version=self.core.hidden_state.version)
        try:
            await run_until_one_ends(self.stay_connected(), self._work(), self._keep_saving(), self._keep_reporting())
        finally:
            self._save(self._now_held())
            self._state.give_back()
        report, held = self.report, self.core.hidden_state
        report.version, report.digest = held.version, held.digest
        report.outcomes, report.sent_bytes = dict(self.outbox.counts), self.outbox.sent_bytes
        report.wire_sent_bytes, report.wire_received_bytes = self._wire["sent"], self._wire["received"]
        report.run_state = self.follower.state.status if self.follower.state else ""
        return report

    async def stay_connected(self) -> None:
        """Run sessions with the broker: listen, catch up, deliver.

        `patience_s` limits the wait for the first session: the broker may have gone while the task was loaded.
        """
        patience_s = self._settings.patience_s
        while True:
            try:
                async with session(
                    self._access, str(self.core.number), patience_s=patience_s, wire=self._wire, on_wait=self._lose
                ) as broker:
                    await broker.subscribe(self.names.receipt(self.core.number), self._on_receipt)
                    await self.follower.attach(broker)
                    self._lost, patience_s = "", None
                    await run_until_one_ends(
                        broker.until_lost(),
                        self.follower.follow(broker),
                        self.outbox.deliver(broker),
                        self.until(self._is_asleep),
                    )
                await self.until(lambda: not self._is_asleep())
            except BrokerError as error:
                log.info("%s. Trying again.", error)
                self._lose(str(error))
                await asyncio.sleep(0.2)

    def _lose(self, why: str) -> None:
        """Record that the connection is lost, and report it once."""
        if not self._lost:
            self._reported_wait = True
            self._emit("waiting", text=why)
        self._lost = why

    async def _on_receipt(self, stored: Stored) -> None:
        """Ignore receipts of a superseded server: its successor may not have these updates."""
        if self.follower.is_genuine(self.names.receipt(self.core.number), stored):
            await self.outbox.on_receipt(stored)

    def _switch_run(self, agreement: Agreement) -> None:
        """Take part in a new run of the same name, if it has the same configuration."""
        before, run = self._agreement, self.names.run
        if (agreement.config, agreement.layout) != (before.config, before.layout):
            raise ConfigError(f"run {run!r} was started again with other settings: start this client again")
        log.warning("The server started run %r again. This client starts again, too.", run)
        self._agreement = agreement
        self.outbox.run_id = agreement.run_id
        self.outbox.clear()
        if self._memory is not None:
            new = self.core.algorithm.client_rule.new_memory(agreement.layout.size)
            self._memory = Memory(self._state.folder, agreement.run_id, new)
        self.follower.switch_run(agreement.run_id)
        self._news.set()

    def begin(self) -> CopiedState:
        """Copy the hidden state: y₀ = x̂. Algorithm 2, line 1."""
        memory, core = self._memory, self.core
        if memory is not None:
            core.memory, core.sequence = memory.now, memory.next
            memory.next += 1
        else:
            self._state.skip_to(self._next_number())
            core.sequence = self._state.take_sequence()
        return CopiedState(core.begin(), core.sequence - 1, self.follower.held_run_id, memory and memory.follows)

    def _next_number(self) -> int:
        """The number of the update that `begin` would start next."""
        return self._memory.next if self._memory else max(self._state.next, self.outbox.highest + 1)

    def _has_room(self) -> bool:
        return self.outbox.has_room(self._next_number())

    def _is_asleep(self) -> bool:
        return self._sleeping and not len(self.outbox) and self.outbox.failure_sent and not self._ending()

    def finish(self, start: CopiedState, train: Train) -> Made:
        """Train and encode. Algorithm 2, lines 2 to 6. May run in a thread while the hidden state advances."""
        with errors_of(f"the training of client {self.core.number}"):
            return start.client.update(train)

    async def send(self, start: CopiedState, made: Made) -> None:
        """Write the update and its memory to disk, if there is a memory, then pass the update to the outbox.

        An update that can no longer count is dropped: its run is over, or its memory is outdated.
        """
        memory = self._memory
        if memory is not None and self._is_current(start):
            await asyncio.to_thread(memory.keep(Sent(start.sequence, *made)))
        if self._is_current(start):
            self.outbox.add(start.sequence, made.upload, start.follows)

    def _is_current(self, start: CopiedState) -> bool:
        follows = self._memory and self._memory.follows
        return (start.run_id, start.follows) == (self.outbox.run_id, follows)

    async def _work(self) -> None:
        loop, settings = asyncio.get_running_loop(), self._settings
        with training_in(settings.worker, self._train) as train, ThreadPoolExecutor(1, "qafel-train") as thread:
            start, began = None, -math.inf
            while self._more():
                if start is None:
                    await self._rest(began)
                    if not self._more():
                        break
                    start = self.begin()
                began = time.monotonic()
                try:
                    made = await loop.run_in_executor(thread, self.finish, start, train)
                except Exception as error:
                    await self._fail(start, error)
                    start = None
                    continue
                self._failures = 0
                if self._is_too_old(start):
                    start = None
                    continue
                self.report.updates += 1
                self._emit("update", sequence=start.sequence, version=start.client.hidden_state.version)
                # The next start copies x̂ now, before the step that this upload may trigger.
                rests = settings.min_interval_s or time.monotonic() < self._pause_until
                follows = self._memory is None and self.follower.ready and not self.follower.by_start
                starts_now = follows and self._more() and self._has_room() and not rests
                following = self.begin() if starts_now else None
                await self.send(start, made)
                start = following
        await self._settle()
        if self._refused:
            raise ConfigError(self._refused)

    async def _fail(self, start: CopiedState, error: Exception) -> None:
        """Report a failure of training and pause before the next attempt. Raise after too many in a row."""
        self._failures += 1
        self.outbox.counts["failed"] += 1
        text, most, first_s = str(error), self._settings.max_failures, self._settings.failure_pause_s
        self.outbox.add_failure(self._failures, text)
        self._emit("failed", sequence=start.sequence, times=self._failures, text=text)
        log.warning("Training failed %d times in a row: %s", self._failures, text)
        if self._failures >= most:
            await self.until(lambda: self.outbox.failure_sent or self._ending(), self._settings.settle_s)
            raise TrainingFailed(f"training failed {most} times in a row; last failure: {text}") from error
        self._pause_until = time.monotonic() + min(_FAILURE_PAUSE_MOST_S, first_s * 2 ** (self._failures - 1))

    def _is_too_old(self, start: CopiedState) -> bool:
        """Whether the staleness law would reject an update because of its old start. Such an update is not sent."""
        most, version = self._agreement.abandon_after, start.client.hidden_state.version
        if most is None or self.follower.newest - version < most:
            return False
        self.outbox.counts["abandoned"] += 1
        self._emit("abandoned", sequence=start.sequence, version=version)
        return True

    def _more(self) -> bool:
        most = self._settings.max_updates
        return not (self._ending() or (most is not None and self.report.updates >= most))

    def _ending(self) -> bool:
        return self._stopping or self.follower.ended or bool(self._refused)

    async def until(self, condition: Callable[[], bool], most_s: float | None = None) -> bool:
        """Wait until a message makes the condition true. Return False if it stays false for `most_s`."""
        try:
            async with asyncio.timeout(most_s):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return condition()
        return True

    async def _rest(self, began: float) -> None:
        """Wait until a new update may begin: pauses are over, the window has room, and x̂ is ready. Or until the end."""
        pause_s = max(began + self._settings.min_interval_s, self._pause_until) - time.monotonic()
        if pause_s > 0:
            self._sleeping = self._settings.follow == "start" and pause_s > _SLEEP_S
            self._news.set()
            await self.until(self._ending, pause_s)
            self._sleeping = False
            self._news.set()
        self._full = not self._has_room()
        await self.until(lambda: self._ending() or self._has_room())
        self._full = False
        self.follower.prepare()
        await self.until(lambda: self._ending() or self.follower.ready)

    async def _settle(self) -> None:
        """Wait for the last receipts or, if the run has ended, for its last broadcasts."""
        await self.until(lambda: self._ending() or not len(self.outbox), self._settings.settle_s)
        if self.follower.ended and not self._stopping:
            await self.until(lambda: self._stopping or self.follower.caught_up, self._settings.settle_s)

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(self._settings.save_every_s)
            await asyncio.to_thread(self._save, self._now_held())

    async def _keep_reporting(self) -> None:
        """Emit progress events: at growing intervals, and as soon as a reported wait is over."""
        pause_s, due = self._settings.report_every_s, 0.0
        while True:
            now, waits_for = time.monotonic(), self._waits_for()
            if now >= due or (self._reported_wait and waits_for in _WORKING):
                if now >= due:
                    due = now + pause_s
                    pause_s = max(pause_s, min(_REPORT_MOST_S, 2 * pause_s))
                self._report_progress(waits_for)
            await asyncio.sleep(min(due - now, self._settings.report_every_s))

    def _report_progress(self, waits_for: str) -> None:
        counts, state, version = self.outbox.counts, self.follower.state, self.follower.version
        self._reported_wait = waits_for not in _WORKING
        self._emit(
            "progress",
            version=version,
            behind=max(0, state.version - version) if state else None,
            accepted=counts["accepted"],
            repeated=counts["duplicate"],
            rejected=sum(
                count for outcome, count in counts.items() if outcome not in (*COUNTED, "failed", "abandoned")
            ),
            without_receipt=len(self.outbox),
            waits_for=waits_for,
        )

    def _waits_for(self) -> str:
        """What the client waits for; empty if it works."""
        if self._is_asleep():
            return ""
        if self._lost:
            return f"the broker ({self._lost})"
        state, silent_s = self.follower.state, time.monotonic() - self.follower.heard_at
        if state is not None and state.status == "stopped":
            return "the server, which was stopped"
        if silent_s > SILENT_S:
            return f"the server, which has been silent for {human_seconds(round(silent_s))}"
        return _WORKING[self._full] if self.follower.ready else self.follower.waits_for

    def _now_held(self) -> tuple[str, Kept]:
        """The held x̂, and the run that it belongs to."""
        return self.follower.held_run_id, Kept(self.core.hidden_state, self.follower.held)

    def _save(self, now: tuple[str, Kept]) -> None:
        run_id, kept = now
        with self._saving:
            if kept.held.position is not None:
                self._state.save(run_id, kept)

    def _on_advance(self, version: int, received_bytes: int) -> None:
        self.report.received_bytes += received_bytes
        self.outbox.received_bytes += received_bytes
        self._news.set()
        self._emit("version", version=version)

    def _on_counted(self, sequence: int, checksum: int) -> None:
        if self._memory is not None:
            self._memory.count(sequence, checksum)

    def _on_outcome(self, sequence: int | None, outcome: str, text: str, version: int) -> None:
        if (memory := self._memory) is not None and memory.sent is not None and memory.sent.sequence == sequence:
            # The upload does not count. If one with this number or a later one does, another process sent it.
            if outcome in ("duplicate", MemoryMismatch.reason, ANOTHER_PROCESS):
                self._refused = memory.refusal(self.core.number)
            memory.give_up()
        if outcome == ANOTHER_PROCESS:
            self._warn_of_twin()
            # At equal speed, both would use the same numbers, and the later one would lose every update.
            self._state.skip_to(self.outbox.highest + random.randint(1, _TWIN_NUMBERS))
            if not text:
                return  # this client lost nothing
        counted = outcome in COUNTED
        event = outcome if counted else "rejected"
        self._emit(event, sequence=sequence, version=version, reason=outcome, text=text)
        if not counted:
            log.warning("Update %s was rejected: %s", sequence, text)
        if outcome == "future":
            self.follower.restart()
        elif outcome in ("rate", "share"):
            self._pause_until = time.monotonic() + self._pause_s
            self._pause_s = min(_PAUSE_MOST_S, 2 * self._pause_s)
        elif outcome == "accepted":
            self._pause_s = _PAUSE_S

    def _warn_of_twin(self) -> None:
        """Warn at most once a minute that two processes use one client number, so that each loses updates."""
        if time.monotonic() < self._twin_until:
            return
        self._twin_until = time.monotonic() + 60.0
        text = (
            f"another process uploads as client {self.core.number}, so updates are lost: give each process its own "
            "number and credentials"
        )
        log.warning("%s", text)
        self._emit("warning", text=text)

    def _emit(self, event: str, **fields: Any) -> None:
        if self._on_event is not None:
            self._on_event({"event": event, **fields})


def run_client(
    train: Train | None = None,
    *,
    run: str,
    client: int,
    state: Path,
    access: Access | None = None,
    make_train: MakeTrain | None = None,
    weight: float = 1.0,
    settings: ClientSettings | None = None,
    on_event: Callable[[ClientEvent], None] | None = None,
) -> ClientReport:
    """Take part in a run with a custom training function, until the run ends or `max_updates` are done.

    train       the training function: from hidden state, local training and random stream to the trained model, a flat
                vector or `Trained`. It must not change `start.vector`. `start.version` counts the server steps before.
                Or `task.training(client)` of a `TorchTask`, which must be the run's task.
    run         the run's name on the broker
    client      this client's number
    state       the client's folder, for x̂ and upload numbers
    access      the broker's address and credentials. Default: a broker without keys on this machine.
    make_train  makes the training function and the weight from the run's agreement, if `train` is None
    weight      the weight of this client's updates, with `train`
    settings    how the client works
    on_event    called with each event

    def train(start, local, stream):
        return start.vector - local.lr * gradient(start.vector)

    run_client(train, run="demo", client=3, state=Path("client-3"))
    """
    if isinstance(train, ClientTraining):
        make_train = partial(train_with, train)
    elif train is not None:
        given = (train, weight)
        make_train = lambda *_: given  # noqa: E731
    elif make_train is None:
        raise DataError("expected a training function: give `train` or `make_train`")

    async def take_part(make_train: MakeTrain) -> ClientReport:
        with ClientState(state) as kept:
            taking_part = await open_client(
                make_train, Names(run), client, kept, access or Access(), settings or ClientSettings(), on_event
            )
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, taking_part.stop)
            return await taking_part.run()

    return asyncio.run(take_part(make_train))


async def open_client(
    make_train: MakeTrain,
    names: Names,
    number: int,
    state: ClientState,
    access: Access,
    settings: ClientSettings,
    on_event: Callable[[ClientEvent], None] | None = None,
) -> DeploymentClient:
    """Wait for the run, load the client's folder and make its training function."""
    verifier = access.verifier()
    loop = asyncio.get_running_loop()
    deadline = None if settings.patience_s is None else loop.time() + settings.patience_s
    reported: set[str] = set()

    def waiting(text: str) -> None:
        if on_event is not None and text not in reported:
            reported.add(text)
            on_event({"event": "waiting", "text": text})

    while True:
        try:
            async with session(access, str(number), patience_s=settings.patience_s, on_wait=waiting) as broker:
                agreement = await read_agreement(broker, names, verifier)
                if agreement is not None:
                    break
                raise BrokerRefused("its server has not started")
        except BrokerError as error:
            if deadline is not None and loop.time() > deadline:
                raise BrokerUnreachable(f"cannot take part in run {names.run!r}: {error}") from None
            waiting(f"run {names.run!r}: {error}")
            await asyncio.sleep(0.3)
    for role, path in agreement.config.algorithm.custom_parts_at_client().items():
        settings.require_named(role, path)
    algorithm, dimension = agreement.algorithm(), agreement.layout.size
    nothing = Kept(HiddenState.of(np.zeros(dimension, np.float32), -1), Held())
    kept = state.load(agreement.run_id, dimension, algorithm) or nothing
    train, weight = await asyncio.to_thread(make_train, agreement, number, settings)
    core = Client(number, kept.hidden_state, algorithm, agreement.config.seed, weight=weight)
    if algorithm.catch_up.link is not None:
        core.initial = await asyncio.to_thread(initial_model, train, agreement)
    return DeploymentClient(core, kept, train, state, agreement, names, access, settings, on_event)
