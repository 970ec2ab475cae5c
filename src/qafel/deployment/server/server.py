"""The server: one session with the broker after another, until the run ends.

A broken session loses nothing. The journal has what was received. The next session, like a restarted process, starts by
refilling the broker.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np
import tomli_w

from qafel.algorithm import HiddenState, Needs, require_provided
from qafel.algorithm.catch_up import Links
from qafel.config import Config
from qafel.deployment.connection import Broker, session
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement
from qafel.deployment.names import SHARED_STREAMS, Names
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.announcements import Lease, Published, Publisher, refill
from qafel.deployment.server.defence import RunningMedian, UploadChecker, resolved
from qafel.deployment.server.evaluation import Evaluator, ServerMetrics
from qafel.deployment.server.intake import Intake
from qafel.deployment.server.ledger import Ledger
from qafel.deployment.server.pipeline import BackgroundWriter, MessageQueue, Pipeline
from qafel.deployment.server.starts import GROUP, LinkFiles, Starts
from qafel.deployment.transport import run_until_one_ends, wait_for_event
from qafel.errors import BrokerError, ConfigError, QafelError
from qafel.runs.directory import RunDirectory, model_file, settings_of, state_of
from qafel.runs.live import NAMED_CLIENTS, NAMED_FAILURES, Listener, LiveState, Rate, Summary, live_state
from qafel.runs.progress import Status
from qafel.runs.trackers import TrackedRun, follow
from qafel.tasks import Task

_HISTORY_BYTES: Final = 256 << 20  # broadcasts on the broker
_KEPT_BYTES: Final = 4 << 20  # broadcasts in memory, to refill a wiped broker
_RETRY_S: Final = 0.2
_FAILURES: Final = 3  # consecutive failures after which a stream counts as damaged
_STEADY_S: Final = 300.0  # a session of this length resets the failure counts
_CONCLUDE_S: Final = 20.0  # time for the last uploads, snapshot and state after `stop`

PROVIDED: Final = Needs(clients=True, client_memory=True, exact_uploads=True, quantized_starts=True, linked_starts=True)
"""What a deployment provides to methods."""

log = logging.getLogger(__name__)
StateListener: TypeAlias = Callable[[LiveState], None]


@final
@dataclass
class DeploymentServer:
    """Serves one run. `run` returns when the run has ended or was stopped."""

    _config: Config
    _task: Task
    ledger: Ledger
    _access: Access
    _settings: ServerSettings
    _directory: RunDirectory
    _listener: StateListener | None
    """Called with every state sent."""
    _row_listeners: Sequence[Listener] = ()
    _session_id: str = ""
    """Changes with every connection. Clients that see a new one send unconfirmed uploads again."""
    _rate: Rate = field(default_factory=Rate)
    """The rate of uploads, starting from what earlier processes counted."""

    def __post_init__(self) -> None:
        ledger, access, task, settings = self.ledger, self._access, self._task, self._settings
        run = settings.run or self._config.name
        self.wire = Counter[str]()
        self.sessions = 0
        self.metrics = ServerMetrics(run, ledger.traffic, self._figures)
        agreed = self._config.model_copy(update={"start": None})  # clients get x̂ from the server
        algorithm, median = ledger.server.algorithm, RunningMedian(ledger.norms, time.monotonic())
        abandon_after = getattr(algorithm.staleness, "abandon_after", None)
        self._agreement = Agreement(ledger.run_id, agreed, task.layout, abandon_after).to_bytes()
        defence = resolved(settings.defence, algorithm, task)
        checker = UploadChecker(
            algorithm, defence, task.clients, access.registry(), median, ledger.run_id, ledger.has_new_key
        )
        checker.shares.restore(ledger.shares, ledger.since, time.monotonic())
        self.intake = Intake(ledger, checker)
        self.starts: Starts | None = None
        """Answers requests for linked starts, if clients may ask for them."""
        self.evaluator = Evaluator(self._config, task, ledger, self._directory, self._row_listeners)
        published, copies = Published.of(ledger.server), algorithm.catch_up.quantizer
        self._publisher = Publisher(Names(run), access.signer(), ledger.run_id, published, copies, self._config.seed)
        if algorithm.catch_up.link is not None:
            files = LinkFiles(self._directory.path / "links", task.layout.size, settings.starts.memory_bytes)
            links = Links(algorithm.catch_up, self._config.seed, self._initial(), files)
            self.starts = Starts(links, self._publisher, checker, settings.starts, self.intake.counts)
        self._lease = Lease(self._publisher, ledger, access.verifier(), settings.take_over)
        self._background = BackgroundWriter(ledger, self._publisher, settings)
        self._connected = False
        self._failures = Counter[str]()
        """Consecutive sessions that each stream ended."""
        self._stopped = asyncio.Event()
        self._rate.mark(time.monotonic(), ledger.traffic.uploads)

    def _initial(self) -> HiddenState:
        """x⁰, which shortens clients' first linked starts; zero if it can no longer be read."""
        try:
            return HiddenState.of(self._config.initial_model(self._task))
        except QafelError as error:
            log.warning("%s. Clients' first starts are longer.", error)
            return HiddenState.of(np.zeros(self._task.layout.size, np.float32))

    def stop(self) -> None:
        """Accept no more uploads and end `run` within seconds. The state is kept, whatever the broker does."""
        self.evaluator.end("stopped")
        self._stopped.set()

    async def run(self) -> None:
        async with self.metrics.serving(self._settings.metrics_port, self._settings.metrics_address):
            # A failing evaluator ends the run: without a metric no target can be reached.
            await run_until_one_ends(self._sessions(), self.evaluator.run(), self._give_up())
            await self.evaluator.measure_last()

    async def _give_up(self) -> None:
        """Return some time after `stop`, even if the broker does not answer."""
        await self._stopped.wait()
        if self._connected:
            await asyncio.sleep(_CONCLUDE_S)
            log.warning("The broker did not accept the run's last state within %g s. Exiting without it.", _CONCLUDE_S)

    async def _sessions(self) -> None:
        """Run sessions until one concludes the run. After `stop`, start no further session."""
        patience_s = self._settings.patience_s
        while not self._stopped.is_set():
            try:
                async with session(self._access, "server", patience_s=patience_s, wire=self.wire) as broker:
                    self._connected = True
                    self.sessions += 1
                    await self._watched(broker)
                    return
            except BrokerError as error:
                self._connected, patience_s = False, None
                log.warning("%s. %s.", error, "Exiting" if self._stopped.is_set() else "Trying again")
            await wait_for_event(self._stopped, _RETRY_S)

    async def _watched(self, broker: Broker) -> None:
        """Run a session, and count the failures of each stream.

        A stream that ends several sessions in a row is recreated, because its files may be damaged. Nothing is lost:
        the journal has its messages, or clients send them again.
        """
        for stream, count in list(self._failures.items()):
            if count >= _FAILURES:
                log.warning(
                    "The broker's stream %s failed %d times in a row. Recreating it. If that does not help, stop the "
                    "broker, move its store away and start it. No counted update is lost.",
                    stream,
                    count,
                )
                await (broker.make_again if stream in SHARED_STREAMS else broker.delete)(stream)
                del self._failures[stream]
        began = time.monotonic()
        try:
            await self._session(broker)
        except BrokerError as error:
            if time.monotonic() - began > _STEADY_S:
                self._failures.clear()
            if error.stream is not None and await broker.answers_for(error.stream):
                self._failures[error.stream] += 1
            raise

    async def _session(self, broker: Broker) -> None:
        await self._begin(broker)
        names, consumer = self._publisher.names, self._publisher.names.consumer(self._lease.epoch)
        queue = MessageQueue(broker, names.upload_stream, consumer)
        await queue.start()
        works = []
        if self.starts is not None:
            requests = MessageQueue(broker, names.start_stream, consumer, GROUP)
            await requests.start()
            works = [self.starts.take(requests), self.starts.answer(broker)]
        self._session_id = uuid.uuid4().hex[:12]
        await self._beat(broker, "running")
        self.evaluator.end_at_limit()
        pipeline = Pipeline(
            self.intake, self.evaluator, self._publisher, self._background, self._settings, self.metrics
        )
        try:
            await run_until_one_ends(
                broker.until_lost(),
                pipeline.take(queue),
                self._stop_taking(queue),
                pipeline.make_safe(broker),
                pipeline.acknowledge(broker),
                self._keep_beating(broker),
                *works,
            )
        finally:
            await self._background.end()
        await self._conclude(broker)

    async def _stop_taking(self, queue: MessageQueue) -> None:
        """Stop the queue when `stop` is called. The session continues until all received uploads are safe."""
        await self._stopped.wait()
        queue.stop()
        await asyncio.Event().wait()

    async def _begin(self, broker: Broker) -> None:
        """Take the lease, refill the broker and create a consumer."""
        names = self._publisher.names
        await asyncio.to_thread(self.ledger.journal.sync)
        await broker.ensure_buckets(self._settings.limits.replicas)
        await self._lease.claim(broker, self._run_state("running"))
        self._publisher.epoch = self._lease.epoch
        clients = max(self._task.clients, self.intake.checker.registered)
        limits = self._settings.limits.fitted(clients, self.intake.max_upload_bytes, broker.part_bytes)
        await broker.ensure(names, limits)
        await refill(broker, self._publisher, self.ledger, self._agreement)
        waiting_parts = self.intake.begin_session(broker.part_bytes)
        consumer = names.consumer(self._lease.epoch)
        await broker.new_consumer(names.upload_stream, consumer, waiting_parts)
        if self.starts is not None:
            await broker.new_consumer(names.start_stream, consumer, confirms=False)

    async def _conclude(self, broker: Broker) -> None:
        """Write the last checkpoint, snapshot and state, and the model of a finished run."""
        await self._beat(broker, "running")
        checkpoint = self.ledger.begin_checkpoint(1, partial(self.intake.checker.judged, time.monotonic()))
        if checkpoint is not None:
            await self._background.checkpoint(checkpoint)
        await self._publisher.snapshot(broker)
        if self.evaluator.status != "stopped":
            await self.evaluator.measure_last()  # a metric that is not finite means that the run diverged
            names, model = self._publisher.names, self.ledger.server.model
            await self._publisher.put(broker, names.model, model_file(model, self._task.layout))
            await broker.delete(names.upload_stream)  # frees the space reserved for it
            await broker.delete(names.start_stream)
        await self._beat(broker, self.evaluator.status)
        await broker.flush()

    async def _keep_beating(self, broker: Broker) -> None:
        """Renew the run's state and reload the client registry every few seconds, forever."""
        while True:
            await asyncio.sleep(self._settings.heartbeat_s)
            await self.intake.checker.renew_keys(self._access)
            await self._beat(broker, "running")

    async def _beat(self, broker: Broker, word: Status) -> None:
        """Renew the run's state on the broker.

        The final state follows the last broadcast, because clients leave when they receive it.
        """
        state = await self._lease.renew(broker, self._run_state(word))
        self._directory.on_live(state)
        if self._listener is not None:
            self._listener(state)

    def _figures(self) -> dict[str, Any]:
        return {**asdict(self._run_state("running")), **self.intake.counts, "sessions": self.sessions}

    def _run_state(self, word: Status) -> LiveState:
        evaluator, progress = self.evaluator, self.evaluator.progress
        published, snapshot = self._publisher.published, self._publisher.on_broker
        traffic, now = self.ledger.traffic, time.monotonic()
        contacts, failing = self.intake.contacts, self.intake.failing
        silent = {
            str(client): round(now - contact.at, 1) for client, contact in contacts.items() if contact.silent(now)
        }
        training = [(client, contact.staleness) for client, contact in contacts.items() if str(client) not in silent]
        return live_state(
            word,
            self._task,
            self.ledger.server,
            traffic,
            progress,
            evaluator.limits,
            0.0,  # a deployed run has no time limit
            virtual_time=progress.wall_s,
            version=published.hidden_state.version,
            virtual_time_unit="s",
            updates_per_s=round(self._rate.mark(now, traffic.uploads), 1),
            training={str(client): staleness for client, staleness in training[-NAMED_CLIENTS:]},
            training_count=len(training),
            silent=dict(islice(silent.items(), NAMED_CLIENTS)),
            silent_count=len(silent),
            failing={str(client): why for client, why in list(failing.items())[-NAMED_FAILURES:]},
            failing_count=len(failing),
            hidden_state_lag=evaluator.hidden_state_lag,
            problem=self._background.problem,
            failed_checkpoints=self._background.failed_checkpoints,
            server_steps=evaluator.limits.server_steps or 0,
            run_id=self.ledger.run_id,
            digest=published.hidden_state.digest,
            position=published.position,
            last_bytes=published.last_bytes,
            snapshot_position=snapshot.position,
            snapshot_bytes=snapshot.snapshot_bytes,
            quantized_bytes=snapshot.quantized_bytes,
            session=self._session_id,
        )


def run_server(
    config: Config,
    out: Path,
    *,
    access: Access | None = None,
    settings: ServerSettings | None = None,
    task: Task | None = None,
    progress: StateListener | None = None,
) -> Summary:
    """Serve a run until its last step, its target, or a signal. Resume it if `out` already holds it.

    config    the run's configuration
    out       the run's folder, for state and results
    access    the broker's address and credentials. Default: a broker without keys on this machine.
    settings  how the server works
    task      the configuration's task, if already made
    progress  called with the run's state every few seconds
    """

    async def serve() -> Summary:
        made: Task = await asyncio.to_thread(config.task.make) if task is None else task
        agreed = config.with_task(made)
        chosen = (access or Access(), settings or ServerSettings(), made, progress)
        with RunDirectory(out) as directory, open_server(agreed, directory, *chosen) as server:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, server.stop)
            summary: Summary | None = None
            try:
                await server.run()
                summary = server.evaluator.summary()
                directory.write_model(server.ledger.server.model, made.layout)
                directory.on_end(summary)
            finally:
                for listener in server.evaluator.listeners:
                    await asyncio.to_thread(listener.on_end, summary)
            return {**summary, "wire_sent_bytes": server.wire["sent"], "wire_received_bytes": server.wire["received"]}

    return asyncio.run(serve())


@contextmanager
def open_server(
    config: Config,
    directory: RunDirectory,
    access: Access,
    settings: ServerSettings,
    task: Task,
    progress: StateListener | None = None,
) -> Iterator[DeploymentServer]:
    """A context with a server that has loaded its state and is not connected. `directory` must be entered."""
    out = directory.path
    algorithm = config.algorithm.compose(task.layout)
    correction = getattr(task, "takes_correction", False)
    require_provided(algorithm, PROVIDED._replace(correction=correction), "a deployment")
    if (out / "config.toml").exists() and state_of(out, config) == "other":
        raise ConfigError(f"{out} holds a run with another configuration: choose another `out`")
    broadcast_bytes = max(1, algorithm.server_quantizer.max_payload_bytes(task.layout.size))
    history = max(2, min(settings.limits.history, _HISTORY_BYTES // broadcast_bytes))
    with Ledger.open(
        out / "state",
        partial(config.initial_model, task),
        algorithm,
        config.seed,
        size=task.layout.size,
        history=max(2, min(history, _KEPT_BYTES // broadcast_bytes)),
        clients=task.clients if algorithm.needs.clients else None,
    ) as ledger:
        if ledger.traffic.uploads and not (out / "config.toml").exists():
            raise ConfigError(
                f"{out / 'config.toml'} is missing, so the recipe of the updates in {out / 'state'} is unknown: "
                "restore it from a copy"
            )
        table = settings_of(config)
        directory.begin(tomli_w.dumps(table), keep_metrics_bytes=None)
        listeners = follow(TrackedRun(out, table, task.metric_name, ledger.traffic.uploads > 0, settings.track))
        linked = algorithm.catch_up.link is not None
        settings = replace(settings, limits=replace(settings.limits, history=history, starts=linked))
        yield DeploymentServer(config, task, ledger, access, settings, directory, progress, listeners)
