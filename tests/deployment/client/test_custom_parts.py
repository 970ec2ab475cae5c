"""A client imports only what its own user names, whatever a server or broker tells it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qafel.config import Config
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import MakeTrain, open_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.client.training import train_task
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement
from qafel.deployment.names import Names
from qafel.deployment.transport import cancel_and_wait
from qafel.errors import ConfigError
from tests.custom_parts import MODULE, write_folder
from tests.deployment.live import CONFIG, same, serving, until, update

HOSTILE = "hostile_module"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's current folder: it holds a module that leaves a trace if anybody imports it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"{HOSTILE}.py").write_text(f"open('trace', 'w').close()\n{MODULE}")
    return tmp_path


def named(role: str, part: Any) -> dict[str, Any]:
    """A configuration in which a part is named."""
    if role == "task":
        return {**CONFIG, "task": part if isinstance(part, dict) else {"name": part}}
    return {**CONFIG, "algorithm": {**CONFIG["algorithm"], role: part}}


async def take_part(
    folder: Path,
    access: Access,
    told: dict[str, Any],
    *,
    served: dict[str, Any] = CONFIG,
    parts: tuple[str, ...] = (),
    make_train: MakeTrain = train_task,
) -> None:
    """Make updates as a client of a server that serves one configuration, and tells its clients another."""
    settings = ClientSettings(patience_s=120, parts=parts)
    async with serving(folder / "run", access, Config.from_dict(served)) as server:
        server._agreement = replace(Agreement.from_bytes(server._agreement), config=Config.from_dict(told)).to_bytes()
        with ClientState(folder / "client") as state:
            client = await open_client(make_train, Names("live"), 0, state, access, settings)
            connection = asyncio.create_task(client.stay_connected())
            for _ in range(4):
                await update(client)
            await until(lambda: server.ledger.server.version and same(server, client.core.hidden_state))
            await cancel_and_wait([connection])


@pytest.mark.parametrize(
    ("role", "arguments"),
    [
        ("task", {}), ("task", {"clients": 5}), ("client_quantizer", {}), ("server_quantizer", {"clients": 5}),
        ("client_rule", {}), ("downlink", {"clients": 5}), ("catch_up", {}),
    ],
)  # fmt: skip
def test_a_path_that_only_the_server_names_is_refused_and_not_imported(
    folder: Path, access: Access, role: str, arguments: dict[str, Any]
) -> None:
    path = f"{HOSTILE}:Half"
    given = {"arguments": arguments} if role == "task" else arguments
    told = named(role, {"name": path, **given} if arguments else path)
    others = (f"{HOSTILE}:Rooms", "elsewhere:Half", f"{HOSTILE}.sub:Half")
    with pytest.raises(ConfigError, match=f"the run's {role} is {path}, .* `part` {path}$"):
        asyncio.run(take_part(folder, access, told, parts=others))
    assert HOSTILE not in sys.modules
    assert not (folder / "trace").exists()


@pytest.mark.parametrize(
    ("name", "setting"), [("link", "quantizer"), ("link", "first"), ("auto", "snapshot"), ("snapshot", "quantizer")]
)
def test_a_path_inside_another_part_is_refused_and_not_imported(
    folder: Path, access: Access, name: str, setting: str
) -> None:
    path = f"{HOSTILE}:Half"
    told = named("catch_up", {"name": name, setting: path})
    with pytest.raises(ConfigError, match=rf"the run's catch_up\.{setting} is {path}, .* `part` {path}$"):
        asyncio.run(take_part(folder, access, told))
    assert HOSTILE not in sys.modules
    assert not (folder / "trace").exists()


@pytest.mark.parametrize("role", ["task", "staleness", "accumulator", "server_rule"])
def test_what_a_client_does_not_need_it_does_not_import(folder: Path, access: Access, role: str) -> None:
    """The server's laws are the server's business, and who has a training function needs no task."""
    own_train: MakeTrain = lambda *_: (lambda start, *_: start.vector + 1, 1.0)  # noqa: E731
    told = named(role, f"{HOSTILE}:Halving")
    asyncio.run(take_part(folder, access, told, make_train=own_train if role == "task" else train_task))
    assert HOSTILE not in sys.modules
    assert not (folder / "trace").exists()


def test_what_the_client_names_it_imports_and_uses(folder: Path, access: Access) -> None:
    module = write_folder(folder)
    own = named("server_quantizer", f"{module}:Half")
    own["algorithm"] |= {"client_quantizer": f"{module}:Half", "staleness": f"{module}:only_fresh"}
    own["algorithm"] |= {"accumulator": f"{module}:Median", "server_rule": f"{module}:Step"}
    own["task"] = {"name": f"{module}:Rooms", "arguments": {"clients": 3}}
    parts = (f"{module}:Rooms", f"{module}:Half")
    asyncio.run(take_part(folder, access, own, served=own, parts=parts))
