"""The event loop: every client is always training; the server takes updates in the order of virtual time.

When an update is taken, its client starts again at once, from the hidden state of that moment, that is before the
step which its own update may trigger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, final

import numpy as np

from qafel.algorithm import Algorithm, HiddenState, Message, Server, make_upload
from qafel.rng import Stream
from qafel.simulator.clock import Clock
from qafel.simulator.durations import Durations
from qafel.simulator.traffic import Traffic
from qafel.tasks.protocol import Task


class Start(NamedTuple):
    """A client in flight: what it copied, and how many updates it made before. Its result follows from this alone."""

    client: int
    sequence: int
    hidden_state: HiddenState


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation."""

    version: int
    uploads: int
    virtual_time: float
    upload_bytes_total: int
    broadcast_bytes_total: int
    received_bytes_total: int
    staleness_mean: float
    staleness_max: int
    hidden_state_lag: float
    buffer_fill: int
    metric: float
    wall_s: float


@final
class Simulation:
    """One run in virtual time. `rows` drives it and yields an evaluation at a time."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        durations: Durations,
        seed: int,
        *,
        evaluate_every: int = 1,
        weigh_by_samples: bool = False,
    ) -> None:
        self.task = task
        self.algorithm = algorithm
        self.durations = durations
        self.seed = seed
        self.evaluate_every = evaluate_every
        self.server = Server(task.initial_model(Stream.named(seed, "initial-model")), algorithm, seed)
        self.fleet = HiddenState.of(self.server.model.copy())
        """The clients' hidden state, moved by the broadcasts' bytes alone: one vector, as all hold the same."""
        self.clock: Clock[Start] = Clock()
        self.traffic = Traffic()
        self.sequences = np.zeros(task.clients, np.uint32)
        self.weights = _weights(task) if weigh_by_samples else np.ones(task.clients)
        self.training_s = 0.0
        self.evaluation_s = 0.0
        self._starts = 0
        self._began = perf_counter()

    def rows(self, server_steps: int) -> Iterator[Row]:
        """Run until that many server steps are done; evaluate at the start, every so many steps, and at the end."""
        for client in range(self.task.clients):
            self._start(client)
        yield self._evaluate()
        while self.server.version < server_steps:
            if self._next() and (self.server.version % self.evaluate_every == 0 or self.server.version == server_steps):
                yield self._evaluate()

    def _start(self, client: int) -> None:
        sequence = int(self.sequences[client])
        self.sequences[client] += 1
        self.clock.schedule(self.durations.draw(self._starts), Start(client, sequence, self.fleet))
        self._starts += 1

    def _next(self) -> bool:
        """Handle the next event; True if the server stepped."""
        start = self.clock.advance()
        upload = self._update(start)
        self._start(start.client)
        broadcast = self.server.receive(upload)
        self.traffic.count_upload(upload, self.server.last_staleness)
        if broadcast is None:
            return False
        self.traffic.count_broadcast(broadcast, self.task.clients)
        self.fleet = self.fleet.advanced(Message.from_bytes(broadcast), self.algorithm)
        return True

    def _update(self, start: Start) -> bytes:
        client, sequence, hidden_state = start
        began = perf_counter()
        trained = self.task.train(
            client, hidden_state.vector, self.algorithm.local, Stream.named(self.seed, "train", client, sequence)
        )
        self.training_s += perf_counter() - began
        return make_upload(
            hidden_state,
            trained,
            self.algorithm,
            Stream.named(self.seed, "client-quantizer", client, sequence),
            client=client,
            sequence=sequence,
            weight=float(self.weights[client]),
        )

    def _evaluate(self) -> Row:
        began = perf_counter()
        metric = self.task.evaluate(self.server.model)["metric"]
        self.evaluation_s += perf_counter() - began
        traffic, server = self.traffic, self.server
        return Row(
            version=server.version,
            uploads=traffic.uploads,
            virtual_time=self.clock.now,
            upload_bytes_total=traffic.upload_bytes,
            broadcast_bytes_total=traffic.broadcast_bytes,
            received_bytes_total=traffic.received_bytes,
            staleness_mean=traffic.staleness_mean,
            staleness_max=traffic.staleness_max,
            hidden_state_lag=_relative_distance(server),
            buffer_fill=server.buffer.count,
            metric=metric,
            wall_s=perf_counter() - self._began,
        )


def _relative_distance(server: Server) -> float:
    """‖x − x̂‖ / ‖x‖, zero where both are."""
    distance = float(np.linalg.norm(server.model - server.hidden_state.vector))
    return distance / norm if (norm := float(np.linalg.norm(server.model))) else distance


def _weights(task: Task) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Each client's samples over the mean, so that the weights average to one."""
    samples = np.array([task.samples(client) for client in range(task.clients)], np.float64)
    return np.asarray(samples / samples.mean())
