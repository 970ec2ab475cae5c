"""A server and clients in this process, on a real broker: for tests that look inside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from qafel.algorithm import Algorithm, HiddenState, Message, Server
from qafel.config import Config
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import DeploymentClient, open_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.client.training import train_task
from qafel.deployment.keys import Access
from qafel.deployment.names import Names
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.journal import Entry, JournalReader
from qafel.deployment.server.ledger import UploadNote
from qafel.deployment.server.server import DeploymentServer, open_server
from qafel.deployment.transport import cancel_and_wait
from qafel.params import Vector
from qafel.runs.directory import RunDirectory

CONFIG: dict[str, Any] = {
    "name": "live",
    "task": {"name": "mushrooms", "clients": 5},
    "algorithm": {
        "method": "qafel",
        "client_quantizer": "qsgd:4",
        "server_quantizer": "qsgd:4",
        "buffer_size": 3,
        "local_steps": 2,
    },
    "evaluation": {"every": 1000},
    "stop": {"server_steps": 100_000},
}


@contextlib.asynccontextmanager
async def serving(
    folder: Path, access: Access, config: Config | None = None, settings: ServerSettings | None = None
) -> AsyncIterator[DeploymentServer]:
    """A running server, stopped as a signal would stop it."""
    config = config or Config.from_dict(CONFIG)
    settings = settings or ServerSettings(heartbeat_s=0.2)
    with (
        RunDirectory(folder) as directory,
        open_server(config, directory, access, settings, config.task.make()) as server,
    ):
        work = asyncio.create_task(server.run())
        try:
            yield server
        finally:
            server.stop()
            await asyncio.wait_for(work, 120)


@contextlib.asynccontextmanager
async def taking_part(
    folder: Path, access: Access, number: int, run: str = "live", settings: ClientSettings | None = None
) -> AsyncIterator[DeploymentClient]:
    """A connected client that trains only when told to."""
    settings = settings or ClientSettings(patience_s=120)
    with ClientState(folder / f"client-{number}") as state:
        client = await open_client(train_task, Names(run), number, state, access, settings)
        connection = asyncio.create_task(client.stay_connected())
        try:
            assert await client.until(lambda: client.follower.version >= 0, 120)
            yield client
        finally:
            await cancel_and_wait([connection])


async def until(condition: Any, timeout_s: float = 120.0) -> None:
    """Wait for something that another task brings about."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


async def update(client: DeploymentClient, most_s: float = 120.0) -> None:
    """One update, from the copy to the receipt."""
    assert await client.until(lambda: client.follower.version >= 0, most_s)
    start = client.begin()
    await client.send(start, client.finish(start, client._train))
    assert await client.until(lambda: not len(client.outbox), most_s)


def same(server: DeploymentServer, hidden_state: HiddenState) -> bool:
    """Whether a client holds the server's hidden state, bit for bit."""
    held = server.ledger.server.hidden_state
    return held.version == hidden_state.version and np.array_equal(held.vector, hidden_state.vector)


def replay(folder: Path, initial_model: Vector, algorithm: Algorithm, seed: int) -> Server:
    """The server that the whole journal makes of the initial model: what x and x̂ must be."""
    server, keys, batch = Server(initial_model, algorithm, seed), dict[int, int](), None
    for record in JournalReader(folder):
        if record.entry is Entry.STEP:
            assert batch is not None
            server.step(batch)
            continue
        upload = Message.from_bytes(record.data)
        applied = UploadNote.read(record, upload)
        if applied.key and keys.setdefault(upload.sender, applied.key) != applied.key:
            server.seen.windows.pop(upload.sender)
            keys[upload.sender] = applied.key
        batch = server.receive(upload._replace(weight=applied.weight), applied.factor).batch
    return server
