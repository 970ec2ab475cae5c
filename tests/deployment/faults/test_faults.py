"""Nothing acknowledged is lost, nothing counts twice, all hold the same x̂, and the run ends: whatever happens.

The short form of `python -m tests.deployment.faults`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deployment.clock import CANNOT, Clock
from tests.deployment.faults import kinds
from tests.deployment.faults.kinds import KINDS, Fault, run_faults

_SHORT: list[Fault] = [kinds.kill_server, kinds.kill_client, kinds.wipe_broker]
_DAMAGE: list[Fault] = [kinds.flip_journal, kinds.fill_server_disk, kinds.flip_checkpoint]
_CONFUSION: list[Fault] = [kinds.malformed_headers, kinds.pause_broker, kinds.jump_clock, kinds.split_brain]
_STORE: list[Fault] = [
    kinds.damage_blocks, kinds.roll_back_broker, kinds.damage_consumers, kinds.stop_server_without_broker,
]  # fmt: skip
_ORDINARY: list[Fault] = [
    kinds.kill_server, kinds.cut_connections, kinds.kill_client, kinds.wipe_broker, kinds.client_leaves,
    kinds.kill_broker, kinds.client_joins, kinds.cut_connections,
]  # fmt: skip


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(_SHORT, id="short", marks=pytest.mark.slow),
        pytest.param([*_DAMAGE, *_CONFUSION, *_STORE], id="damage, confusion and store", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost_in_a_run_of_faults(tmp_path: Path, faults: list[Fault]) -> None:
    possible = [fault for fault in faults if fault in KINDS]
    outcome = run_faults(tmp_path, possible, seed=3, clients=2, longest_pause_s=1.5)
    assert outcome["counted"] >= outcome["acknowledged"] > 20


@pytest.mark.skipif(bool(CANNOT), reason=CANNOT)
def test_a_clock_that_is_off_is_that_of_the_process_alone(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    for off in (-50 * 365 * 86400, 0, 3600):
        clock.be_off(off)
        said = subprocess.check_output([sys.executable, "-c", "import time; print(time.time())"], env=clock.environment)
        assert abs(float(said) - time.time() - off) < 60


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_nothing_is_lost_to_any_kind_of_fault(tmp_path: Path) -> None:
    outcome = run_faults(tmp_path, [*KINDS, kinds.pause_server, kinds.split_brain], seed=4)
    assert outcome["counted"] >= outcome["acknowledged"] > 100


@pytest.mark.faults
def test_nothing_is_lost_without_keys_either(tmp_path: Path) -> None:
    outcome = run_faults(tmp_path, _ORDINARY, seed=1, secured=False)
    assert outcome["counted"] >= outcome["acknowledged"] > 50
