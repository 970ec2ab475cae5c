"""A client whose training fails says so to the server and tries again, and ends after many failures in a row."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import HiddenState, LocalTraining
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client import ClientReport, ClientSettings
from qafel.deployment.client.client import DeploymentClient, open_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.names import FAILED, Names
from qafel.deployment.server import ServerSettings
from qafel.deployment.status import read_status
from qafel.errors import TrainingFailed
from qafel.params import Vector
from qafel.rng import Stream
from tests.deployment.live import serving, until
from tests.deployment.processes import Command

SETTINGS = ClientSettings(max_updates=2, patience_s=120, failure_pause_s=0.01)


@contextlib.asynccontextmanager
async def _client(
    folder: Path, access: Access, train: Any, settings: ClientSettings = SETTINGS
) -> AsyncIterator[DeploymentClient]:
    with ClientState(folder) as state:
        yield await open_client(lambda *_: (train, 1.0), Names("live"), 3, state, access, settings)


def _raises(start: HiddenState) -> Vector:
    raise ValueError("no data \x1b[2J today")


def _is_not_finite(start: HiddenState) -> Vector:
    return np.full_like(start.vector, np.nan)


def _is_no_vector(start: HiddenState) -> Vector:
    return np.zeros(3)


@pytest.mark.parametrize(
    ("fail", "why"), [(_raises, "no data"), (_is_not_finite, "NaN"), (_is_no_vector, "not a NumPy array")]
)
def test_a_failure_is_told_to_the_server_and_training_goes_on(
    fail: Callable[[HiddenState], Vector], why: str, tmp_path: Path, access: Access
) -> None:
    seen: dict[str, Any] = {}

    async def check() -> ClientReport:
        async with serving(tmp_path / "run", access, settings=ServerSettings(heartbeat_s=0.1)) as server:

            def train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
                failed = seen["times"] = seen.get("times", -1) + 1
                asyncio.run_coroutine_threadsafe(told_of(failed), loop).result()
                if failed < 2:
                    return fail(start)
                if failed == 2:
                    asyncio.run_coroutine_threadsafe(look(), loop).result()
                return start.vector * np.float32(0.5)

            async def told_of(failures: int) -> None:
                """Until the server has heard of them: of two in quick succession, a client tells the last."""
                await until(lambda: server.intake.counts["failed_trainings"] >= min(failures, 2))

            async def look() -> None:
                seen["failing"] = dict(server.intake.failing)
                while "told" not in seen:
                    await asyncio.sleep(0.05)
                    (run,) = await read_status(access)
                    if run.state.failing_count:
                        seen["told"] = run.state.failing

            loop = asyncio.get_running_loop()
            async with _client(tmp_path / "client", access, train) as client:
                report = await client.run()
            await until(lambda: not server.intake.failing)
            return report

    report = asyncio.run(check())
    assert report.outcomes == {"failed": 2, "accepted": 2}
    assert why in seen["failing"][3]
    assert "\x1b" not in seen["failing"][3]
    assert seen["told"] == {"3": seen["failing"][3]}


def test_many_failures_in_a_row_end_the_client_with_the_sentence(tmp_path: Path, access: Access) -> None:
    def train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        raise ValueError("never")

    async def check() -> None:
        settings = ClientSettings(max_failures=3, patience_s=120, failure_pause_s=0.01)
        async with serving(tmp_path / "run", access) as server:
            async with _client(tmp_path / "client", access, train, settings) as client:
                with pytest.raises(TrainingFailed, match="3 times in a row.*never"):
                    await client.run()
            await until(lambda: "never" in server.intake.failing.get(3, ""))

    asyncio.run(check())


def _dies(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
    if start.version == 0 and not os.path.exists(mark := os.environ["QAFEL_TEST_MARK"]):
        Path(mark).touch()
        os._exit(1)
    return start.vector * np.float32(0.5)


def test_a_worker_process_that_dies_is_a_failure_of_training(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAFEL_TEST_MARK", str(tmp_path / "mark"))
    settings = ClientSettings(max_updates=1, patience_s=120, failure_pause_s=0.01, worker="process")

    async def check() -> ClientReport:
        async with (
            serving(tmp_path / "run", access),
            _client(tmp_path / "client", access, _dies, settings) as client,
        ):
            return await client.run()

    assert asyncio.run(check()).outcomes == {"failed": 1, "accepted": 1}


def test_the_command_exits_with_one(tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_training.py").write_text("def train(start, local, stream):\n    raise ValueError('never')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))

    async def check() -> Command:
        async with serving(tmp_path / "run", access):
            client = Command(
                "client", tmp_path / "client.out", "--run", "live", "--client-id", "0", "--broker", access.servers[0],
                "--train", "failing_training:train", "--state", str(tmp_path / "client"), "--max-failures", "2",
            )  # fmt: skip
            await until(lambda: not client.alive)
            return client

    client = asyncio.run(check())
    assert client.process.returncode == 1
    assert client.said("training failed 2 times in a row")


def test_only_a_client_itself_can_say_that_its_training_fails(tmp_path: Path) -> None:
    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m").path

    async def check() -> None:
        owner = Access.of(None, folder / "server")
        async with serving(tmp_path / "run", owner) as server, session(owner, "server") as broker:
            await until(lambda: server._session_id)
            for headers in ({FAILED: "1"}, {FAILED: "many"}):
                await broker.store(Names("live").upload(1), b"says who?", headers)
            await until(lambda: sum(server.ledger.server.rejected.values()) == 2)
            assert server.ledger.server.rejected == {"signature": 1, "malformed-header": 1}
            assert not server.intake.failing

    with LocalBroker(folder, port=port):
        asyncio.run(check())


def test_failing_clients_are_bounded(tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qafel.deployment.server.intake._REMEMBERED", 2)

    async def check() -> None:
        async with serving(tmp_path / "run", access) as server:
            for client in range(4):
                message = SimpleNamespace(subject=f"x.{client}", data=b"\xff" * 9999, headers={FAILED: "1"})
                server.intake._hear_of_failure(client, message)  # type: ignore[arg-type]
            assert list(server.intake.failing) == [2, 3]
            assert len(server.intake.failing[3]) <= 120

    asyncio.run(check())
