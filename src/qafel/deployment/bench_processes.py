"""The benchmark's processes: a server, clients that do not train, clients that only listen, one that sends rubbish."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np

from qafel.deployment.agreement import Agreement, RunState
from qafel.deployment.bench_case import RUN, Case, Figures, resident_bytes
from qafel.deployment.bench_mutants import Mutants
from qafel.deployment.client import open_client, run_client
from qafel.deployment.client_state import ClientState
from qafel.deployment.layout import Names
from qafel.deployment.participant import Event
from qafel.deployment.server import run_server
from qafel.deployment.settings import ClientSettings, ServerSettings
from qafel.deployment.together import end
from qafel.params import Vector
from qafel.quantizers import set_threads
from qafel.rng import Stream

Results: TypeAlias = "Queue[tuple[str, Figures]]"

_HEARTBEAT_S: Final = 0.25


def serve(case: Case, name: str, results: Results) -> None:
    marks: list[tuple[float, int, int]] = []
    cpu_s = time.process_time()

    def mark(state: RunState) -> None:
        marks.append((time.monotonic(), state.uploads, resident_bytes()))

    set_threads(1)
    summary = run_server(
        case.config(),
        Path(name) / "server",
        access=case.access(Path(name), "server"),
        settings=ServerSettings(heartbeat_s=_HEARTBEAT_S, patience_s=30),
        progress=mark,
    )
    results.put(("server", {**summary, "marks": marks, "cpu_s": time.process_time() - cpu_s}))


def upload(case: Case, name: str, number: int, results: Results) -> None:
    """A client whose training takes no time: it moves by a fixed vector."""
    set_threads(1)
    step = Stream.named(0, "benchmark", number).generator().standard_normal(case.dimension, np.float32)
    step *= np.float32(0.01)
    latencies = _Latencies()

    def train(start: Vector, stream: Stream) -> Vector:
        trained: Vector = start - step
        return trained

    report = run_client(
        train,
        run=RUN,
        client=number,
        state=Path(name) / f"client-{number}",
        access=case.access(Path(name), f"clients/{number}"),
        settings=ClientSettings(patience_s=60, min_interval_s=case.min_interval_s),
        on_event=latencies.on_event,
    )
    results.put(
        (
            "client",
            {
                "latencies_s": latencies.found,
                "sent": report.sent_bytes,
                "received": report.received_bytes,
                "wire_sent": report.wire_sent_bytes,
                "wire_received": report.wire_received_bytes,
                "resident": resident_bytes(),
                "cpu_s": time.process_time() - latencies.cpu_s,
                "outcomes": report.outcomes,
            },
        )
    )


@final
class _Latencies:
    """From handing an upload over to holding the hidden state that contains it."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self.cpu_s = time.process_time()
        """What starting cost."""
        self._sent: dict[int, float] = {}
        self._waiting: list[tuple[int, float]] = []

    def on_event(self, event: Event) -> None:
        match event:
            case {"event": "update", "sequence": sequence}:
                if sequence == 0:
                    self.cpu_s = time.process_time()
                self._sent[sequence] = time.monotonic()
            case {"event": "accepted", "sequence": sequence, "version": version} if sequence in self._sent:
                self._waiting.append((version, self._sent.pop(sequence)))
            case {"event": "version", "version": version}:
                now = time.monotonic()
                self.found += [now - sent for taken, sent in self._waiting if taken < version]
                self._waiting = [(taken, sent) for taken, sent in self._waiting if taken >= version]


def listen(case: Case, name: str, results: Results) -> None:
    results.put(("listening", asyncio.run(_listen_many(case, name))))


async def _listen_many(case: Case, name: str) -> Figures:
    """Connected clients that only follow; each is a whole client, and all are in this process."""
    set_threads(1)
    times: dict[int, list[float]] = {}

    def make(agreement: Agreement, number: int) -> tuple[Any, float]:
        return (lambda start, stream: start), 1.0

    def hear(event: Event) -> None:
        if event["event"] == "version":
            times.setdefault(event["version"], []).append(time.monotonic())

    async with AsyncExitStack() as stack:
        clients = []
        for number in range(case.clients, case.clients + case.listeners):
            state = stack.enter_context(ClientState(Path(name) / f"client-{number}"))
            access = case.access(Path(name), f"clients/{number}")
            settings = ClientSettings(patience_s=60)
            clients.append(await open_client(make, Names(RUN), number, state, access, settings, hear))
        works = [asyncio.create_task(client.stay_connected()) for client in clients]
        for client in clients:
            await client.until(lambda c=client: c.follower.ended and c.follower.caught_up, 60 + case.updates / 20)  # type: ignore[misc]
        await end(works)
    digests = {(client.core.hidden_state.version, client.core.hidden_state.digest) for client in clients}
    complete = {version: heard for version, heard in times.items() if len(heard) == case.listeners}
    spreads = [max(heard) - min(heard) for heard in complete.values()]
    span_s = max(map(max, complete.values())) - min(map(min, complete.values())) if len(complete) > 1 else 0.0
    return {
        "listeners": case.listeners,
        "broadcasts_heard_by_all": len(complete),
        "deliveries_per_s": case.listeners * len(complete) / span_s if span_s else 0.0,
        "spread_median_s": float(np.median(spreads)) if spreads else None,
        "spread_p99_s": float(np.quantile(spreads, 0.99)) if spreads else None,
        "all_equal_in_the_end": len(digests) == 1,
        "resident_bytes_per_listener": resident_bytes() // case.listeners,
    }


def send_mutants(case: Case, name: str, results: Results) -> None:
    set_threads(1)
    results.put(("mutants", asyncio.run(_send_mutants(case, name))))


async def _send_mutants(case: Case, name: str) -> Figures:
    return await Mutants(case).send_all(Path(name))
