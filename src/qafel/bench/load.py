"""Load for a deployment's server: prepared uploads, the broker alone, and a client with NumPy kernels.

Uploads are prepared before the measurement, so that server and broker have the machine to themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import psutil

from qafel.algorithm import Client, HiddenState, LocalTraining, Message
from qafel.config import Config
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access, signed_name
from qafel.deployment.messages import Agreement, StartRequest
from qafel.deployment.names import KEY_VALUE_STREAM, Names, StreamLimits
from qafel.deployment.server.pipeline import MessageQueue
from qafel.deployment.status import read_status
from qafel.deployment.transport import wait_for_event
from qafel.errors import DataError, QafelError
from qafel.params import Layout, Vector
from qafel.quantizers.kernels import CHOICE
from qafel.rng import Stream
from qafel.runs.live import LiveState

_WINDOW: Final = 8  # unanswered uploads of a client, as a real client has
_GROUP: Final = 64
_LIGHT_UPDATES: Final = 20
_STARTS_AT_ONCE: Final = 32
_LOST_S: Final = 60.0

RUN: Final = "bench"
BARE: Final = "bare"

Upload = tuple[bytes, dict[str, str]]


@final
@dataclass(frozen=True, slots=True)
class DeploymentCase:
    """One measurement: a run, its clients, and a broker."""

    updates: int = 20_000
    clients: int = 10
    dimension: int = 29_282
    quantizer: str = "qsgd:4"
    buffer_size: int = 10
    sync: str | None = None
    """The broker's sync interval: None for the default of two minutes, "always" for a sync per message."""
    secured: bool = False
    listeners: int = 0
    min_interval_s: float = 0.0
    mutants: int = 0
    """The number of damaged messages that another client sends."""
    made: bool = False
    """Whether one process sends prepared uploads for all clients. Also measures the limit of the broker alone."""
    starts: int = 0
    """The number of linked starts that one process requests for each client, one after a server step."""

    @property
    def all_clients(self) -> int:
        """All clients, with the small one that runs before the others."""
        return self.clients + self.listeners + (self.mutants > 0) + 1

    @property
    def each(self) -> int:
        """The number of prepared uploads per client: a few more than the run needs."""
        return -(-self.updates // self.clients) + 64

    def config(self) -> Config:
        quantizers = {"client_quantizer": self.quantizer, "server_quantizer": self.quantizer}
        return Config.from_dict(
            {
                "name": RUN,
                "task": {"name": "quadratic", "clients": self.all_clients, "dimension": self.dimension},
                "algorithm": {"method": "qafel", **quantizers, "buffer_size": self.buffer_size, "server_lr": 0.001}
                | ({"catch_up": "link"} if self.starts else {}),
                "evaluation": {"every": 1_000_000_000},
                "stop": {"uploads": self.updates},
            }
        )

    def access(self, folder: Path, user: str) -> Access:
        """The access of a user to the broker of the benchmark in this folder."""
        if self.secured:
            return Access.of(None, folder / "broker" / (user or "operator"))
        return Access((f"nats://127.0.0.1:{(folder / 'port').read_text()}",))


def resident_bytes(pid: int | None = None) -> int:
    """The memory in use by a process, zero if it has ended; by default this one."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def cpu_s(pid: int) -> float:
    """The processor time of another process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def sound_uploads(config: Config, number: int, count: int) -> list[bytes]:
    """Valid uploads of a client: one update, encoded once, with `count` sequence numbers."""
    dimension = int(config.task.dimension)  # type: ignore[union-attr]
    algorithm, start = config.algorithm.compose(Layout.flat(dimension)), HiddenState.of(np.zeros(dimension, np.float32))

    def train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        return stream.generator().standard_normal(dimension, np.float32) * np.float32(0.01)

    made = Message.from_bytes(Client(number, start, algorithm, 0).update(train).upload)
    return [made._replace(sequence=sequence).to_bytes() for sequence in range(count)]


@final
@dataclass(slots=True)
class _Sender:
    """Sends the uploads of one client, with at most a window of unanswered ones."""

    broker: Broker
    subject: str
    uploads: list[Upload]
    outcomes: Counter[str] = field(default_factory=Counter)
    _next: int = 0

    @property
    def answered(self) -> int:
        return self.outcomes.total()

    async def send(self) -> None:
        while self._next < len(self.uploads) and self._next - self.answered < _WINDOW:
            data, headers = self.uploads[self._next]
            self._next += 1
            await self.broker.send(self.subject, data, headers=headers)

    async def on_receipt(self, stored: Stored) -> None:
        accepted, duplicate, _, rejected = json.loads(stored.data)
        self.outcomes.update(accepted=len(accepted), duplicate=len(duplicate), rejected=len(rejected))
        await self.send()


async def send_made(run: str, each: int, case: DeploymentCase, folder: Path) -> dict[str, Any]:
    """Send `each` prepared and signed uploads of every client, until all are answered or the run has ended.

    In a run with a server, signatures include its run id.
    """
    names, ended, agreed = Names(run), asyncio.Event(), run == RUN
    wire = Counter[str]()

    async def on_state(stored: Stored) -> None:
        if LiveState.from_bytes(stored.data).ended:
            ended.set()

    async with AsyncExitStack() as stack:
        senders: list[_Sender] = []
        shared = await stack.enter_async_context(
            session(case.access(folder, "clients/0"), "0", patience_s=60, wire=wire)
        )
        run_id = await _run_id(shared, names) if agreed else ""
        await shared.subscribe(names.state, on_state)
        for number in range(case.clients):
            broker, access = shared, case.access(folder, f"clients/{number}")
            if access.seed and number:  # each key may send for its own client only
                broker = await stack.enter_async_context(session(access, str(number), patience_s=60, wire=wire))
            subject, signer = names.upload(number), access.signer()
            frames = await asyncio.to_thread(sound_uploads, case.config(), number, each)
            uploads = [(frame, signer.headers(signed_name(subject, run_id), frame)) for frame in frames]
            sender = _Sender(broker, subject, uploads)
            await broker.subscribe(names.receipt(number), sender.on_receipt)
            senders.append(sender)
        cpu_s = time.process_time()
        for sender in senders:
            await sender.send()
        while not ended.is_set() and any(sender.answered < each for sender in senders):
            await asyncio.sleep(0.05)
        outcomes = sum((sender.outcomes for sender in senders), Counter[str]())
        if agreed and not ended.is_set():
            raise DataError(f"all uploads are answered, but the run has not ended: {dict(outcomes)}")
        cpu_s = time.process_time() - cpu_s
    return {
        "cpu_s": cpu_s,
        "latencies_s": [],
        "sent_bytes": outcomes["accepted"] * len(frames[0]),
        "received_bytes": 0,
        "wire_sent_bytes": wire["sent"],
        "wire_received_bytes": wire["received"],
        "resident": resident_bytes(),
    }


async def ask_for_starts(case: DeploymentCase, folder: Path) -> dict[str, Any]:
    """Ask for a start of every client in each round, with a server step before each round.

    The first start of a client is longer, so the first round does not count.
    """
    clients, rounds = case.clients, case.starts
    names, answered, points = Names(RUN), asyncio.Event(), [0] * clients
    waiting, received, began = set[int](), 0, (0.0, 0)

    async def on_start(stored: Stored) -> None:
        nonlocal received
        client = int(stored.subject.rsplit(".", 1)[-1])
        if stored.data:
            points[client] = Message.from_bytes(stored.data).digest
            received += len(stored.data)
        waiting.discard(client)
        answered.set()

    async def on_receipt(_: Stored) -> None:
        answered.set()

    async with session(case.access(folder, ""), "0", patience_s=60) as broker:
        await _run_id(broker, names)
        await broker.subscribe(names.started(0).removesuffix("0") + "*", on_start)
        await broker.subscribe(names.receipt(0), on_receipt)
        for number, upload in enumerate(await asyncio.to_thread(sound_uploads, case.config(), 0, rounds + 1)):
            answered.clear()
            await broker.send(names.upload(0), upload)
            await answered.wait()
            if number == rounds:
                break
            if number == 1:
                began = time.monotonic(), received
            todo = list(range(clients))
            while todo or waiting:
                while todo and len(waiting) < _STARTS_AT_ONCE:
                    waiting.add(client := todo.pop())
                    await broker.send(names.start(client), StartRequest(number, points[client], 0).to_bytes())
                answered.clear()
                await wait_for_event(answered, _LOST_S)
                if not answered.is_set():
                    raise DataError(f"the server answered {clients - len(todo) - len(waiting)} of {clients} requests")
            ended = time.monotonic()
    starts = (rounds - 1) * clients
    return {"starts": starts, "began": began[0], "ended": ended, "bytes_per_start": (received - began[1]) / starts}


async def _run_id(broker: Broker, names: Names) -> str:
    while (stored := await broker.stored(KEY_VALUE_STREAM, names.config)) is None:
        await asyncio.sleep(0.1)
    return Agreement.run_id_of(stored.data)


async def take_and_forget(each: int, case: DeploymentCase, folder: Path) -> dict[str, Any]:
    """The rate of the broker alone: take messages from the work queue and acknowledge them unread."""
    names, taken, messages = Names(BARE), 0, each * case.clients
    async with session(case.access(folder, "server"), "server", patience_s=60) as broker:
        await broker.ensure_buckets(1)
        await broker.ensure(names, StreamLimits())
        await broker.new_consumer(names.upload_stream, names.consumer(1))
        queue = MessageQueue(broker, names.upload_stream, names.consumer(1))
        await queue.start()
        marks = [(0.0, 0)]
        while taken < messages:
            group = await queue.group(_GROUP)
            await broker.acknowledge(group)
            for subject, count in Counter(message.subject for message in group).items():
                receipt = [[0] * count, [], -1, []]
                await broker.send(subject.replace(".upload.", ".receipt."), json.dumps(receipt).encode())
            taken += len(group)
            marks.append((time.monotonic(), taken))
        await broker.flush()
        steady = [mark for mark in marks if mark[1] >= 0.1 * messages]
        await broker.purge(names.upload_stream)
    (begin, before), (end, after) = steady[0], steady[-1]
    return {"messages_per_s": (after - before) / (end - begin)}


def wait_for_run(access: Access, most_s: float = 60.0) -> None:
    """Wait until the server of the run reports that it is running."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline:
        with suppress(QafelError):
            if any(status.word == "running" for status in asyncio.run(read_status(access, RUN, patience_s=5))):
                return
        time.sleep(0.1)


def train_little(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
    """Training that takes little time."""
    time.sleep(0.02)
    return start.vector * np.float32(0.999)


def light_client(case: DeploymentCase, folder: Path) -> dict[str, Any]:
    """Run `qafel client` with NumPy kernels: the time until it is ready, and its memory after some updates."""
    number = str(case.all_clients - 1)
    where = ["--broker", case.access(folder, "").servers[0], "--client-id", number]
    if case.secured:
        where = ["--credentials", str(folder / "broker" / "clients" / number)]
    command = [sys.executable, *f"-m qafel client --json --run {RUN} --train {__name__}:train_little".split(), *where]
    command += ["--state", str(folder / "light"), *f"--max-failures 1 --max-updates {_LIGHT_UPDATES}".split()]
    began_s, ready_s, most = time.monotonic(), 0.0, 0
    client = subprocess.Popen(command, env={**os.environ, CHOICE: "numpy"}, stdout=subprocess.PIPE, text=True)
    with client:
        assert client.stdout is not None
        for _ in client.stdout:
            ready_s = ready_s or time.monotonic() - began_s
            most = max(most, resident_bytes(client.pid))
    if client.returncode:
        raise DataError(f"the small client ended with exit code {client.returncode}: see its output above")
    return {"cold_start_s": ready_s, "resident_bytes": most}
