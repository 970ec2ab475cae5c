"""The client: copies x̂, trains, uploads; and follows the broadcasts meanwhile.

Local training is of a task of this package, or the user's own; in a thread, or in a process of its own. It waits for
the network only when a whole window of uploads is on its way, and a broken connection does not
disturb it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

from qafel.algorithm import Client, Held, HiddenState, LocalTraining, Made, Trained
from qafel.algorithm.client import Train
from qafel.config import Config
from qafel.config.tasks import OwnTask
from qafel.deployment.client import ClientReport, ClientSettings
from qafel.deployment.client.follower import Follower
from qafel.deployment.client.memory import Memory, Sent
from qafel.deployment.client.outbox import ANOTHER_PROCESS, COUNTED, ClientState, Kept, Outbox
from qafel.deployment.connection import Broker, Stored, run_until_one_ends, session
from qafel.deployment.keys import Access, Verifier, signed_name
from qafel.deployment.messages import SILENT_S, Agreement
from qafel.deployment.names import KEY_VALUE_STREAM, SIGNATURE, Names
from qafel.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigError,
    DataError,
    MemoryMismatch,
    QafelError,
    TrainingFailed,
)
from qafel.params import Vector
from qafel.parts import blaming
from qafel.rng import Stream
from qafel.tasks import Task
from qafel.tasks.protocol import sample_weights
from qafel.text import human_seconds
from qafel.workers import pack, portable, unpack

_TELL_MOST_S: Final = 60.0
_PAUSE_S: Final = 1.0
_PAUSE_MOST_S: Final = 16.0
_FAILURE_PAUSE_MOST_S: Final = 60.0
_WORKING: Final = ("", "receipts")  # what a client waits for whose connection and server work
log = logging.getLogger(__name__)

ClientEvent: TypeAlias = dict[str, Any]
"""Something that happened at a client: an update made, a version held, a receipt; now and then how it goes."""
MakeTrain: TypeAlias = Callable[[Agreement, int, ClientSettings], tuple[Train, float]]
"""From the run's agreement, the client's number and its settings to its training function and its weight."""


class CopiedState(NamedTuple):
    """What an update begins with: the hidden state that was copied, and the update's number."""

    client: Client
    sequence: int
    run_id: str
    """Of which run the hidden state is."""
    follows: int | None
    """The number of the update that its memory follows, if it has one."""


@final
@dataclass
class DeploymentClient:
    """One client of one run."""

    core: Client
    _kept: Kept
    """What it holds at the beginning."""
    _train: Train
    _state: ClientState
    _agreement: Agreement
    names: Names
    _access: Access
    _settings: ClientSettings
    _on_event: Callable[[ClientEvent], None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever something came that training may wait for."""
    _saving: threading.Lock = field(default_factory=threading.Lock)
    """The last save waits for one that a thread is still at."""
    _wire: Counter[str] = field(default_factory=Counter)
    _stopping: bool = False
    _pause_until: float = 0.0
    _pause_s: float = _PAUSE_S
    """How long to rest if the server has had too much of us; longer each time, until it takes an update again."""
    _lost: str = ""
    """Why there is no connection, while there is none."""
    _full: bool = False
    """Whether training waits for receipts."""
    _told_of_wait: bool = False
    """Whether the last event that tells how it goes said that the client waits."""
    _twin_until: float = 0.0
    """Until when not to say again that another process uses our number."""
    _memory: Memory | None = None
    """Of a client rule that has one: then one upload is on its way, and the next update begins after its receipt."""
    _failures: int = 0
    """Of training, in a row."""
    _refused: str = ""
    """Why the server cannot count further updates of us."""

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
        if self._memory is not None and (sent := self._memory.sent) is not None:  # it may count already
            self.outbox.add(sent.sequence, sent.frame, self._memory.follows)
        again, anew = self.outbox.send_again, self._begin_anew
        self.follower = Follower(
            self.names, run_id, self.core, *self._kept[1:], access.verifier(), self._on_advance, self._news, again, anew
        )

    def stop(self) -> None:
        """End after the update that is under way."""
        self._stopping = True
        self._news.set()

    async def run(self) -> ClientReport:
        """Train and follow until the run ends, `max_updates` are done, or `stop`."""
        self._emit("version", version=self.core.hidden_state.version)
        try:
            await run_until_one_ends(self.stay_connected(), self._work(), self._keep_saving(), self._keep_telling())
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
        """Session after session: listen, catch up, deliver. A broker that is gone before the first of them is waited
        for as long as at the start: the run may have ended, and its broker with it, while the task was being made.
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
                        broker.until_lost(), self.follower.follow(broker), self.outbox.deliver(broker)
                    )
            except BrokerError as error:
                log.info("%s; trying again", error)
                self._lose(str(error))
                await asyncio.sleep(0.2)

    def _lose(self, why: str) -> None:
        """Know, and say once, that there is no connection."""
        if not self._lost:
            self._told_of_wait = True
            self._emit("waiting", text=why)
        self._lost = why

    async def _on_receipt(self, stored: Stored) -> None:
        """A server that has lost the run to another one may have counted an update that the other one knows not of."""
        if self.follower.genuine(self.names.receipt(self.core.number), stored):
            await self.outbox.on_receipt(stored)

    def _begin_anew(self, agreement: Agreement) -> None:
        """The server has begun another run under our run's name. If it is alike, we take part in it."""
        ours, run = self._agreement, self.names.run
        if (agreement.config, agreement.layout) != (ours.config, ours.layout):
            raise ConfigError(f"run {run!r} was begun anew with other settings: start this client again")
        log.warning("the server has begun run %r anew: starting again with it", run)
        self._agreement = agreement
        self.outbox.run_id = agreement.run_id
        self.outbox.clear()
        if self._memory is not None:
            new = self.core.algorithm.client_rule.new_memory(agreement.layout.size)
            self._memory = Memory(self._state.folder, agreement.run_id, new)
        self.follower.follow_another(agreement.run_id)
        self._news.set()

    def begin(self) -> CopiedState:
        """Copy the hidden state: y₀ = x̂. Algorithm 2, line 1."""
        memory, core = self._memory, self.core
        if memory is not None:
            core.memory, core.sequence = memory.now, memory.next
            memory.next += 1
        else:
            self._state.skip_to(self.outbox.highest + 1)
            core.sequence = self._state.take_sequence()
        return CopiedState(core.begin(), core.sequence - 1, self.follower.held_run_id, memory and memory.follows)

    def _has_room(self) -> bool:
        """Whether the outbox has room for the upload that `begin` would number next."""
        return self.outbox.has_room(max(self._state.next, self.outbox.highest + 1))

    def finish(self, start: CopiedState, train: Train) -> Made:
        """Train and encode. Algorithm 2, lines 2 to 6; may run in a thread while the hidden state moves on."""
        with blaming(f"the training of client {self.core.number}"):
            return start.client.update(train)

    async def send(self, start: CopiedState, made: Made) -> None:
        """Hand an update to the outbox; before that, make it and the memory after it last. One that cannot count any
        more is dropped: of a run that is over, or whose memory does not follow what has counted since it began.
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
        with ThreadPoolExecutor(1, "qafel-train") as thread, training_in(settings.worker, self._train) as train:
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
                # It starts again at once, from the x̂ of this moment: before the step that its upload may trigger.
                rests = settings.min_interval_s or time.monotonic() < self._pause_until
                follows = self._memory is None and self.follower.ready and not self.follower.copy
                at_once = follows and self._more() and self._has_room() and not rests
                following = self.begin() if at_once else None
                await self.send(start, made)
                start = following
        await self._settle()
        if self._refused:
            raise ConfigError(self._refused)

    async def _fail(self, start: CopiedState, error: Exception) -> None:
        """Tell the server that training failed, and rest before the next attempt; give up after many in a row."""
        self._failures += 1
        self.outbox.counts["failed"] += 1
        text, most, first_s = str(error), self._settings.max_failures, self._settings.failure_pause_s
        self.outbox.add_failure(self._failures, text)
        self._emit("failed", sequence=start.sequence, times=self._failures, text=text)
        log.warning("training failed, %d times in a row: %s", self._failures, text)
        if self._failures >= most:
            await self.until(lambda: self.outbox.told or self._ending(), self._settings.settle_s)
            raise TrainingFailed(f"training failed {most} times in a row, the last time: {text}") from error
        self._pause_until = time.monotonic() + min(_FAILURE_PAUSE_MOST_S, first_s * 2 ** (self._failures - 1))

    def _is_too_old(self, start: CopiedState) -> bool:
        """Whether the staleness law gives an update up, because its start is too old: it is not sent."""
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
        """Wait for something that a message brings about; False if it did not come in time."""
        try:
            async with asyncio.timeout(most_s):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return condition()
        return True

    async def _rest(self, began: float) -> None:
        """Until the interval is over, the server wants more, there is room and x̂ to start from; or the end."""
        pause_s = max(began + self._settings.min_interval_s, self._pause_until) - time.monotonic()
        if pause_s > 0:
            await self.until(self._ending, pause_s)
        self._full = not self._has_room()
        await self.until(lambda: self._ending() or self._has_room())
        self._full = False
        self.follower.prepare()
        await self.until(lambda: self._ending() or self.follower.ready)

    async def _settle(self) -> None:
        """Wait for the last receipts; a run that has ended gives none, but its last broadcasts may be on their way."""
        await self.until(lambda: self._ending() or not len(self.outbox), self._settings.settle_s)
        if self.follower.ended and not self._stopping:
            await self.until(lambda: self._stopping or self.follower.caught_up, self._settings.settle_s)

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(self._settings.save_every_s)
            await asyncio.to_thread(self._save, self._now_held())

    async def _keep_telling(self) -> None:
        """Emit progress now and then, and as soon as a wait that was told of is over."""
        pause_s, due = self._settings.tell_every_s, 0.0
        while True:
            now, waits_for = time.monotonic(), self._waits_for()
            if now >= due or (self._told_of_wait and waits_for in _WORKING):
                if now >= due:
                    due = now + pause_s
                    pause_s = max(pause_s, min(_TELL_MOST_S, 2 * pause_s))
                self._tell(waits_for)
            await asyncio.sleep(min(due - now, self._settings.tell_every_s))

    def _tell(self, waits_for: str) -> None:
        counts, state, version = self.outbox.counts, self.follower.state, self.follower.version
        self._told_of_wait = waits_for not in _WORKING
        self._emit(
            "progress",
            version=version,
            behind=max(0, state.version - version) if state else None,
            accepted=counts["accepted"],
            repeated=counts["duplicate"],
            rejected=counts.total() - counts["accepted"] - counts["duplicate"],
            without_receipt=len(self.outbox),
            waits_for=waits_for,
        )

    def _waits_for(self) -> str:
        """What training or the network waits for; empty if for nothing."""
        if self._lost:
            return f"the broker ({self._lost})"
        state, silent_s = self.follower.state, time.monotonic() - self.follower.heard_at
        if state is not None and state.status == "stopped":
            return "the server, which was stopped"
        if silent_s > SILENT_S:
            return f"the server, which has said nothing new for {human_seconds(round(silent_s))}"
        return _WORKING[self._full] if self.follower.ready else "the hidden state"

    def _now_held(self) -> Kept:
        return Kept(self.core.hidden_state, self.follower.held, self.follower.copy)

    def _save(self, kept: Kept) -> None:
        with self._saving:
            if kept.held.position is not None:
                self._state.save(self.follower.held_run_id, kept)

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
            # It does not count. If another one under its number or after it does, that one is not ours.
            if outcome in ("duplicate", MemoryMismatch.reason, ANOTHER_PROCESS):
                self._refused = memory.refusal(self.core.number)
            memory.give_up()
        if outcome == ANOTHER_PROCESS:
            self._warn_of_twin()
            if not text:
                return  # it took nothing from us
        counted = outcome in COUNTED
        event = outcome if counted else "rejected"
        self._emit(event, sequence=sequence, version=version, reason=outcome, text=text)
        if not counted:
            log.warning("update %s was rejected: %s", sequence, text)
        if outcome == "future":
            self.follower.restart()
        elif outcome in ("rate", "share"):
            self._pause_until = time.monotonic() + self._pause_s
            self._pause_s = min(_PAUSE_MOST_S, 2 * self._pause_s)
        elif outcome == "accepted":
            self._pause_s = _PAUSE_S

    def _warn_of_twin(self) -> None:
        """Say, at most once a minute, that two processes are one client: each loses updates to the other."""
        if time.monotonic() < self._twin_until:
            return
        self._twin_until = time.monotonic() + 60.0
        text = (
            f"another process uploads as client {self.core.number}, or did so a moment ago, and updates are lost: give "
            "each process a number and credentials of its own"
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
    """Take part in a run with your own training function, until it ends or `max_updates` are done.

    train       from the hidden state, local training and a random stream to the trained model: a flat vector, or
                `Trained`. `start.vector` is not to be changed; `start.version` is the number of server steps before it
    run         the run's name on the broker
    client      this client's number
    state       the folder in which the client keeps x̂ and the numbers of its uploads
    access      how to reach the broker; one without keys on this machine by default
    make_train  makes the training function and the weight, if no `train` is given, from the run's configuration
    weight      how much this client's updates count, with `train`
    settings    how the client works
    on_event    called with everything that happens

    def train(start, local, stream):
        return start.vector - local.lr * gradient(start.vector)

    run_client(train, run="demo", client=3, state=Path("client-3"))
    """
    if train is not None:
        given = (train, weight)
        make_train = lambda agreement, number, settings: given  # noqa: E731
    elif make_train is None:
        raise DataError("give a training function: train, or make_train")

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
    """A client that knows the run, and holds what is on its disk."""
    verifier = access.verifier()
    loop = asyncio.get_running_loop()
    deadline = None if settings.patience_s is None else loop.time() + settings.patience_s
    told: set[str] = set()

    def waiting(text: str) -> None:
        if on_event is not None and text not in told:
            told.add(text)
            on_event({"event": "waiting", "text": text})

    while True:
        try:
            async with session(access, str(number), patience_s=settings.patience_s, on_wait=waiting) as broker:
                agreement = await _agreement(broker, names, verifier)
                break
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
    return DeploymentClient(core, kept, train, state, agreement, names, access, settings, on_event)


async def _agreement(broker: Broker, names: Names, verifier: Verifier) -> Agreement:
    stored = await broker.stored(KEY_VALUE_STREAM, names.config)
    if stored is None:
        raise BrokerRefused("its server has not started")
    verifier.check(signed_name(names.config), stored.data, stored.headers.get(SIGNATURE))
    return Agreement.from_bytes(stored.data)


def train_task(
    agreement: Agreement, client: int, settings: ClientSettings, expected: str | None = None
) -> tuple[Train, float]:
    """The training function of the run's own task, and how much the client's updates count.

    agreement  what the run's server says: its configuration
    client     the client whose data are trained on
    settings   how the client works; they name a task that is not of this package, or it is refused
    expected   the task that the user named, if any; another is refused
    """
    config = agreement.config
    if expected not in (None, config.task.name):
        raise ConfigError(
            f"the run learns {config.task.name}, not {expected}: leave out `task`, or choose another `run`"
        )
    if isinstance(config.task, OwnTask):
        settings.require_named("task", config.task.name)
    toml = config.to_toml()
    task = _made_task(toml)
    if not 0 <= client < task.clients:
        raise ConfigError(f"the run has clients 0 to {task.clients - 1}, not {client}")
    weight = 1.0 if config.algorithm.client_weights == "equal" else sample_weights(task)[client]
    return partial(_train_task, toml, client), weight


@lru_cache(maxsize=1)
def _made_task(toml: str) -> Task:
    task: Task = Config.from_toml(toml, "the run's configuration").task.make()
    return task


def _train_task(toml: str, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
    """Can be sent to another process, and makes its task again there."""
    return _made_task(toml).train(client, start, local, stream)


@contextmanager
def training_in(worker: str, train: Train) -> Iterator[Train]:
    """A context with the training function as it is, for "thread", or one that has it run in another process."""
    if worker == "thread":
        yield train
        return
    packed = pack(train)

    def new_pool() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_keep, initargs=(packed,))

    pool = new_pool()

    def elsewhere(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
        nonlocal pool
        try:
            return pool.submit(_train, start, local, stream).result()
        except BrokenExecutor:  # the process died: the next attempt gets another one
            pool = new_pool()
            raise

    try:
        yield elsewhere
    finally:
        pool.shutdown(cancel_futures=True)


_kept: list[bytes | Train] = []  # in a worker process: what it trains with, packed until it is first used


def _keep(packed: bytes) -> None:
    _kept[:] = [packed]


def _train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
    train = _kept[0]
    if isinstance(train, bytes):
        train = _kept[0] = unpack(train)
    try:
        return train(start, local, stream)
    except QafelError as error:
        raise portable(error) from error.__cause__
