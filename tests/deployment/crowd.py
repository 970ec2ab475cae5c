"""A thousand connected clients with TLS, keys and signatures, for ten minutes: what they cost, and who gets how much.

Each is a whole client; some hundred share a process, as one machine has to carry them all, and what all of them hear is
checked once for a process. They do not train: each sends an update of a fixed vector now and then. With `--leaving`,
some clients stop and return at random. By hand:

python -m tests.deployment.crowd --clients 1000 --seconds 600
python -m tests.deployment.crowd --clients 40 --leaving 20 --interval 0.5 --seconds 600
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from qafel.algorithm import HiddenState, LocalTraining
from qafel.bench.deployment import cpu_s, resident_bytes
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import ClientEvent, DeploymentClient, open_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.keys import Access, Payload, Verifier
from qafel.deployment.names import Names
from qafel.deployment.transport import cancel_and_wait
from qafel.params import Vector
from qafel.quantizers import set_threads
from qafel.rng import Stream
from tests.deployment.processes import Command, wait_for

RUN = "crowd"
_AT_ONCE = 8
_RECIPE = """
name = "{run}"
[task]
name = "quadratic"
clients = {clients}
dimension = {dimension}
[algorithm]
method = "qafel"
client_quantizer = "qsgd:4"
server_quantizer = "qsgd:4"
buffer_size = {buffer_size}
server_lr = 0.001
[evaluation]
every = 1_000_000_000
[stop]
server_steps = 1_000_000_000
"""


@dataclass(frozen=True)
class Crowd:
    """How many of what, for how long."""

    folder: Path
    clients: int
    processes: int
    seconds: float
    interval_s: float
    """Between two updates of a client."""
    flooding: int
    """So many clients wait for nothing but their window."""
    dimension: int
    buffer_size: int
    leaving: int = 0
    """So many clients, the last ones, stop and return at random, after `away_s` on average each."""
    away_s: float = 30.0


@dataclass
class _Heard:
    """What one client heard, from when it counts."""

    since: float
    accepted: int = 0

    def __post_init__(self) -> None:
        self.latencies_s: list[tuple[float, float]] = []
        """When a receipt came, from the beginning, and how long it took."""
        self._sent: dict[int, float] = {}
        self.accepted_at: list[float] = []
        self.present: list[list[float]] = []
        """From when until when it took part, by the machine's clock."""

    def __call__(self, event: ClientEvent) -> None:
        now = time.monotonic()
        match event:
            case {"event": "update", "sequence": sequence}:
                self._sent[sequence] = now
            case {"event": "accepted", "sequence": sequence} if now > self.since:
                self.accepted += 1
                self.accepted_at.append(now)
                if sequence in self._sent:
                    self.latencies_s.append((now - self.since, now - self._sent.pop(sequence)))


async def _take_part(crowd: Crowd, numbers: range, ready: Any, begun: Event, over: Event) -> dict[str, Any]:
    """Some of the clients, in this process, until it is over."""
    step = Stream.named(0, "crowd").generator().standard_normal(crowd.dimension, np.float32) * np.float32(0.01)

    def train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        return start.vector - step

    heard = {number: _Heard(float("inf")) for number in numbers}
    works: dict[asyncio.Task[Any], DeploymentClient] = {}
    reports: list[Any] = []
    room = asyncio.Semaphore(_AT_ONCE)
    with contextlib.ExitStack() as stack:

        async def join(number: int, state: ClientState) -> DeploymentClient:
            access = Access.of(None, crowd.folder / "broker" / "clients" / str(number))
            interval_s = 0.0 if number < crowd.flooding else crowd.interval_s
            settings = ClientSettings(min_interval_s=interval_s, save_every_s=120)
            async with room:
                client = await open_client(
                    lambda *_: (train, 1.0), Names(RUN), number, state, access, settings, heard[number]
                )
                works[asyncio.create_task(client.run())] = client
                await client.until(lambda: client.follower.state is not None)
                heard[number].present.append([time.monotonic(), float("inf")])
                return client

        async def come_and_go(number: int, state: ClientState, client: DeploymentClient) -> None:
            chance = random.Random(number)
            while True:
                await asyncio.sleep(chance.expovariate(1 / crowd.away_s))
                work = next(task for task, each in works.items() if each is client)
                heard[number].present[-1][1] = time.monotonic()
                client.stop()
                reports.append(await work)
                del works[work]
                await asyncio.sleep(chance.expovariate(1 / crowd.away_s))
                client = await join(number, state)

        states = {
            number: stack.enter_context(ClientState(crowd.folder / "clients" / str(number))) for number in numbers
        }
        joined = await asyncio.gather(*(join(number, state) for number, state in states.items()))
        ready.release()
        while not begun.is_set():
            await asyncio.sleep(0.1)
        for each in heard.values():
            each.since = time.monotonic()
        leavers = [
            asyncio.create_task(come_and_go(number, states[number], client))
            for number, client in zip(numbers, joined, strict=True)
            if number >= crowd.clients - crowd.leaving
        ]
        while not over.is_set():
            await asyncio.sleep(0.1)
            assert crowd.leaving or not [work for work in works if work.done()], "a client ended"
        await cancel_and_wait(leavers)
        for client in works.values():
            client.stop()
        last = await asyncio.gather(*works)
        reports += last
    return {
        "accepted": {number: each.accepted for number, each in heard.items()},
        "accepted_at": [when for each in heard.values() for when in each.accepted_at],
        "present": [period for each in heard.values() for period in each.present],
        "latencies_s": [latency for each in heard.values() for latency in each.latencies_s],
        "held": {(report.version, report.digest) for report in last},
        "outcomes": [report.outcomes for report in reports],
    }


def _share_checks() -> None:
    """A signature that one client in this process has found good is good for all of them."""
    check = Verifier.check

    @lru_cache(maxsize=64)
    def once(data: bytes, context: str, signature: str | None) -> None:
        check(keys[-1], context, data, signature)

    keys: list[Verifier] = []

    def shared(verifier: Verifier, context: str, data: Payload, signature: str | None) -> None:
        keys[:] = [verifier]  # all hold the same server's key
        once(bytes(data), context, signature)

    Verifier.check = shared  # type: ignore[method-assign,assignment]


def _process(crowd: Crowd, numbers: range, ready: Any, begun: Event, over: Event, results: Queue[Any]) -> None:
    set_threads(1)
    _share_checks()
    results.put(asyncio.run(_take_part(crowd, numbers, ready, begun, over)))


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextlib.contextmanager
def _serving(crowd: Crowd) -> Iterator[tuple[LocalBroker, Command]]:
    recipe, port = crowd.folder / "crowd.toml", free_port()
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(
        _RECIPE.format(run=RUN, clients=crowd.clients, dimension=crowd.dimension, buffer_size=crowd.buffer_size),
        encoding="utf-8",
    )
    BrokerFolder.init(crowd.folder / "broker", crowd.clients, port=port, sync="2m")
    with LocalBroker(crowd.folder / "broker", port=port) as broker:
        server = Command(
            "server", crowd.folder / "server.out", str(recipe), "--out", str(crowd.folder / "run"), "--credentials",
            str(crowd.folder / "broker" / "server"), "--json",
        )  # fmt: skip
        try:
            yield broker, server
        finally:
            if server.alive:
                server.kill()


def measure(crowd: Crowd) -> dict[str, Any]:
    """Start all, wait until every client is connected, look for so many seconds, end all."""
    context = multiprocessing.get_context("spawn")
    ready, begun, over, results = context.Semaphore(0), context.Event(), context.Event(), context.Queue()
    size = -(-crowd.clients // crowd.processes)
    parts = [range(start, min(start + size, crowd.clients)) for start in range(0, crowd.clients, size)]
    with _serving(crowd) as (broker, server):
        processes = [
            context.Process(target=_process, args=(crowd, part, ready, begun, over, results), daemon=True)
            for part in parts
        ]
        starting = time.monotonic()
        for process in processes:
            process.start()
        try:
            wait_for(lambda: _all_of(ready, len(parts)), "all clients to take part", 900)
            connected_s = time.monotonic() - starting
            begun.set()
            pids = {"server": server.process.pid, "broker": broker.pid}
            pids |= {f"clients {n}": process.pid or 0 for n, process in enumerate(processes)}
            samples, cpu = _watch(crowd.seconds, pids)
            assert server.end(60) == 0, server.errors
            time.sleep(5)  # the last broadcasts
            over.set()
            found = [results.get(timeout=1800) for _ in processes]
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.terminate()
    return {**_figures(crowd, found, samples, cpu), "all_connected_after_s": round(connected_s, 1)}


def _all_of(ready: Any, count: int) -> bool:
    return bool(ready.get_value() >= count)


def _watch(seconds: float, pids: dict[str, int]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Memory and descriptors of these processes, every few seconds, and the processor time that they took."""
    before, until, samples = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic() + seconds, []
    while (now := time.monotonic()) < until:
        samples.append({name: (now, resident_bytes(pid), _descriptors(pid)) for name, pid in pids.items()})
        time.sleep(min(5.0, until - now))
    return samples, {name: cpu_s(pid) - before[name] for name, pid in pids.items()}


def _figures(
    crowd: Crowd, found: list[dict[str, Any]], samples: list[dict[str, Any]], cpu: dict[str, float]
) -> dict[str, Any]:
    held = set().union(*(part["held"] for part in found))
    assert len(held) == 1, f"clients hold {len(held)} different hidden states"
    accepted = {number: count for part in found for number, count in part["accepted"].items()}
    honest = np.array([count for number, count in accepted.items() if number >= crowd.flooding], float)
    receipts = np.array([receipt for part in found for receipt in part["latencies_s"]])
    times = [sample["server"][0] for sample in samples]
    crowd_times = times[0], times[-1]
    outcomes: dict[str, int] = {}
    for each in (outcome for part in found for outcome in part["outcomes"]):
        for word, count in each.items():
            outcomes[word] = outcomes.get(word, 0) + count
    total = sum(accepted.values())
    return {
        "clients": crowd.clients,
        "seconds": round(times[-1] - times[0]),
        "stood_still_s": round(sum(max(0.0, gap - 8) for gap in np.diff(times)), 1),
        "updates_per_s": round(total / crowd.seconds, 1),
        "outcomes_in_all": outcomes,
        "version": next(iter(held))[0],
        "updates_of_a_client": {
            "least": int(honest.min()), "median": float(np.median(honest)), "most": int(honest.max()),
        },
        "jain": round(float(honest.sum() ** 2 / (honest.size * (honest**2).sum())), 4),
        "updates_per_s_of_a_present_client": _rates(found, *crowd_times) if crowd.leaving else None,
        "share_of_flooding": round(sum(accepted[number] for number in range(crowd.flooding)) / max(1, total), 4),
        "receipt_latency_s": _quantiles(receipts[:, 1]),
        "receipt_latency_s_in_the_first_minute": _quantiles(receipts[receipts[:, 0] < 60, 1]),
        "MB": {name: [round(s[name][1] / 1e6, 1) for s in (samples[0], samples[-1])] for name in samples[0]},
        "descriptors": {name: max(s[name][2] for s in samples) for name in samples[0]},
        "cpu_share": {name: round(spent / crowd.seconds, 3) for name, spent in cpu.items()},
    }  # fmt: skip


def _rates(found: list[dict[str, Any]], begin: float, end: float) -> dict[str, Any]:
    """Accepted updates per second and present client, in windows of ten seconds: in proportion if all are alike."""
    accepted = np.sort(np.array([when for part in found for when in part["accepted_at"]]))
    present = np.array([period for part in found for period in part["present"]])
    windows = np.arange(begin, end - 10.0, 10.0)
    inside = np.clip(
        np.minimum(present[:, 1], windows[:, None] + 10) - np.maximum(present[:, 0], windows[:, None]), 0, 10
    )
    clients = inside.sum(axis=1) / 10.0
    rates = (np.searchsorted(accepted, windows + 10.0) - np.searchsorted(accepted, windows)) / 10.0 / clients
    return {
        "present": [round(float(value), 1) for value in (clients.min(), np.median(clients), clients.max())],
        "rate": [round(float(value), 3) for value in (rates.min(), np.median(rates), rates.max())],
        "correlation_of_updates_and_present": round(float(np.corrcoef(rates * clients, clients)[0, 1]), 3),
    }


def _quantiles(values: Any) -> dict[str, float]:
    named = {"median": 0.5, "p99": 0.99, "most": 1.0}
    return {name: round(float(np.quantile(values, share)), 3) for name, share in named.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4, help="among which the clients are shared")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two updates of a client")
    parser.add_argument("--flooding", type=int, default=0, help="so many clients send as fast as they can")
    parser.add_argument("--leaving", type=int, default=0, help="so many clients stop and return at random")
    parser.add_argument("--away", type=float, default=30.0, help="mean seconds that they stay, and stay away")
    parser.add_argument("--dimension", type=int, default=29_282)
    parser.add_argument("--buffer-size", type=int, default=100)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all processes end with us
    with tempfile.TemporaryDirectory(prefix="qafel-crowd-") as folder:
        found = measure(
            Crowd(
                Path(folder), options.clients, options.processes, options.seconds, options.interval, options.flooding,
                options.dimension, options.buffer_size, options.leaving, options.away,
            )
        )  # fmt: skip
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
