"""What an older or a newer qafel wrote is read, or refused in a sentence; no run silently starts from nothing.

`old_formats/` was written by the last commit before formats had versions: a stopped server's run directory with its
journal kept, one client's state, and the agreement that was on the broker.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from qafel.algorithm import HiddenState
from qafel.config import Config
from qafel.deployment.client.outbox import ClientState
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.journal import JournalReader, read_journal
from qafel.deployment.server.server import open_server
from qafel.errors import DamagedJournal, DataError
from qafel.files import read_checked, write_checked
from qafel.runs.directory import RunDirectory

OLD = Path(__file__).parent / "old_formats"
DIGEST = 17605703729112536060


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD / "run", tmp_path / "run"))


def _config() -> Config:
    return Config.from_toml((OLD / "run" / "config.toml").read_text(encoding="utf-8"), "the old run")


def _held(out: Path) -> tuple[int, int, int]:
    """Version, digest and uploads of the server that goes on in this folder."""
    config = _config()
    with (
        RunDirectory(out) as directory,
        open_server(config, directory, Access(), ServerSettings(), config.task.make()) as server,
    ):
        held = server.ledger.server
        return held.version, held.hidden_state.digest, server.ledger.traffic.uploads


def _checkpoints(out: Path) -> list[Path]:
    return sorted((out / "state").glob("checkpoint-*"))


def test_a_run_of_an_old_journal_goes_on(old_run: Path) -> None:
    for checkpoint in _checkpoints(old_run):
        checkpoint.unlink()
    before = list(read_journal(old_run / "state"))
    assert _held(old_run) == (3, DIGEST, 10)
    rows = (old_run / "metrics.jsonl").read_bytes()
    assert rows == (OLD / "run" / "metrics.jsonl").read_bytes()
    reader = JournalReader(old_run / "state")
    assert len(list(reader)) == 10
    journal = reader.go_on()
    journal.append(b"next")
    journal.close()
    assert (old_run / "state" / "journal-000000000010.log").read_bytes().startswith(b"qafel journal 3\n")
    assert list(read_journal(old_run / "state")) == [*before, b"next"]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_journal_of_version_2_gives_the_same_bits_and_goes_on(old_run: Path, checkpoint: bool) -> None:
    """`state-2` was written by the last commit of version 2: ten uploads, one of which was scaled down."""
    shutil.rmtree(old_run / "state")
    shutil.copytree(OLD / "state-2", old_run / "state")
    if not checkpoint:
        (old_run / "state" / "checkpoint-000000000006.qafel").unlink()
    assert _held(old_run) == (3, 2313071258245170225, 10)
    reader = JournalReader(old_run / "state")
    records = list(reader)
    assert [len(record.applied) for record in records] == [12] * 10
    journal = reader.go_on()
    journal.append(records[0].data)
    journal.close()
    assert len(list(read_journal(old_run / "state"))) == 11


def test_damage_in_a_journal_of_version_2_is_still_found(old_run: Path) -> None:
    shutil.rmtree(old_run / "state")
    shutil.copytree(OLD / "state-2", old_run / "state")
    (old_run / "state" / "checkpoint-000000000006.qafel").unlink()
    first = old_run / "state" / "journal-000000000000.log"
    damaged = bytearray(first.read_bytes())
    damaged[200] ^= 16
    first.write_bytes(damaged)
    with pytest.raises(DamagedJournal, match="is damaged at byte"):
        list(JournalReader(old_run / "state"))


def test_an_old_checkpoint_is_refused_and_nothing_is_lost(old_run: Path) -> None:
    with pytest.raises(DataError, match="finish the run with the qafel that wrote it, or begin anew"):
        _held(old_run)
    for path in (OLD / "run").rglob("*.*"):
        assert (old_run / path.relative_to(OLD / "run")).read_bytes() == path.read_bytes()


def test_a_journal_of_another_version_is_refused(old_run: Path) -> None:
    for path in (old_run / "state").glob("checkpoint-*"):
        path.unlink()
    first = old_run / "state" / "journal-000000000000.log"
    whole = b"qafel journal 4\n" + first.read_bytes()
    first.write_bytes(whole)
    with pytest.raises(DataError, match="version 4 of its format, and this qafel reads up to version 3: use"):
        _held(old_run)
    assert first.read_bytes() == whole


def test_checkpoints_of_another_version_do_not_let_a_run_start_from_nothing(old_run: Path) -> None:
    for old in _checkpoints(old_run):
        old.unlink()
        write_checked(old.with_suffix(".qafel"), "checkpoint", 99, b"from the future")
    first = old_run / "state" / "journal-000000000000.log"
    whole = first.read_bytes()
    first.unlink()
    with pytest.raises(DataError, match="version 99 of its format"):
        _held(old_run)
    first.write_bytes(whole)
    assert _held(old_run) == (3, DIGEST, 10)  # the whole journal is there, and says as much


def test_an_agreement_of_another_format_is_refused_in_a_sentence_and_tells_a_server_its_run_all_the_same() -> None:
    """Its signatures and receipts would not be understood; a server that was upgraded knows its own run by it."""
    data = (OLD / "agreement.json").read_bytes()
    assert Agreement.run_id_of(data) == (OLD / "run" / "state" / "run-id").read_text()
    with pytest.raises(DataError, match="has format 1, this qafel reads 2: upgrade the older end"):
        Agreement.from_bytes(data)
    now = json.dumps({**json.loads(data), "format": 2}).encode()
    agreement = Agreement.from_bytes(now)
    assert agreement.config == _config()
    assert agreement.layout.size == 16
    newer = json.dumps({**json.loads(data), "format": 3}).encode()
    with pytest.raises(DataError, match="has format 3, this qafel reads 2: upgrade the older end"):
        Agreement.from_bytes(newer)


@pytest.mark.parametrize("newer", [False, True])
def test_a_client_of_another_version_takes_the_snapshot_and_goes_on_with_its_numbers(
    tmp_path: Path, newer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(OLD / "client-0", tmp_path / "client-0"))
    old = json.loads((OLD / "agreement.json").read_bytes())
    agreement = Agreement.from_bytes(json.dumps({**old, "format": 2}).encode())
    if newer:
        write_checked(folder / "hidden-state", "hidden-state", 2, b"from the future")
    with ClientState(folder) as state:
        assert state.load(agreement.run_id, 16, agreement.algorithm()) is None
        (said,) = caplog.records
        assert said.levelno == logging.WARNING
        assert "starting from the server's snapshot" in said.getMessage()
        assert state.take_sequence() == int((OLD / "client-0" / "sequence").read_text())
        held = HiddenState.of(np.ones(16, np.float32), 5)
        state.save(agreement.run_id, held)
        loaded = state.load(agreement.run_id, 16, agreement.algorithm())
    assert loaded is not None
    assert loaded.digest == held.digest
    assert read_checked(folder / "hidden-state", "hidden-state", 1)
