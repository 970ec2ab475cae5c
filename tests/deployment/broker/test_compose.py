"""The example for containers, as far as it can be held to without them: who sees which keys, what goes into the image.

The broker is real, and runs on the files that its container would see.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.connection import session
from qafel.deployment.keys import Access

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "deployment"
SERVICES: dict[str, Any] = yaml.safe_load((EXAMPLE / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


def _container(service: str, place: Path, keys: Path) -> Path:
    """A folder with what a container of the example sees, if `keys` is the folder that `qafel broker init` wrote."""
    for volume in SERVICES[service]["volumes"]:
        source, inside, *_ = volume.split(":")
        if not source.startswith("."):
            continue  # a volume of its own, empty at first
        found = keys / source.removeprefix("./broker/") if source.startswith("./broker") else EXAMPLE / source
        target = place / inside.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if found.is_dir() else shutil.copy
        copy(found, target)
    return place


def test_the_broker_runs_on_what_it_sees_and_that_is_nobodys_key(tmp_path: Path) -> None:
    port = free_port()
    keys = BrokerFolder.init(tmp_path / "keys", 2, port=port).path
    seen = _container("broker", tmp_path / "container", keys)
    secrets = {
        path.relative_to(seen / "broker").as_posix() for path in seen.rglob("*") if path.name.endswith("key.pem")
    }
    assert secrets == {"broker/key.pem"}, "its own certificate's"
    assert not list(seen.rglob("*.nk"))
    (seen / "broker" / "broker.json").touch()  # which tells LocalBroker that the folder brings its configuration

    async def connect() -> None:
        for name in ("server", "clients/1"):
            access = Access.of(None, keys / name)
            async with session(access, access.name, patience_s=120):
                pass

    with LocalBroker(seen / "broker", port=port):
        asyncio.run(connect())


@pytest.mark.parametrize("service", [name for name in SERVICES if name != "broker"])
def test_every_other_container_sees_its_own_keys_only(service: str, tmp_path: Path) -> None:
    keys = BrokerFolder.init(tmp_path / "keys", 5).path
    seen = _container(service, tmp_path / "container", keys)
    own = Access.of(None, seen / "keys")
    assert own.name == service.removeprefix("client-")
    assert {path.name for path in seen.rglob("*.nk")} <= {"user.nk", "signing.nk"}
    assert len(list(seen.rglob("user.nk"))) == 1


def test_the_image_is_made_of_the_package_alone() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    copied = [
        source
        for line in (EXAMPLE / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY")
        for source in line.split()[1:-1]
    ]
    assert {pattern[1:] for pattern in patterns if pattern.startswith("!")} == set(copied)
    assert all((ROOT / source).exists() for source in copied)


def test_the_containers_have_no_rights_and_the_tested_versions() -> None:
    lines = (EXAMPLE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    (user,) = [line.split()[1] for line in lines if line.startswith("USER")]
    assert int(user.split(":")[0]) > 0
    assert lines.index(f"USER {user}") > max(number for number, line in enumerate(lines) if line.startswith("RUN"))
    (install,) = [line for line in lines if "pip install" in line]
    assert "-c /qafel/constraints.txt" in install
    for name, service in SERVICES.items():
        if name != "broker":
            assert service["user"] == "${QAFEL_USER:-1000}"
            assert service["cap_drop"] == ["ALL"]


def test_only_this_machine_reaches_the_metrics() -> None:
    """Neither another machine nor a client's container does."""
    assert all(port.startswith("127.0.0.1:") for service in SERVICES.values() for port in service.get("ports", ()))
    near_server = {
        name for name, service in SERVICES.items() if set(service["networks"]) & set(SERVICES["server"]["networks"])
    }
    assert near_server == {"server", "broker"}
    assert all(set(SERVICES[name]["networks"]) & set(SERVICES["broker"]["networks"]) for name in SERVICES)


@pytest.mark.parametrize(
    "place", ["broker/server/signing.nk", "examples/deployment/broker/ca/ca-key.pem", "clients/r/0"]
)
def test_keys_and_the_clients_state_are_never_committed(place: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    assert subprocess.run(["git", "check-ignore", "-q", place], cwd=ROOT, check=False).returncode == 0
