"""The event loop: the server takes updates in the exact order of virtual time, while workers train ahead of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Generic, NamedTuple, TypeVar, final

from qafel.algorithm import Algorithm, HiddenState, Kind, Message, Server
from qafel.algorithm.client import remembered
from qafel.algorithm.hidden_state import model_for_start
from qafel.algorithm.messages import HEADER_BYTES
from qafel.errors import ConfigError, MessageError, RejectedUpload
from qafel.params import Vector
from qafel.parts import blaming
from qafel.runs.progress import Traffic
from qafel.runs.records import Amount, Count
from qafel.simulator.executors.jobs import Executor, Inline, Job, Trainer
from qafel.simulator.timing import Timing
from qafel.simulator.timing.arrivals import AlwaysTraining, Arrival, Rounds
from qafel.simulator.timing.durations import partial_work, uniform_draws
from qafel.tasks.protocol import Task, initial_model, sample_weights

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
        """All that is to happen, as (time, priority, serial, event), in no particular order."""
        return self._heap.copy()

    def events(self) -> Iterator[Scheduled]:
        """The same without times, and without a copy: look before the clock moves on."""
        return (event for *_, event in self._heap)

    def restore(self, now: float, serial: int, entries: list[tuple[float, int, int, Scheduled]]) -> None:
        """Take up a clock that stood still."""
        self.now, self.serial, self._heap = now, serial, entries
        heapify(self._heap)


class Arrive(NamedTuple):
    """A client comes from outside (open loop)."""

    client: Count
    duration: Amount | None


class Deliver(NamedTuple):
    """An upload reaches the server; None: a resumed run does not have its bytes, and trains again."""

    job: Job
    upload: bytes | None


class Gone(NamedTuple):
    """A client would have finished, but never reports."""

    client: Count


class Timeout(NamedTuple):
    """A round's time is up."""

    round_number: Count


Event = Job | Arrive | Deliver | Gone | Timeout
"""A job on the clock is due when its client has finished training; then its upload sets out."""
_AFTER_ALL_ELSE = 1
HOLDS = -1
NEVER = -(2**62)  # so long ago that more bytes came since than any snapshot has
_MANY_ROUNDS = 1000
"""Without a single update by then, none will come."""
_MANY_UNREAD = 1000
"""So many uploads in a row that the server cannot read: it never will."""


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
        """A new run; x⁰ is `start`, or the task's own of this seed."""
        self.task = task
        self.algorithm = algorithm
        self.timing = timing
        self.seed = seed
        self.executor: Executor = executor or Inline(Trainer(task, algorithm, seed))
        self.server = Server(
            initial_model(task, seed) if start is None else start,
            algorithm,
            seed,
            log_capacity=0,
            clients=task.clients,
        )
        self.clients_hidden_state = HiddenState.of(self.server.model.copy())
        """The clients' hidden state, moved by the broadcasts' bytes alone: one vector, as all hold the same."""
        self.clock: Clock[Event] = Clock()
        self.traffic = Traffic(received_bytes=0, received_by_all_bytes=0)
        self.sequences = [0] * task.clients
        """How often each client started."""
        self.starts = self.arrivals = self.rounds = self.in_flight = self.turned_away = self.out_of_time = 0
        self.memories: dict[int, Vector] = {}
        """What each client's uploads are relative to (MCM); zero for those that are not in it."""
        self.held = array("q", [NEVER]) * task.clients
        """How many bytes had been broadcast when each client last started: it misses what came since."""
        self.overpaid = array("q", [0]) * task.clients
        """With a snapshot quantizer: `HOLDS` of a client that holds x̂; of others, how many bytes less broadcasts would
        have been than the inexact snapshots that it fetched."""
        self.whole_bytes = self.clients_hidden_state.snapshot_bytes
        """What a client downloads that holds nothing: a snapshot, or a broadcast that is a whole model."""
        self._inexact: tuple[HiddenState, int] | None = None
        self._weights = sample_weights(task) if algorithm.client_weights == "samples" else None
        self._dropouts = uniform_draws(seed, "dropout")
        self._arrivals: Iterator[Arrival] = iter(())
        self._always_training = isinstance(timing.arrivals, AlwaysTraining)
        self._ahead: list[tuple[float, int, Job]] = []
        self._unread = 0

    def begin(self) -> None:
        """Let the first clients start."""
        match self.timing.arrivals:
            case AlwaysTraining():
                for client in range(self.task.clients):
                    self._start(client)
            case Rounds():
                self._start_round()
            case _:
                self.follow_arrivals()
                self._schedule_arrival()

    def follow_arrivals(self) -> None:
        """Continue the arrivals of the open loop behind those that have happened."""
        if not isinstance(self.timing.arrivals, AlwaysTraining | Rounds):
            self._arrivals = islice(self.timing.arrivals, self.arrivals, None)

    def advance(self) -> bool:
        """Handle the next event; True if the server stepped."""
        if self._ahead:
            self._train_ahead()
        match self.clock.advance():
            case Job() as job:
                return self._finish_training(job)
            case Deliver(job, upload):
                return self._deliver(job, self.executor.result(job) if upload is None else upload)
            case Arrive(client, duration):
                self._start(client, duration)
                self._schedule_arrival()
            case Gone(client):
                self._finish(client)
            case Timeout(round_number):
                return round_number == self.rounds and self._end_round()
        return False

    @property
    def idle(self) -> bool:
        """Whether nothing more will happen: a trace has ended."""
        return not self.clock

    def train_ahead_of(self, time: float, job: Job) -> None:
        """Note a job that workers may begin before its result is wanted, the earliest first."""
        heappush(self._ahead, (time, job.number, job))

    def _train_ahead(self) -> None:
        while self._ahead and self.executor.room > 0:
            self.executor.submit(heappop(self._ahead)[2])

    def _finish_training(self, job: Job) -> bool:
        if self._ahead and self._ahead[0][1] == job.number:
            heappop(self._ahead)
        upload = self.executor.result(job)
        if self.timing.network is None:
            return self._deliver(job, upload)
        self.clock.schedule(self.timing.network.upload_time(job.client, len(upload)), Deliver(job, upload))
        return False

    def _schedule_arrival(self) -> None:
        with blaming("the arrival law"):
            arrival = next(self._arrivals, None)
        if arrival is not None:
            try:
                time, client, *rest = arrival
                sound = self._is_sound(time, client, *rest)
            except (TypeError, ValueError):
                sound = False
            if not sound:
                raise ConfigError(
                    f"arrival {self.arrivals} is {arrival!r}: a law gives (time, client) or (time, client, duration), "
                    f"its times ascend from 0 (now {self.clock.now:g}), and clients are 0 to {self.task.clients - 1}"
                )
            self.arrivals += 1
            self.clock.schedule(time - self.clock.now, Arrive(client, rest[0] if rest else None))

    def _is_sound(self, time: float, client: int, duration: float = 0.0) -> bool:
        """Whether an arrival is one, but for the rounding of times."""
        now = self.clock.now
        return now - 1e-9 * (1 + now) <= time < inf and 0 <= client < self.task.clients and _is_time(duration)

    def _start(self, client: int, duration: float | None = None, deadline: float | None = None) -> None:
        """A client copies the hidden state and begins to train."""
        timing = self.timing
        if timing.max_concurrency is not None and self.in_flight >= timing.max_concurrency:
            self.turned_away += 1
            return
        number, sequence = self.starts, self.sequences[client]
        self.starts += 1
        self.in_flight += 1
        self.sequences[client] = sequence + 1
        if duration is None:
            duration = self._duration(client, number)
        download, steps = 0.0, None
        download_bytes, start = self._fetch(client, sequence)
        self.traffic.count_download(download_bytes)
        if timing.network is not None:
            download = timing.network.download_time(client, download_bytes)
        if deadline is not None and self.algorithm.partial_work:
            time = deadline - download - self._longest_upload(client)
            whole = max(1, self.algorithm.local.steps_for(self.task.samples(client)))
            steps, duration = partial_work(whole, duration, time)
            if not steps:
                self.out_of_time += 1
                self.clock.schedule(deadline, Gone(client))
                return
        if timing.dropout and self._dropouts[number] < timing.dropout:
            self.clock.schedule(download + duration, Gone(client))
            return
        weight = self._weights[client] if self._weights else 1.0
        job = Job(number, client, sequence, start, weight, steps, self.memories.get(client))
        delay = download + duration
        self.clock.schedule(delay, job)
        if self.executor.looks_ahead:
            self.train_ahead_of(self.clock.now + delay, job)

    def _fetch(self, client: int, sequence: int) -> tuple[int, HiddenState]:
        """Bring a client to the newest hidden state; return the bytes that it downloads, and what it starts from.

        It downloads what `Server.catch_up` sends.

        The broadcasts since its last start (of whole models the newest), or a snapshot where that is shorter or it
        never took part. docs/decisions/simulator-starts-pay-what-they-download.md
        With `direct_draw = "start"`, a model of its own.
        """
        current = self.clients_hidden_state
        if self.algorithm.direct_draw == "start":
            return len(model_for_start(current, self.algorithm, self.seed, client, sequence)), current
        missed = self.traffic.broadcast_bytes - self.held[client]
        self.held[client] += missed
        if self.algorithm.snapshot_quantizer is not None:
            return self._fetch_inexactly(client, missed)
        return min(missed, self.whole_bytes), current

    def _fetch_inexactly(self, client: int, missed: int) -> tuple[int, HiddenState]:
        """What a client fetches and starts from where there is a snapshot quantizer, and it missed so many bytes.

        An inexact snapshot where the broadcasts are longer, or the client holds no x̂ to add them to. Once such
        snapshots have cost it as much more than broadcasts would have as x̂ costs more than one of them, it fetches x̂
        and follows: so a client that starts often pays at most about twice what it would have paid with x̂ at once.
        """
        current, overpaid = self.clients_hidden_state, self.overpaid[client]
        if overpaid == HOLDS and not missed:
            return 0, current
        inexact, size = self._inexact_snapshot()
        if not missed:
            return 0, inexact
        if overpaid == HOLDS and missed <= size:
            return missed, current
        overpaid = max(0, overpaid) + max(0, size - missed)
        if overpaid >= current.snapshot_bytes - size:
            self.overpaid[client] = HOLDS
            return current.snapshot_bytes, current
        self.overpaid[client] = overpaid
        return size, inexact

    def _inexact_snapshot(self) -> tuple[HiddenState, int]:
        """What the server's snapshot of the newest version decodes to, and its length."""
        if self._inexact is None or self._inexact[0].version != self.server.version:
            data = self.server.snapshot()
            size = self.server.model.size
            self._inexact = HiddenState.from_snapshot(Message.from_bytes(data), size, self.algorithm), len(data)
        return self._inexact

    def _duration(self, client: int, number: int) -> float:
        timing = self.timing
        with blaming(timing.durations, "draw"):
            duration = timing.durations.draw(number)
        if not _is_time(duration):
            raise ConfigError(f"draw({number}) of the duration law is {duration!r}: expected a time of zero or more")
        if timing.speeds is not None:
            duration *= timing.speeds[client]
        if timing.per_example:
            duration += timing.per_example * self.task.samples(client)
        return duration

    def _longest_upload(self, client: int) -> float:
        if self.timing.network is None:
            return 0.0
        payload = self.algorithm.client_quantizer.max_payload_bytes(self.server.model.size)
        return self.timing.network.upload_time(client, HEADER_BYTES + payload)

    def _finish(self, client: int) -> None:
        """A client is free again. In the closed loop it starts at once, before the step its update may trigger."""
        self.in_flight -= 1
        if self._always_training:
            self._start(client)

    def _deliver(self, job: Job, upload: bytes) -> bool:
        self._finish(job.client)
        try:
            accepted = self.server.receive(message := Message.from_bytes(upload))
        except (MessageError, RejectedUpload) as error:
            self.traffic.count_rejected(upload)
            self._unread = self._unread + 1 if isinstance(error, MessageError) else 0
            if self._unread == _MANY_UNREAD:
                raise ConfigError(f"{_MANY_UNREAD} uploads in a row were rejected, the last one: {error}") from error
            return False
        self._unread = 0
        self.traffic.count_upload(upload, accepted.staleness)
        if self.algorithm.uplink_memory_rate:
            self.memories[job.client] = remembered(self.memories.get(job.client), message, self.algorithm)
        return accepted.broadcast is not None and self._spread(accepted.broadcast)

    def _spread(self, broadcast: bytes) -> bool:
        """Every client receives the broadcast. Algorithm 3."""
        self.traffic.count_broadcast(broadcast, self.task.clients)
        self.clients_hidden_state = self.clients_hidden_state.advanced(Message.from_bytes(broadcast), self.algorithm)
        if self.algorithm.direct_draw == "start":  # every start draws its own from the model itself
            self.clients_hidden_state = HiddenState.of(self.server.model.copy(), self.server.version)
        self.whole_bytes = self.clients_hidden_state.snapshot_bytes
        if self.algorithm.broadcast_kind is Kind.MODEL:
            self.whole_bytes = min(self.whole_bytes, len(broadcast))
        if isinstance(self.timing.arrivals, Rounds):
            self._start_round()
        return True

    def _start_round(self) -> None:
        rounds = self.timing.arrivals
        assert isinstance(rounds, Rounds)
        self.rounds += 1
        for client in rounds.cohort(self.seed, self.rounds, self.task.clients, self.algorithm.buffer_size):
            self._start(client, deadline=rounds.timeout)
        if rounds.timeout is not None:
            self.clock.schedule(rounds.timeout, Timeout(self.rounds), priority=_AFTER_ALL_ELSE)

    def _end_round(self) -> bool:
        broadcast = self.server.flush()
        if broadcast is not None:
            return self._spread(broadcast)
        if self.rounds >= _MANY_ROUNDS and not self.server.version:
            raise ConfigError(f"{self.rounds} rounds ended without an update: set a longer timing.round_timeout")
        self._start_round()
        return False


def _is_time(value: object) -> bool:
    try:
        return bool(0 <= value < inf)  # type: ignore[operator]
    except (TypeError, ValueError):
        return False


def require_progress(simulation: Simulation) -> None:
    """Raise if a synchronous run waits for clients that will never report."""
    if simulation.idle and isinstance(simulation.timing.arrivals, Rounds):
        raise ConfigError(
            f"round {simulation.rounds} waits for {simulation.algorithm.buffer_size} updates, and only "
            f"{simulation.server.buffer.count} can come: set timing.round_timeout or more timing.over_selection"
        )
