"""Kills, cuts and a wiped broker: nothing acknowledged is lost, nothing counts twice, all hold the same x̂."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deployment.faults import run_faults


@pytest.mark.slow
def test_no_update_is_lost_to_damage_or_to_two_servers(tmp_path: Path) -> None:
    kinds = [
        "fill_disk",
        "flip_journal",
        "second_server",
        "split_brain",
        "flip_checkpoint",
        "pause_server",
        "second_server",
    ]
    outcome = run_faults(tmp_path, [*kinds, "split_brain", "kill_server"], seed=3, secured=True)
    assert int(str(outcome["counted"])) >= int(str(outcome["acknowledged"])) > 50


@pytest.mark.slow
def test_training_survives_every_kind_of_fault(tmp_path: Path) -> None:
    kinds = ["kill_server", "cut_connections", "kill_client", "wipe_broker", "client_leaves", "kill_broker"]
    outcome = run_faults(tmp_path, [*kinds, "client_joins", "cut_connections"], seed=1)
    assert int(str(outcome["counted"])) >= int(str(outcome["acknowledged"])) > 50
