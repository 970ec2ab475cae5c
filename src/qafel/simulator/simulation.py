"""The event loop: the server receives updates in the order of virtual time, while workers train ahead of it."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Generic, NamedTuple, TypeVar, final

from qafel.algorithm import Algorithm, Client, HiddenState, Made, Means, Message, Needs, Next, Server, require_provided
from qafel.algorithm.catch_up import Links, own_start
from qafel.algorithm.messages import HEADER_BYTES
from qafel.config import Timing
from qafel.errors import ConfigError, MessageError, QafelError, RejectedUpload, StaleUpload, Stalled
from qafel.params import Vector
from qafel.parts import errors_of, raise_part_failed
from qafel.runs.progress import Amount, Count, Traffic
from qafel.simulator.executors.jobs import Executor, Inline, Job, Trainer
from qafel.simulator.fleet import Fleet
from qafel.simulator.timing import make_timing
from qafel.simulator.timing.arrivals import AlwaysTraining, Arrival, Rounds
from qafel.simulator.timing.durations import steps_within, uniform_draws
from qafel.tasks.protocol import Task, initial_model, sample_weights
from qafel.text import path_of

Scheduled = TypeVar("Scheduled")


@final
class Clock(Generic[Scheduled]):
    """Events in the order of their time; at equal times by priority, then as they were scheduled.

    A heap of (time, priority, serial, event): the serial makes ties deterministic.
    """

    __slots__ = ("_heap", "now", "serial")

    def __init__(self) -> None:
        self.now = 0.0
        self.serial = 0
        self._heap: list[tuple[float, int, int, Scheduled]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, delay: float, event: Scheduled, priority: int = 0) -> None:
        """Let the event happen `delay` from now."""
        heappush(self._heap, (self.now + delay, priority, self.serial, event))
        self.serial += 1

    def advance(self) -> Scheduled:
        """Move to the next event and return it; an empty clock raises IndexError."""
        self.now, _, _, event = heappop(self._heap)
        return event

    def entries(self) -> list[tuple[float, int, int, Scheduled]]:
        """All events, as (time, priority, serial, event), in no particular order."""
        return self._heap.copy()

    def events(self) -> Iterator[Scheduled]:
        """All events, without a copy: use them before the clock moves."""
        return (event for *_, event in self._heap)

    def restore(self, now: float, serial: int, entries: list[tuple[float, int, int, Scheduled]]) -> None:
        """Continue from a saved clock."""
        self.now, self.serial, self._heap = now, serial, entries
        heapify(self._heap)


class Arrive(NamedTuple):
    """A client arrives (open loop)."""

    client: Count
    duration: Amount | None


class Deliver(NamedTuple):
    """An upload reaches the server. None: a resumed run does not have its bytes, and trains again."""

    job: Job
    made: Made | None


class Dropout(NamedTuple):
    """A client would have finished, but does not report."""

    client: Count


class Timeout(NamedTuple):
    """A round reaches its timeout."""

    round_number: Count


Event = Job | Arrive | Deliver | Dropout | Timeout
"""A job is due when its client has finished training. Then its upload travels."""


def job_of(event: Event) -> Job | None:
    """The job of an event; None if it has none."""
    return event if isinstance(event, Job) else event.job if isinstance(event, Deliver) else None


LARGE_BYTES = 1 << 24
"""A client trains when it starts, to free its start, if that exceeds four uploads by so many bytes."""
_AFTER_ALL_ELSE = 1
PROVIDED = Needs(*(True for _ in Needs._fields))
"""The simulator runs every method. Rounds, continuing and corrections depend on timing and task."""
_MANY_ROUNDS = 1000
"""A run without an update after this many rounds has stalled."""
_MANY_REJECTED = 1000
"""A run has stalled after this many rejected uploads in a row, plus two per client."""


@final
class Simulation:
    """One run in virtual time. `begin` it, then `advance` it an event at a time."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        timing: Timing,
        seed: int,
        executor: Executor | None = None,
        start: Vector | None = None,
    ) -> None:
        """A new run. x⁰ is `start`, or the task makes it from the seed."""
        self.task = task
        self.algorithm = algorithm
        self.timing = make_timing(timing, seed, task.clients)
        self.seed = seed
        self.executor: Executor = executor or Inline(Trainer(task, algorithm, seed))
        rounds = isinstance(self.timing.arrivals, Rounds)
        correction = bool(getattr(task, "takes_correction", False))
        always = isinstance(self.timing.arrivals, AlwaysTraining)
        provided = PROVIDED._replace(rounds=rounds, continues=always, correction=correction)
        law = timing.arrivals if isinstance(timing.arrivals, str) else path_of(timing.arrivals)
        require_provided(algorithm, provided, f'{task.name} with timing.arrivals = "{law}"')
        self.server = Server(
            initial_model(task, seed) if start is None else start,
            algorithm,
            seed,
            clients=task.clients,
        )
        size = self.server.model.size
        self.background = Client(0, self.server.hidden_state, algorithm, seed)
        """Holds the hidden state of all clients. Only the bytes of broadcasts move it."""
        self.fleet = Fleet(task.clients, algorithm.client_rule, size)
        self.clock: Clock[Event] = Clock()
        self.traffic = Traffic(received_by_all_bytes=0)
        self.starts = self.arrivals = self.rounds = self.in_flight = self.turned_away = self.out_of_time = 0
        self.first_of_round = 0
        """The number of the first job of the current round."""
        self.stopped = 0
        """Jobs that ended early because the staleness law abandons them."""
        self._abandon_after: int | None = getattr(algorithm.staleness, "abandon_after", None)
        self._running: dict[int, dict[int, Job]] = {}
        """With such a law: the jobs in flight, by the version of their start and by number."""
        self.busy: set[int] = set()
        """Clients in flight, if a client may have only one upload in flight."""
        self._offer = self.server.offer()
        self.links = Links(algorithm.catch_up, seed, self.server.hidden_state) if algorithm.catch_up.link else None
        """The points that clients last started from, for linked starts."""
        self._quantized: HiddenState | None = None
        self._exact_model: HiddenState | None = None
        self._weights = sample_weights(task) if algorithm.client_weights == "samples" else None
        self._dropouts = uniform_draws(seed, "dropout")
        self._arrivals: Iterator[Arrival] = iter(())
        self._always_training = always
        self._memory = algorithm.needs.client_memory
        self._rejects_earlier_rounds = rounds and algorithm.max_staleness == 0
        self._one_at_a_time = self._memory and not self._rejects_earlier_rounds
        waits = self._memory or algorithm.needs.continues or self._abandon_after is not None
        self._after_receipt = waits and always
        saved = 4 * size - 4 * algorithm.client_quantizer.max_payload_bytes(size)
        self._trains_early = saved >= LARGE_BYTES and not waits and not self.executor.looks_ahead
        self.uploads: dict[int, bytes] = {}
        """Uploads of jobs that have trained early, by number."""
        self._ahead: list[tuple[float, int, Job]] = []
        self._rejected = 0
        """Rejected uploads in a row."""

    def begin(self) -> None:
        """Start the first clients."""
        match self.timing.arrivals:
            case AlwaysTraining():
                for client in range(self.task.clients):
                    self._start(client)
            case Rounds():
                self._start_round()
            case _:
                self.follow_arrivals()
                self._schedule_arrival()

    def resume(self) -> None:
        """Continue from a restored state: workers start the jobs in flight, and arrivals continue."""
        self._offer = self.server.offer()
        for time, _, _, event in sorted(self.clock.entries()):
            job = event.job if isinstance(event, Deliver) else event
            if self._one_at_a_time and isinstance(job, Job | Dropout):
                self.busy.add(job.client)
            if isinstance(job, Job) and self._abandon_after is not None:
                self._running.setdefault(job.version, {})[job.number] = job
            if isinstance(event, Job) and event.start is not None:
                self.train_ahead_of(time, event)
        self.follow_arrivals()

    def follow_arrivals(self) -> None:
        """Continue the arrivals of the open loop after those that have happened."""
        if not isinstance(self.timing.arrivals, AlwaysTraining | Rounds):
            self._arrivals = islice(self.timing.arrivals, self.arrivals, None)

    def advance(self) -> bool:
        """Handle the next event; True if the server stepped."""
        if self._ahead:
            self._train_ahead()
        before, event = self.clock.now, self.clock.advance()
        if isinstance(event, Job) and self._ahead and self._ahead[0][1] == event.number:
            heappop(self._ahead)
        if (stopped := job_of(event)) is not None and self.is_stopped(stopped):
            self.clock.now = before  # a resumed run does not have this event
            return False
        match event:
            case Job() as job:
                return self._finish_training(job)
            case Deliver(job, made):
                return self._deliver(job, self._result(job) if made is None else made)
            case Arrive(client, duration):
                self._start(client, duration)
                self._schedule_arrival()
            case Dropout(client):
                self._finish(client)
            case Timeout(round_number):
                return round_number == self.rounds and self._end_round()
        return False

    @property
    def idle(self) -> bool:
        """Whether no event is left: a trace has ended."""
        return not self.clock

    def require_progress(self) -> None:
        """Raise `Stalled` if a synchronous run waits for clients that will never report."""
        if self.idle and isinstance(self.timing.arrivals, Rounds):
            raise Stalled(
                f"round {self.rounds} waits for {self.algorithm.buffer_size} updates, and only "
                f"{self.server.accumulator.count} can arrive: set timing.round_timeout or a larger "
                "timing.over_selection"
            )

    def train_ahead_of(self, time: float, job: Job) -> None:
        """Queue a job that workers may start before its result is needed, the earliest first."""
        heappush(self._ahead, (time, job.number, job))

    def _train_ahead(self) -> None:
        while self._ahead and self.executor.room > 0:
            job = heappop(self._ahead)[2]
            if not self.is_stopped(job):
                self.executor.submit(job)

    def _finish_training(self, job: Job) -> bool:
        made = self._result(job)
        if self.timing.network is None:
            return self._deliver(job, made)
        self.clock.schedule(self.timing.network.upload_time(job.client, len(made.upload)), Deliver(job, made))
        return False

    def _train_early(self, job: Job) -> Job:
        """Train now, and free the start. An error is raised when the job is due."""
        try:
            self.uploads[job.number] = self.executor.result(job).upload
        except QafelError:
            return job
        return job.detached()

    def _result(self, job: Job) -> Made:
        upload = self.uploads.pop(job.number, None)
        return self.executor.result(job) if upload is None else Made(upload, job.memory)

    def _schedule_arrival(self) -> None:
        with errors_of("the arrival law"):
            arrival = next(self._arrivals, None)
        if arrival is not None:
            try:
                time, client, *rest = arrival
                sound = self._is_sound(time, client, *rest)
            except (TypeError, ValueError):
                sound = False
            if not sound:
                raise ConfigError(
                    f"arrival {self.arrivals} is {arrival!r}: a law gives (time, client) or (time, client, duration). "
                    f"Times ascend from 0 (now {self.clock.now:g}), and clients are 0 to {self.task.clients - 1}"
                )
            self.arrivals += 1
            self.clock.schedule(time - self.clock.now, Arrive(client, rest[0] if rest else None))

    def _is_sound(self, time: float, client: int, duration: float = 0.0) -> bool:
        """Whether an arrival is valid. Its time may precede now by rounding."""
        now = self.clock.now
        return now - 1e-9 * (1 + now) <= time < inf and 0 <= client < self.task.clients and _is_time(duration)

    def _start(
        self,
        client: int,
        duration: float | None = None,
        deadline: float | None = None,
        same: HiddenState | None = None,
    ) -> None:
        """A client copies the hidden state, or keeps the `same` one, and starts to train."""
        timing = self.timing
        full = timing.max_concurrency is not None and self.in_flight >= timing.max_concurrency
        if full or client in self.busy:
            self.turned_away += 1
            return
        number, sequence = self.starts, self.fleet.sequences[client]
        self.starts += 1
        self.in_flight += 1
        self.fleet.sequences[client] = sequence + 1
        if self._one_at_a_time:
            self.busy.add(client)
        if duration is None:
            duration = self._duration(client, number)
        download, steps = 0.0, None
        download_bytes, start = (0, same) if same is not None else self._fetch(client, sequence)
        self.traffic.count_download(download_bytes)
        if timing.network is not None:
            download = timing.network.download_time(client, download_bytes)
        if deadline is not None and self.algorithm.local.partial:
            time = deadline - download - self._longest_upload(client)
            whole = max(1, self.algorithm.local.steps_for(self.task.samples(client)))
            steps, duration = steps_within(whole, duration, time)
            if not steps:
                self.out_of_time += 1
                self.clock.schedule(deadline, Dropout(client))
                return
        if timing.dropout is not None and self._dropouts[number] < timing.dropout(client):
            self.clock.schedule(download + duration, Dropout(client))
            return
        weight = self._weights[client] if self._weights else 1.0
        memory = self.fleet.memory(client) if self._memory else {}
        job = Job(number, client, sequence, start.version, weight, steps, memory, start)
        if self._trains_early:
            job = self._train_early(job)
        delay = download + duration
        self.clock.schedule(delay, job)
        if self._abandon_after is not None:
            self._running.setdefault(job.version, {})[number] = job
        if self.executor.looks_ahead:
            self.train_ahead_of(self.clock.now + delay, job)

    def is_stopped(self, job: Job) -> bool:
        """Whether a job on the clock was abandoned: its client has started again."""
        return self._abandon_after is not None and job.number not in self._running.get(job.version, {})

    def _abandon_late_jobs(self) -> None:
        """Stop jobs whose start is too old. Their clients start again."""
        if self._abandon_after is None:
            return
        late = self._running.pop(self.server.version - self._abandon_after, {})
        for _, job in sorted(late.items()):  # in the order of their starts, also in a resumed run
            self.stopped += 1
            self.executor.discard(job)
            self._finish(job.client)

    def _fetch(self, client: int, sequence: int) -> tuple[int, HiddenState]:
        """The bytes that a client downloads before it starts, and the hidden state that it starts from."""
        before = self.fleet.held[client]
        means, download_bytes, self.fleet.held[client] = self.algorithm.catch_up.plan(before, self._offer)
        if means is Means.LINK:
            return self._linked_start(client, sequence, before.linked, bool(download_bytes))
        if means is Means.QUANTIZED:
            return download_bytes, self._quantized_state()
        if means is Means.OWN:
            exact = self._model_state()
            return len(own_start(exact, self.algorithm, self.seed, client, sequence)), exact
        return download_bytes, self.background.hidden_state

    def _linked_start(self, client: int, sequence: int, linked: bool, moves: bool) -> tuple[int, HiddenState]:
        """The bytes of a linked start, and the point that the client starts from: its last one unless it `moves`.

        A client that is not `linked` no longer holds its last point, because it has taken x̂ or a copy since.
        """
        assert self.links is not None
        link = self.links.memory.get(client) if linked else None
        if link is not None and not moves:
            return 0, HiddenState(link.base, link.base, self.server.version, link.digest, exact=False)
        message, start = self.links.reply(
            client, sequence, 0 if link is None else link.digest, self.background.hidden_state
        )
        self.links.confirm(client, start)
        return len(message), start

    def _quantized_state(self) -> HiddenState:
        """The decoded quantized copy of the newest version."""
        if self._quantized is None or self._quantized.version != self.server.version:
            message = Message.from_bytes(self.server.quantized())
            self._quantized = HiddenState.from_snapshot(message, self.server.model.size, self.algorithm)
        return self._quantized

    def _model_state(self) -> HiddenState:
        """The server's model. Each start draws its message from it."""
        if self._exact_model is None or self._exact_model.version != self.server.version:
            self._exact_model = HiddenState.of(self.server.model.copy(), self.server.version, exact=False)
        return self._exact_model

    def _duration(self, client: int, number: int) -> float:
        timing = self.timing
        try:
            duration = timing.durations.draw(client, number)
        except Exception as error:
            raise_part_failed(error, timing.durations, "draw")
        if not _is_time(duration):
            found = f"draw({client}, {number}) of the duration law is {duration!r}"
            raise ConfigError(f"{found}: expected a time of zero or more")
        if timing.duration_factors is not None:
            duration *= timing.duration_factors[client]
        if timing.per_example:
            duration += timing.per_example * self.task.samples(client)
        return duration

    def _longest_upload(self, client: int) -> float:
        if self.timing.network is None:
            return 0.0
        payload = self.algorithm.client_quantizer.max_payload_bytes(self.server.model.size)
        return self.timing.network.upload_time(client, HEADER_BYTES + payload)

    def _finish(self, client: int, same: HiddenState | None = None) -> None:
        """A client is free. In the closed loop it starts immediately, from the `same` hidden state if it is given."""
        self.in_flight -= 1
        self.busy.discard(client)
        if self._always_training:
            self._start(client, same=same)

    def _deliver(self, job: Job, made: Made) -> bool:
        """An upload arrives. Its client starts again before the step that it may trigger, as in the paper's runs.

        If the method needs the server's answer, or stops late jobs (Ringmaster), the client starts after it.
        """
        if self._abandon_after is not None:
            del self._running[job.version][job.number]
        if not self._after_receipt:
            self._finish(job.client)
            return self._receive(job, made)[0]
        stepped, following = self._receive(job, made)
        self._finish(job.client, job.start if following is Next.SAME else None)
        return stepped

    def _receive(self, job: Job, made: Made) -> tuple[bool, Next]:
        upload = made.upload
        try:
            if self._rejects_earlier_rounds and job.number < self.first_of_round:
                # A round that ended empty made no version, so the server cannot see that the upload is late.
                self.server.rejected[StaleUpload.reason] += 1
                raise StaleUpload(f"client {job.client} trained for an earlier round than {self.rounds}")
            accepted = self.server.receive(Message.from_bytes(upload))
        except (MessageError, RejectedUpload) as error:
            self.traffic.count_rejected(upload)
            self._rejected += 1
            if self._rejected >= _MANY_REJECTED + 2 * self.task.clients:
                raise Stalled(f"{self._rejected} uploads in a row were rejected, the last one: {error}") from error
            return False, Next.NEWEST
        self._rejected = 0
        self.traffic.count_upload(upload, accepted.staleness)
        if self._memory:
            self.fleet.remember_(job.client, made.memory)
        if accepted.batch is None:
            return False, accepted.following
        return self._apply_broadcast(self.server.step(accepted.batch)), accepted.following

    def _apply_broadcast(self, broadcast: bytes) -> bool:
        """Every client receives the broadcast. Algorithm 3."""
        self.traffic.count_broadcast(broadcast, self.task.clients)
        self.background.receive(broadcast)
        self.server.hidden_state = self.background.hidden_state  # equal by its digest: one vector instead of two
        self._offer = self.server.offer()
        self._abandon_late_jobs()
        if isinstance(self.timing.arrivals, Rounds):
            self._start_round()
        return True

    def _start_round(self) -> None:
        rounds = self.timing.arrivals
        assert isinstance(rounds, Rounds)
        self.rounds += 1
        self.first_of_round = self.starts
        for client in rounds.cohort(self.seed, self.rounds, self.task.clients, self.algorithm.buffer_size, self.busy):
            self._start(client, deadline=rounds.timeout)
        if rounds.timeout is not None:
            self.clock.schedule(rounds.timeout, Timeout(self.rounds), priority=_AFTER_ALL_ELSE)

    def _end_round(self) -> bool:
        if (batch := self.server.close()) is not None:
            return self._apply_broadcast(self.server.step(batch))
        if self.rounds >= _MANY_ROUNDS and not self.server.version:
            raise Stalled(f"{self.rounds} rounds ended without an update: set a longer timing.round_timeout")
        self._start_round()
        return False


def _is_time(value: object) -> bool:
    try:
        return bool(0 <= value < inf)  # type: ignore[operator]
    except (TypeError, ValueError):
        return False
