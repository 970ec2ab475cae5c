"""What another version of qafel wrote is refused in a sentence and left as it is; no run starts from nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import Held, HiddenState, Message
from qafel.config import Config
from qafel.deployment.client.state import ClientState, Kept
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.server import open_server
from qafel.errors import DamagedJournal, DataError
from qafel.files import read_checked, write_checked
from qafel.params import Layout
from qafel.runs.directory import RunDirectory
from tests.deployment.live import CONFIG
from tests.uploads import upload_of

FIRST = "journal-000000000000.log"


def _held(out: Path, uploads: int = 0, checkpoint: bool = False) -> tuple[int, int, int]:
    """Version, digest and uploads of the server of this folder, once it has taken some more uploads."""
    config = Config.from_dict(CONFIG)
    with (
        RunDirectory(out) as directory,
        open_server(config, directory, Access(), ServerSettings(), config.task.make()) as server,
    ):
        ledger, held = server.ledger, server.ledger.server
        for sequence in range(uploads):
            start = held.hidden_state
            frame = upload_of(start, start.vector + np.float32(0.1), held.algorithm, sequence=sequence)
            ledger.take(frame, Message.from_bytes(frame))
            ledger.step_if_due()
        if checkpoint and (write := ledger.begin_checkpoint(1)) is not None:
            ledger.journal.sync()
            write()
        return held.version, held.hidden_state.digest, ledger.traffic.uploads


@pytest.mark.parametrize("version", [1, 3, 5])
def test_a_journal_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    _held(tmp_path, uploads=5)
    first = tmp_path / "state" / FIRST
    whole = first.read_bytes().replace(b"qafel journal 4", b"qafel journal %d" % version)
    first.write_bytes(whole)
    with pytest.raises(DataError, match=f"version {version}"):
        _held(tmp_path)
    assert first.read_bytes() == whole


def test_a_journal_without_a_header_is_refused_and_not_cut_off(tmp_path: Path) -> None:
    _held(tmp_path, uploads=5)
    first = tmp_path / "state" / FIRST
    whole = first.read_bytes().partition(b"\n")[2].partition(b"\n")[2].replace(b"\x89QJ\n", b"")
    first.write_bytes(whole)
    (tmp_path / "state" / "synced").unlink()
    with pytest.raises(DamagedJournal, match="restore it"):
        _held(tmp_path)
    assert first.read_bytes() == whole


def test_checkpoints_of_another_version_do_not_let_a_run_start_from_nothing(tmp_path: Path) -> None:
    before = _held(tmp_path, uploads=5, checkpoint=True)
    (saved,) = (tmp_path / "state").glob("checkpoint-*.qafel")
    write_checked(saved, "checkpoint", 99, b"from the future")
    first = tmp_path / "state" / FIRST
    whole = first.read_bytes()
    first.unlink()
    with pytest.raises(DataError, match="version 99"):
        _held(tmp_path)
    first.write_bytes(whole)
    assert _held(tmp_path) == before, "the whole journal is there"


def _agreement(**changed: Any) -> bytes:
    agreement = Agreement("0123456789abcdef", Config.from_dict(CONFIG), Layout.flat(113)).to_bytes()
    return json.dumps({**json.loads(agreement), **changed}).encode()


@pytest.mark.parametrize("number", [1, 3])
def test_an_agreement_of_another_format_is_refused(number: int) -> None:
    assert Agreement.run_id_of(_agreement()) == Agreement.from_bytes(_agreement()).run_id == "0123456789abcdef"
    for read in (Agreement.from_bytes, Agreement.run_id_of):
        with pytest.raises(DataError, match=f"has format {number}, this qafel reads 2"):
            read(_agreement(format=number))


def test_a_client_of_another_version_takes_the_snapshot_and_continues_with_its_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agreement = Agreement.from_bytes(_agreement())
    algorithm, held = agreement.algorithm(), HiddenState.of(np.ones(113, np.float32), 5)
    with ClientState(tmp_path) as state:
        state.save(agreement.run_id, Kept(held, Held(700)))
        used = state.take_sequence()
        state.give_back()
    write_checked(tmp_path / "hidden-state", "hidden-state", 4, b"from the future")
    with ClientState(tmp_path) as state:
        assert state.load(agreement.run_id, 113, algorithm) is None
        (said,) = caplog.records
        assert said.levelno == logging.WARNING
        assert "starting from the server's snapshot" in said.getMessage()
        assert state.take_sequence() == used + 1
        state.save(agreement.run_id, Kept(held, Held(700)))
        loaded = state.load(agreement.run_id, 113, algorithm)
    assert loaded is not None
    assert (loaded.hidden_state.digest, loaded.held.position) == (held.digest, 700)
    assert read_checked(tmp_path / "hidden-state", "hidden-state", 3)
