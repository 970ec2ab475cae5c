"""A registry that cannot be read never lets anyone in, and never ends a run."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from qafel.deployment.broker.folder import BrokerFolder
from qafel.deployment.keys import Access
from qafel.deployment.server.intake import UploadChecker
from qafel.deployment.settings import DefenceSettings
from qafel.errors import ConfigError


def _checker(keys: dict[int, str] | None) -> UploadChecker:
    algorithm: Any = None
    return UploadChecker(algorithm, DefenceSettings(), 5, keys)


def test_a_server_that_signs_does_not_start_without_its_registry(tmp_path: Path) -> None:
    folder = BrokerFolder.init(tmp_path / "broker", 1).path
    (folder / "server" / "clients.json").unlink()
    with pytest.raises(ConfigError, match=r"clients\.json is missing"):
        Access.of(None, folder / "server").registry()
    assert Access.of(None, folder / "clients" / "0").registry() is None
    assert Access().registry() is None


@pytest.mark.parametrize("left", [None, b"", b'{"0": "UAB', b"[]"])
def test_a_registry_that_is_being_replaced_leaves_the_last_one_in_force(
    tmp_path: Path, left: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = BrokerFolder.init(tmp_path / "broker", 1)
    access, path = Access.of(None, folder.path / "server"), folder.path / "server" / "clients.json"
    checker = _checker(access.registry())
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    for _ in range(3):
        asyncio.run(checker.renew_keys(access))
    assert checker.knows(0)
    assert not checker.knows(1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    folder.add([1])
    asyncio.run(checker.renew_keys(access))
    assert checker.knows(1)
    path.unlink()
    asyncio.run(checker.renew_keys(access))
    assert len(caplog.records) == 2


def test_a_registry_that_vanishes_where_nothing_is_signed_stays_in_force_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checker = _checker({0: "a key"})
    asyncio.run(checker.renew_keys(Access(folder=tmp_path)))
    assert checker.knows(0)
    assert not checker.knows(1)  # which it would without keys
    assert "is gone" in caplog.text


def test_a_run_that_never_had_a_registry_is_not_warned_of_it(caplog: pytest.LogCaptureFixture) -> None:
    checker = _checker(None)
    asyncio.run(checker.renew_keys(Access()))
    assert checker.knows(1)
    assert not caplog.records
