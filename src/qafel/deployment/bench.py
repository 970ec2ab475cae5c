"""The deployment's speed: a real broker, a server process, client processes that do not train, file storage.

Figures are of this machine, all processes on it together: with two cores, broker, server and clients share them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np

from qafel.config import Config
from qafel.deployment.access import Access
from qafel.deployment.agreement import Agreement, RunState
from qafel.deployment.broker_folder import BrokerFolder
from qafel.deployment.client import ClientSettings, Event, open_client, run_client
from qafel.deployment.client_state import ClientState
from qafel.deployment.layout import Names
from qafel.deployment.local_broker import LocalBroker, free_port
from qafel.deployment.server import ServerSettings, run_server
from qafel.deployment.together import end
from qafel.params import Vector
from qafel.quantizers import set_threads
from qafel.rng import Stream

Figures: TypeAlias = dict[str, Any]

RUN: Final = "bench"
_HEARTBEAT_S: Final = 0.25


@final
@dataclass(frozen=True, slots=True)
class Case:
    """One measurement."""

    updates: int = 20_000
    clients: int = 10
    dimension: int = 29_282
    quantizer: str = "qsgd:4"
    buffer_size: int = 10
    sync: str | None = None
    """The broker's sync interval: None for its default, two minutes; "always" for a sync per message."""
    secured: bool = False
    listeners: int = 0
    min_interval_s: float = 0.0

    def config(self) -> Config:
        return Config.from_dict(
            {
                "name": RUN,
                "task": {"name": "quadratic", "clients": self.clients + self.listeners, "dimension": self.dimension},
                "algorithm": {
                    "preset": "qafel",
                    "client_quantizer": self.quantizer,
                    "server_quantizer": self.quantizer,
                    "buffer_size": self.buffer_size,
                    "server_lr": 0.001,
                },
                "evaluation": {"every": 1_000_000_000},
                "stop": {"uploads": self.updates},
            }
        )


def measure(case: Case) -> Figures:
    """Run one case to its end."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="qafel-bench-") as name, _broker(Path(name) / "broker", case) as broker:
        results: Queue[tuple[str, Figures]] = context.Queue()
        works: list[Any] = [context.Process(target=_serve, args=(case, name, results), daemon=True)]
        works += [
            context.Process(target=_upload, args=(case, name, number, results), daemon=True)
            for number in range(case.clients)
        ]
        if case.listeners:
            works.append(context.Process(target=_listen, args=(case, name, results), daemon=True))
        for work in works:
            work.start()
        try:
            found = [results.get(timeout=60 + case.updates / 20) for _ in works]
        finally:
            for work in works:
                work.join(20)
                if work.is_alive():
                    work.terminate()
        return _figures(case, found, resident_bytes(broker.pid), _cpu_s(broker.pid))


@contextmanager
def _broker(folder: Path, case: Case) -> Iterator[LocalBroker]:
    port = free_port()
    if case.secured:
        BrokerFolder.init(folder, case.clients + case.listeners, port=port, sync=case.sync or "2m")
    (folder.parent / "port").write_text(str(port))
    with LocalBroker(folder, port=port, sync=case.sync) as broker:
        yield broker


def _access(case: Case, name: str, user: str) -> Access:
    if case.secured:
        return Access.of(None, Path(name) / "broker" / user)
    return Access((f"nats://127.0.0.1:{(Path(name) / 'port').read_text()}",))


def _serve(case: Case, name: str, results: Queue[tuple[str, Figures]]) -> None:
    marks: list[tuple[float, int, int]] = []
    cpu_s = time.process_time()

    def mark(state: RunState) -> None:
        marks.append((time.monotonic(), state.uploads, resident_bytes()))

    set_threads(1)
    summary = run_server(
        case.config(),
        Path(name) / "server",
        access=_access(case, name, "server"),
        settings=ServerSettings(heartbeat_s=_HEARTBEAT_S, patience_s=30),
        progress=mark,
    )
    results.put(("server", {**summary, "marks": marks, "cpu_s": time.process_time() - cpu_s}))


def _upload(case: Case, name: str, number: int, results: Queue[tuple[str, Figures]]) -> None:
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
        access=_access(case, name, f"clients/{number}"),
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


def _listen(case: Case, name: str, results: Queue[tuple[str, Figures]]) -> None:
    results.put(("listeners", asyncio.run(_listen_many(case, name))))


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
            access = _access(case, name, f"clients/{number}")
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


def _figures(case: Case, found: list[tuple[str, Figures]], broker_bytes: int, broker_cpu_s: float) -> Figures:
    (server,) = (figures for kind, figures in found if kind == "server")
    clients = [figures for kind, figures in found if kind == "client"]
    listeners = [figures for kind, figures in found if kind == "listeners"]
    latencies = np.array([latency for client in clients for latency in client["latencies_s"]] or [np.nan])
    payload = sum(client["sent"] for client in clients)
    # What had to cross: each upload twice (to the broker and on to the server), each broadcast once and per recipient.
    crossed = payload + server["upload_bytes_total"] + server["broadcast_bytes_total"]
    crossed += sum(client["received"] for client in clients)
    wire = server["wire_sent_bytes"] + server["wire_received_bytes"]
    wire += sum(client["wire_sent"] + client["wire_received"] for client in clients)
    return {
        "sync_interval": case.sync or "default",
        "secured": case.secured,
        "clients": case.clients,
        "dimension": case.dimension,
        "quantizer": case.quantizer,
        "updates": server["uploads"],
        "upload_bytes": server["upload_bytes_mean"],
        "updates_per_s": _rate(server["marks"]),
        "latency_median_s": float(np.median(latencies)),
        "latency_p99_s": float(np.quantile(latencies, 0.99)),
        "upload_wire_over_payload": sum(client["wire_sent"] for client in clients) / payload,
        "all_wire_over_payload": wire / crossed,
        "broker_cpu_s_per_update": broker_cpu_s / server["uploads"],
        "server_cpu_s_per_update": server["cpu_s"] / server["uploads"],
        "client_cpu_s_per_update": sum(client["cpu_s"] for client in clients) / server["uploads"],
        "server_bytes": server["marks"][-1][2],
        "server_growth_bytes": _growth(server["marks"]),
        "client_bytes": int(np.mean([client["resident"] for client in clients])),
        "broker_bytes": broker_bytes,
        "rejected": server["rejected"],
        **({"listening": listeners[0]} if listeners else {}),
    }


def _steady(marks: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Without the first tenth, in which processes start, and the wait after the last update."""
    last = marks[-1][1]
    steady = [mark for mark in marks if 0.1 * last <= mark[1] < last]
    return steady if len(steady) > 1 else marks


def _rate(marks: list[tuple[float, int, int]]) -> float:
    (begin, first, _), (end, last, _) = _steady(marks)[0], _steady(marks)[-1]
    return (last - first) / (end - begin)


def _growth(marks: list[tuple[float, int, int]]) -> int:
    return _steady(marks)[-1][2] - _steady(marks)[0][2]


def resident_bytes(pid: int | None = None) -> int:
    """The memory that a process has in use now."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return 4096 * pages


def _cpu_s(pid: int) -> float:
    """The processor time that another process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[-1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
