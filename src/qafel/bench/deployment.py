"""The speed of a deployment: a real broker, a server process, client processes that do not train, file storage.

One process with prepared uploads (load.py) can replace the clients. Other clients can only listen, or send damaged
messages. All processes share this machine.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np

from qafel.algorithm.messages import HEADER_BYTES
from qafel.bench.load import (
    BARE,
    RUN,
    DeploymentCase,
    ask_for_starts,
    cpu_s,
    light_client,
    resident_bytes,
    send_made,
    sound_uploads,
    take_and_forget,
    wait_for_run,
)
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import ClientEvent, open_client, run_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.connection import Stored, session
from qafel.deployment.messages import Receipt
from qafel.deployment.names import KEY_VALUE_STREAM, Names
from qafel.deployment.server import ServerSettings, StartSettings
from qafel.deployment.server.server import run_server
from qafel.deployment.transport import cancel_and_wait
from qafel.errors import BrokerRefused, DataError, QafelError
from qafel.quantizers import set_threads
from qafel.rng import Stream
from qafel.runs.live import LiveState

_ORIGINALS: Final = 50
_AT_ONCE: Final = 32
_HEARTBEAT_S: Final = 0.25

Figures: TypeAlias = dict[str, Any]
Mark: TypeAlias = tuple[float, int, int, float]
"""A state of the server: time, updates, bytes of memory, seconds of processor time."""
Found: TypeAlias = list[tuple[str, Figures]]
"""The results of the processes, each with its kind."""


Work: TypeAlias = Callable[[DeploymentCase, Path], Figures | Coroutine[Any, Any, Figures]]
"""The work of one process for a case, in the benchmark's folder. Returns its figures."""


def measure(case: DeploymentCase) -> Figures:
    """Run one case. With mutants, run it again without them and compare."""
    if case.starts:
        return _measure_starts(case)
    found = _measure(case)
    if case.mutants:
        without = _measure(replace(case, mutants=0))["updates_per_s"]
        found["mutants"] |= {"updates_per_s_without": without, "slower_by": without / found["updates_per_s"]}
    return found


def _measure(case: DeploymentCase) -> Figures:
    with tempfile.TemporaryDirectory(prefix="qafel-bench-") as name, _broker(Path(name) / "broker", case) as broker:
        folder = Path(name)
        bare = _bare(case, folder) if case.made else {}
        works: list[tuple[str, Work]] = [("client", partial(upload, number)) for number in range(case.clients)]
        if case.made:
            works = [("load", partial(send_made, RUN, case.each))]
        works += [("listening", listen)] * (case.listeners > 0) + [("mutants", send_mutants)] * (case.mutants > 0)
        with _processes([("server", serve_run)], case, folder) as serving:
            wait_for_run(case.access(folder, "server"))
            light = light_client(case, folder)
            before_s = cpu_s(broker.pid)
            with _processes(works, case, folder) as uploaders:
                found = uploaders() + serving()  # in this order: without uploads the server would wait forever
        figures = _figures(case, found, resident_bytes(broker.pid), cpu_s(broker.pid) - before_s)
        if bare:
            figures["share_of_broker"] = figures["updates_per_s"] / bare["messages_per_s"]
        return figures | {"broker_alone": bare, "light_client": light}


def _measure_starts(case: DeploymentCase) -> Figures:
    """The rate of linked starts, the server's time for one, and what it keeps of all clients."""
    with tempfile.TemporaryDirectory(prefix="qafel-bench-") as name, _broker(Path(name) / "broker", case):
        folder = Path(name)
        with _processes([("server", serve_run)], case, folder) as serving:
            wait_for_run(case.access(folder, "server"))
            with _processes([("load", ask_for_starts)], case, folder) as asking:
                ((_, asked), (_, server)) = asking() + serving()
        disk_bytes = sum(path.stat().st_size for path in (folder / "server" / "links").iterdir())
    marks = [mark for mark in server["marks"] if asked["began"] <= mark[0] <= asked["ended"]]
    seconds, cpu = (marks[-1][at] - marks[0][at] for at in (0, 3))
    rate = asked["starts"] / (asked["ended"] - asked["began"])
    return {
        **{key: getattr(case, key) for key in ("clients", "dimension")},
        "starts_per_s": rate,
        "bytes_per_start": asked["bytes_per_start"],
        "server_cpu_s_per_start": cpu / (seconds * rate),
        "server_bytes": marks[-1][2],
        "link_bytes": disk_bytes,
    }


def _bare(case: DeploymentCase, folder: Path) -> Figures:
    """Publish, take and acknowledge as many bytes as in the run, and nothing else."""
    each = case.updates // case.clients
    works: list[tuple[str, Work]] = [
        ("taker", partial(take_and_forget, each)),
        ("load", partial(send_made, BARE, each)),
    ]
    with _processes(works, case, folder) as ended:
        ((_, taken),) = (reported for reported in ended() if reported[0] == "taker")
        return taken


@contextmanager
def _processes(works: list[tuple[str, Work]], case: DeploymentCase, folder: Path) -> Iterator[Callable[[], Found]]:
    """Start each work in a process. Yields a function that waits for all and returns their results."""
    with ProcessPoolExecutor(len(works), get_context("spawn"), set_threads, (1,)) as pool:
        futures = [(kind, pool.submit(_perform, work, case, folder)) for kind, work in works]
        kind = ""

        def results() -> Found:
            nonlocal kind
            found = []
            for kind, future in futures:
                found.append((kind, future.result(60 + (case.updates + case.starts * case.clients) / 20)))
            return found

        try:
            yield results
        except BaseException as error:
            for process in active_children():
                process.terminate()
            if isinstance(error, QafelError) or not isinstance(error, Exception):
                raise
            raise DataError(f"the benchmark failed: {kind}: {str(error) or type(error).__name__}") from error


def _perform(work: Work, case: DeploymentCase, folder: Path) -> Figures:
    found = work(case, folder)
    return found if isinstance(found, dict) else asyncio.run(found)


@contextmanager
def _broker(folder: Path, case: DeploymentCase) -> Iterator[LocalBroker]:
    port = free_port()
    if case.secured:
        BrokerFolder.init(folder, case.all_clients, port=port, sync=case.sync or "2m")
    (folder.parent / "port").write_text(str(port))
    with LocalBroker(folder, port=port, sync=case.sync) as broker:
        yield broker


def _figures(case: DeploymentCase, found: Found, broker_bytes: int, broker_cpu_s: float) -> Figures:
    (server,) = (reported for kind, reported in found if kind == "server")
    clients = [reported for kind, reported in found if kind in ("client", "load")]

    def total(*keys: str) -> float:
        return float(sum(client[key] for client in clients for key in keys))

    begin, *_, end = _steady(server["marks"])
    latencies = [latency for client in clients for latency in client["latencies_s"]]
    # Each upload crosses twice (to the broker, then to the server), each broadcast once and once per recipient.
    crossed = server["upload_bytes_total"] + server["broadcast_bytes_total"] + total("sent_bytes", "received_bytes")
    wire = server["wire_sent_bytes"] + server["wire_received_bytes"] + total("wire_sent_bytes", "wire_received_bytes")
    return {
        "sync_interval": case.sync or "default",
        **{key: getattr(case, key) for key in ("secured", "clients", "dimension", "quantizer")},
        "updates": server["uploads"],
        "upload_bytes": server["upload_bytes_mean"],
        "updates_per_s": (end[1] - begin[1]) / (end[0] - begin[0]),
        "latency_median_s": float(np.median(latencies)) if latencies else None,
        "latency_p99_s": float(np.quantile(latencies, 0.99)) if latencies else None,
        "upload_wire_over_payload": total("wire_sent_bytes") / total("sent_bytes"),
        "all_wire_over_payload": wire / crossed,
        "broker_cpu_s_per_update": broker_cpu_s / server["uploads"],
        "server_cpu_s_per_update": (end[3] - begin[3]) / (end[1] - begin[1]),
        "client_cpu_s_per_update": total("cpu_s") / server["uploads"],
        "server_bytes": server["marks"][-1][2],
        "server_growth_bytes": end[2] - begin[2],
        "client_bytes": int(total("resident") / len(clients)),
        "broker_bytes": broker_bytes,
        "rejected": server["rejected"],
        **{kind: reported for kind, reported in found if kind in ("listening", "mutants")},
    }


def _steady(marks: list[Mark]) -> list[Mark]:
    """The marks without the first tenth, when processes start, and without the wait after the last update."""
    last = marks[-1][1]
    steady = [mark for mark in marks if 0.1 * last <= mark[1] < last]
    return steady if len(steady) > 1 else marks


def mutated(frames: list[bytes], chooser: random.Random) -> bytes:
    """A damaged frame: flipped bits, cut off, with the header of another, or overwritten."""
    while True:
        frame = bytearray(chooser.choice(frames))
        match chooser.randrange(5):
            case 0:
                for _ in range(chooser.randint(1, 4)):
                    frame[chooser.randrange(len(frame))] ^= 1 << chooser.randrange(8)
            case 1:
                del frame[chooser.randrange(len(frame)) :]
            case 2:
                frame[:HEADER_BYTES] = chooser.choice(frames)[:HEADER_BYTES]
            case 3:
                frame = bytearray(chooser.randbytes(chooser.randrange(2 * len(frame))))
            case _:
                start = chooser.randrange(len(frame) - 4)
                frame[start : start + 4] = chooser.randbytes(4)
        if (mutant := bytes(frame)) not in frames:
            return mutant


async def send_mutants(case: DeploymentCase, folder: Path) -> Figures:
    """Send damaged messages, spread over the run, and count the server's answers.

    The server must accept none of them, and must not become slower.
    """
    number, names, chooser = case.clients, Names(RUN), random.Random(0)
    frames, news = sound_uploads(case.config(), number, _ORIGINALS), asyncio.Event()
    sent, outcomes, state = 0, Counter[str](), LiveState(status="running", at=0.0, version=0)

    async def on_receipt(stored: Stored) -> None:
        receipt = Receipt.from_bytes(stored.data)
        outcomes.update(reason for _, reason, _ in receipt.rejected)
        outcomes.update(accepted=len(receipt.accepted), duplicate=len(receipt.duplicate))
        news.set()

    async def on_state(stored: Stored) -> None:
        nonlocal state
        state = LiveState.from_bytes(stored.data)
        news.set()

    async with session(case.access(folder, f"clients/{number}"), str(number), patience_s=60) as broker:
        await broker.subscribe(names.receipt(number), on_receipt)
        await broker.subscribe(names.state, on_state)
        if (stored := await broker.stored(KEY_VALUE_STREAM, names.state)) is not None:
            await on_state(stored)
        while not state.ended:
            await news.wait()
            news.clear()
            # In step with the run, with no more unanswered messages than this client's share of the queue.
            due = case.mutants * min(1.0, 1.1 * state.uploads / case.updates)
            while sent < due and sent - outcomes.total() < _AT_ONCE and not state.ended:
                batch = [mutated(frames, chooser) for _ in range(_AT_ONCE)]
                try:
                    await asyncio.gather(*(broker.store(names.upload(number), mutant) for mutant in batch))
                except BrokerRefused:  # the run has ended
                    break
                sent += len(batch)
    accepted = outcomes["accepted"]
    return {"sent": sent, "accepted": accepted, "rejected": outcomes.total() - accepted, "by": dict(outcomes)}


def serve_run(case: DeploymentCase, folder: Path) -> Figures:
    """Run the server, and record time, updates and memory with every heartbeat."""
    marks: list[Mark] = []
    summary = run_server(
        case.config(),
        folder / "server",
        access=case.access(folder, "server"),
        settings=ServerSettings(heartbeat_s=_HEARTBEAT_S, patience_s=30, starts=StartSettings(per_hour=None)),
        progress=lambda state: marks.append((time.monotonic(), state.uploads, resident_bytes(), time.process_time())),
    )
    return {**summary, "marks": marks}


def upload(number: int, case: DeploymentCase, folder: Path) -> Figures:
    """Run a client whose training takes no time: it moves by a fixed vector."""
    step = Stream.named(0, "benchmark", number).generator().standard_normal(case.dimension, np.float32)
    step *= np.float32(0.01)
    latencies = _Latencies()

    report = run_client(
        lambda start, local, stream: start.vector - step,
        run=RUN,
        client=number,
        state=folder / f"client-{number}",
        access=case.access(folder, f"clients/{number}"),
        settings=ClientSettings(patience_s=60, min_interval_s=case.min_interval_s),
        on_event=latencies.on_event,
    )
    cpu_s = time.process_time() - latencies.cpu_s
    return {**asdict(report), "latencies_s": latencies.found, "resident": resident_bytes(), "cpu_s": cpu_s}


@final
class _Latencies:
    """The times from an upload to the hidden state that contains it."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self.cpu_s = time.process_time()
        """The processor time of the start."""
        self._sent: dict[int, float] = {}
        self._waiting: list[tuple[int, float]] = []

    def on_event(self, event: ClientEvent) -> None:
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


async def listen(case: DeploymentCase, folder: Path) -> Figures:
    """Run clients that only receive. Each is a complete client, and all are in this process."""
    times: dict[int, list[float]] = {}

    def hear(event: ClientEvent) -> None:
        if event["event"] == "version":
            times.setdefault(event["version"], []).append(time.monotonic())

    make_train, settings = (lambda *_: ((lambda start, *_: start.vector), 1.0)), ClientSettings(patience_s=60)
    async with AsyncExitStack() as stack:
        clients = []
        for number in range(case.clients, case.clients + case.listeners):
            state = stack.enter_context(ClientState(folder / f"client-{number}"))
            access = case.access(folder, f"clients/{number}")
            clients.append(await open_client(make_train, Names(RUN), number, state, access, settings, hear))
        works = [asyncio.create_task(client.stay_connected()) for client in clients]
        for client in clients:
            await client.until(lambda c=client: c.follower.ended and c.follower.caught_up, 60 + case.updates / 20)  # type: ignore[misc]
        await cancel_and_wait(works)
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
