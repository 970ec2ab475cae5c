"""The server: takes uploads, makes them safe, broadcasts, acknowledges; in this order, many at a time.

    pull a group → check and receive each (Algorithm 1)
        → sync the journal once → broadcast
            → acknowledge → send receipts

The three stages work side by side: while one group is being synced the next is received. A session that breaks loses
nothing: what was received is in the journal, and the next session begins, as a restarted process does, by giving the
broker what it lacks.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from qafel.algorithm import PRESETS
from qafel.config import Config
from qafel.deployment.access import Access
from qafel.deployment.agreement import Agreement, RunState
from qafel.deployment.broker import Broker, session
from qafel.deployment.defence import DefenceSettings, Guard
from qafel.deployment.intake import Group, Intake
from qafel.deployment.layout import Limits, Names
from qafel.deployment.observe import Evaluator, Metrics, Rate, open_rows
from qafel.deployment.pull import Pull
from qafel.deployment.receipts import Receipt
from qafel.deployment.refill import Publisher, refill
from qafel.deployment.results import Summary, model_file, write_results
from qafel.deployment.together import end, together
from qafel.deployment.truth import Truth
from qafel.errors import BrokerError, ConfigError
from qafel.results.run_directory import write_atomically
from qafel.rng import Stream
from qafel.tasks import Task

Progress: TypeAlias = Callable[[RunState], None]

_HISTORY_BYTES: Final = 256 << 20  # of broadcasts, on the broker
_KEPT_BYTES: Final = 4 << 20  # the same, in memory: what a wiped broker gets beside a snapshot
log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server works, beside what its recipe says."""

    run: str | None = None
    """The run's name on the broker; the recipe's by default."""
    snapshot_every: int = 100
    checkpoint_every: int = 5000
    """Uploads."""
    group: int = 64
    """The most uploads received at one go: the event loop answers in between."""
    heartbeat_s: float = 2.0
    keep_journal: bool = False
    """Keep all records, not only those since the last checkpoints."""
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    limits: Limits = field(default_factory=Limits)
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    patience_s: float | None = None


def run_server(
    config: Config,
    out: Path,
    *,
    access: Access | None = None,
    settings: ServerSettings | None = None,
    task: Task | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Serve a run until its last step, its target, or a signal; go on with it if its folder holds it already."""
    return asyncio.run(_serve(config, out, access or Access(), settings or ServerSettings(), task, progress))


async def _serve(
    config: Config, out: Path, access: Access, settings: ServerSettings, task: Task | None, progress: Progress | None
) -> Summary:
    made: Task = await asyncio.to_thread(config.task.make) if task is None else task
    server = open_server(config, out, access, settings, made, progress)
    with server.truth, server.rows:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.end, "stopped")
        await server.run()
        summary = write_results(out, server.state, config, made, server.truth, server.evaluator)
        return {**summary, "wire_sent_bytes": server.wire[0], "wire_received_bytes": server.wire[1]}


def open_server(
    config: Config,
    out: Path,
    access: Access,
    settings: ServerSettings,
    task: Task,
    progress: Progress | None = None,
) -> DeploymentServer:
    """The server with its state from disk, not yet connected."""
    if PRESETS[config.algorithm.preset].synchronous:
        raise ConfigError(f"{config.algorithm.preset} goes in rounds, a deployment does not: take fedbuff or qafel")
    algorithm = config.algorithm.wire(task.layout)
    folder = out / "state"
    _require_same_run(out, config)
    broadcast_bytes = algorithm.server_quantizer.max_payload_bytes(task.layout.size)
    history = max(2, min(settings.limits.history, _HISTORY_BYTES // max(1, broadcast_bytes)))
    truth = Truth.open(
        folder,
        lambda: task.initial_model(Stream.named(config.seed, "initial-model")),
        algorithm,
        config.seed,
        history=max(2, min(history, _KEPT_BYTES // max(1, broadcast_bytes))),
    )
    write_atomically(out / "config.toml", config.to_toml().encode())
    return DeploymentServer(config, task, truth, access, settings, history, open_rows(out), progress)


@final
class DeploymentServer:
    """Drives the truth from the broker. `run` returns when the run has ended or was stopped."""

    def __init__(
        self,
        config: Config,
        task: Task,
        truth: Truth,
        access: Access,
        settings: ServerSettings,
        history: int,
        rows: Any,
        progress: Progress | None,
    ) -> None:
        run = settings.run or config.name
        self.names = Names(run)
        self.truth = truth
        self.rows = rows
        self.state = "running"
        self.wire = (0, 0)
        """Bytes sent and received, with all that NATS and TLS add."""
        self.metrics = Metrics(run)
        self._config = config
        self._task = task
        self._access = access
        self._settings = settings
        # A snapshot and the broadcasts since must overlap.
        self._snapshot_every = min(settings.snapshot_every, max(1, history // 2))
        self._limits = Limits(
            history, settings.limits.queue_bytes, settings.limits.queue_per_client, settings.limits.replicas
        )
        self._progress = progress
        self._publisher = Publisher(self.names, access.signer())
        self._agreement = Agreement(truth.run_id, config, task.layout).to_bytes()
        norms = {int(client): norm for client, norm in truth.totals.norms.items()}
        algorithm, keys = truth.server.algorithm, access.registry()
        guard = Guard(algorithm, settings.defence, task.clients, keys, norms, time.monotonic())
        self.intake = Intake(truth, guard, self.metrics)
        self.evaluator = Evaluator(task, config.evaluation, rows)
        self._rate = Rate()
        self._session_id = ""
        self._out = truth.server.hidden_state
        """x̂ as the clients know it: the last one that went out."""
        self._pull: Pull | None = None
        self._work: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._checkpointing = asyncio.Lock()
        self._snapshotting = asyncio.Lock()

    def end(self, state: str) -> None:
        """Take no more uploads; finish what was taken."""
        if self.state == "running":
            self.state = state
        if self._pull is not None:
            self._pull.stop()
        elif self._work is not None:
            self._work.cancel()  # no session to conclude

    async def run(self) -> None:
        if self._settings.metrics_port is not None:
            self.metrics.serve(self._settings.metrics_address, self._settings.metrics_port)
        evaluations = asyncio.create_task(self.evaluator.run())
        self._work = asyncio.create_task(self._sessions())
        try:
            await asyncio.wait([self._work])
            if not self._work.cancelled():
                self._work.result()
        finally:
            await end([self._work, evaluations])
        server = self.truth.server
        await self.evaluator.last_model(server.version, server.model, self.truth.totals)

    async def _sessions(self) -> None:
        patience_s = self._settings.patience_s
        while True:
            try:
                async with session(self._access, "server", patience_s=patience_s) as broker:
                    self.metrics.sessions.inc()
                    await self._session(broker)
                    return
            except BrokerError as error:
                log.warning("%s; trying again", error)
                self._pull, patience_s = None, None
                await asyncio.sleep(0.2)

    async def _session(self, broker: Broker) -> None:
        await asyncio.to_thread(self.truth.journal.sync)
        await broker.ensure(self.names, self._limits.for_parts(self.intake.parts(broker.part_bytes)))
        await refill(broker, self._publisher, self.truth, self._agreement)
        self._out = self.truth.server.hidden_state
        await broker.new_consumer(self.names, self.intake.parts(broker.part_bytes))
        self._pull = Pull(broker, self.names)
        await self._pull.start()
        self._session_id = uuid.uuid4().hex[:12]
        await self._renew_state(broker)  # clients that see the new session send again what may be lost
        taken: asyncio.Queue[Group | None] = asyncio.Queue(4)
        safe: asyncio.Queue[list[Group] | None] = asyncio.Queue(4)
        if self._finished():
            self.end("finished")
        try:
            await together(
                broker.until_lost(),
                self._take(self._pull, taken),
                self._make_safe(broker, taken, safe),
                self._acknowledge(broker, safe),
                self._heartbeat(broker),
            )
        finally:
            await end(self._background)
            sent, received = broker.wire_bytes()
            self.wire = (self.wire[0] + sent, self.wire[1] + received)
        await self._conclude(broker)

    def _finished(self) -> bool:
        stop, totals = self._config.stop, self.truth.totals
        return (
            self.truth.server.version >= (stop.server_steps or math.inf)
            or totals.uploads >= (stop.uploads or math.inf)
            or totals.upload_bytes + totals.broadcast_bytes >= (stop.traffic_bytes or math.inf)
        )

    async def _take(self, pull: Pull, taken: asyncio.Queue[Group | None]) -> None:
        """Groups of uploads into the truth, until the run ends."""
        while self.state == "running":
            group = Group()
            for message in await pull.group(self._settings.group):
                before = self.truth.server.version
                self.intake.take(message, group, time.monotonic())
                self._offer(before)
                if self.intake.diverged:
                    log.error("%s", self.intake.diverged)
                    self.end("diverged")
                elif self._finished():
                    self.end("finished")
                if self.state != "running":
                    break
            group.checkpoint = self.truth.begin_checkpoint(
                self._settings.checkpoint_every, self.intake.guard.median.norms()
            )
            await taken.put(group)
        await taken.put(None)
        await asyncio.Event().wait()  # `_make_safe` ends the session

    def _offer(self, before: int) -> None:
        """Have the model measured, where an evaluation is due."""
        server, totals, evaluation = self.truth.server, self.truth.totals, self._config.evaluation
        by_uploads = evaluation.unit == "uploads"
        changed = by_uploads or server.version > before
        if changed and (totals.uploads if by_uploads else server.version) % evaluation.every == 0:
            self.evaluator.offer(server.version, server.model, totals)
        if self._config.stop.at_target and self.evaluator.reached is not None:
            self.end("finished")

    async def _make_safe(
        self, broker: Broker, taken: asyncio.Queue[Group | None], safe: asyncio.Queue[list[Group] | None]
    ) -> None:
        """Sync once for all groups that wait; only then let anyone know."""
        while True:
            groups = [await taken.get()]
            while not taken.empty():
                groups.append(taken.get_nowait())
            began = time.perf_counter()
            await asyncio.to_thread(self.truth.journal.sync)
            self.metrics.sync_s.observe(time.perf_counter() - began)
            whole = [group for group in groups if group is not None]
            accepted = sum(group.accepted for group in whole)
            self.metrics.group.observe(accepted)
            self.metrics.accepted.inc(accepted)
            self.metrics.upload_bytes.inc(sum(group.accepted_bytes for group in whole))
            await self._send_out(broker, whole)
            await safe.put(whole)
            if groups[-1] is None:
                await safe.put(None)
                await asyncio.Event().wait()  # `_acknowledge` ends the session

    async def _acknowledge(self, broker: Broker, safe: asyncio.Queue[list[Group] | None]) -> None:
        """Let the broker forget what is safe, then tell the clients: so they cannot outrun the broker."""
        while (groups := await safe.get()) is not None:
            await broker.acknowledge([message for group in groups for message in group.acknowledge])
            receipts: dict[int, Receipt] = {}
            for group in groups:
                for client, receipt in group.receipts.items():
                    receipts.setdefault(client, Receipt()).extend(receipt)
            for client, receipt in receipts.items():
                await broker.send(self.names.receipt(client), receipt.to_bytes())

    async def _send_out(self, broker: Broker, groups: list[Group]) -> None:
        steps = [step for group in groups for step in group.broadcasts]
        await self._publisher.broadcasts(broker, steps)
        for group in groups:
            self._out = group.hidden_state or self._out
            if group.checkpoint is not None:
                self._start(self._checkpoint(group.checkpoint))
        self.metrics.broadcast_bytes.inc(sum(len(frame) for _, frame in steps))
        self.metrics.version.set(self._out.version)
        self.metrics.buffer.set(self.truth.server.buffer.count)
        if any((version + 1) % self._snapshot_every == 0 for version, _ in steps):
            self._start(self._snapshot(broker))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _checkpoint(self, write: Callable[[], None]) -> None:
        async with self._checkpointing:
            await asyncio.to_thread(write)
            if not self._settings.keep_journal:
                await asyncio.to_thread(self.truth.drop_old_journal)

    async def _snapshot(self, broker: Broker) -> None:
        if self._snapshotting.locked():
            return
        async with self._snapshotting:
            try:
                await self._publisher.snapshot(broker, self._out)
                await self._drop_large_broadcasts(broker)
            except BrokerError as error:
                log.warning("no snapshot of version %d: %s", self._out.version, error)

    async def _drop_large_broadcasts(self, broker: Broker) -> None:
        """Objects do not leave with the messages that point to them."""
        oldest = self._out.version - self._limits.history
        frames = [frame for _, frame in self.truth.broadcasts]
        if frames and len(frames[-1]) > broker.part_bytes:
            for version in range(max(0, oldest - self._snapshot_every), max(0, oldest)):
                await broker.delete_object(self.names.broadcast_object(version))

    async def _heartbeat(self, broker: Broker) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_s)
            self.intake.guard.renew_keys(await asyncio.to_thread(self._access.registry))
            await self._renew_state(broker)

    async def _renew_state(self, broker: Broker) -> None:
        state = self._run_state()
        await self._publisher.value(broker, self.names.state, state.to_bytes())
        if self._progress is not None:
            self._progress(state)

    def _run_state(self) -> RunState:
        totals, server, last = self.truth.totals, self.truth.server, self.evaluator.last
        return RunState(
            state=self.state,
            version=self._out.version,
            digest=self._out.digest,
            server_steps=self._config.stop.server_steps or 0,
            uploads=totals.uploads,
            updates_per_s=round(self._rate.mark(totals.uploads), 1),
            upload_bytes=totals.upload_bytes,
            broadcast_bytes=totals.broadcast_bytes,
            rejected=dict(server.rejected),
            clients={str(client): lag for client, lag in list(self.intake.lags.items())[-100:]},
            buffer=f"{server.buffer.count}/{server.algorithm.buffer_size}",
            metric=last["metric"] if last else None,
            metric_name=self._task.metric_name,
            renewed_at=time.time(),
            session=self._session_id,
        )

    async def _conclude(self, broker: Broker) -> None:
        """The last state, and with a run that has ended its model."""
        checkpoint = self.truth.begin_checkpoint(1, self.intake.guard.median.norms())
        if checkpoint is not None:
            await self._checkpoint(checkpoint)
        await self._publisher.snapshot(broker, self._out)
        if self.state != "stopped":
            await self._publisher.put(broker, self.names.model, model_file(self.truth.server.model, self._task.layout))
            await broker.purge(self.names.upload_stream)
        await self._renew_state(broker)
        await broker.flush()


def _require_same_run(out: Path, config: Config) -> None:
    path = out / "config.toml"
    if (out / "state").exists() and path.exists() and path.read_text(encoding="utf-8") != config.to_toml():
        raise ConfigError(f"{out} holds a run of another configuration: choose another --out")
