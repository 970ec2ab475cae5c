"""A simulated run can be watched: it says how it stands, and its rows are there to read, while it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qafel.config import Config
from qafel.runs.live import FunctionListener, LiveState, read_live
from qafel.runs.progress import Row
from qafel.simulator import run as heartbeats
from tests.running import run

CONFIG = {
    "name": "watched",
    "task": {"name": "mushrooms", "clients": 20},
    "algorithm": {"method": "qafel", "client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4", "buffer_size": 4},
    "evaluation": {"every": 5, "target": 1e-9},
    "stop": {"server_steps": 40},
}


@pytest.fixture
def at_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "_HEARTBEAT_S", 0.0)


def states_of(tmp_path: Path, **changes: object) -> list[tuple[Row, LiveState]]:
    """What live.json said at every row."""
    found: list[tuple[Row, LiveState]] = []

    def look(row: Row) -> None:
        state = read_live(tmp_path / "run")
        assert state is not None
        found.append((row, state))

    run(Config.from_dict(CONFIG | changes), tmp_path / "run", [FunctionListener(look)], track=())
    return found


@pytest.mark.usefixtures("at_every_event")
def test_the_state_says_what_rows_say_and_who_trains(tmp_path: Path) -> None:
    found = states_of(tmp_path)
    assert len(found) == 9
    for row, state in found[1:]:
        told = (state.status, state.version, state.uploads, state.buffer_fill, state.buffer_size, state.metric)
        assert told == ("running", row.version, row.uploads, row.buffer_fill, 4, row.metric)
        assert state.upload_bytes_total == row.upload_bytes_total
        assert state.share_done == row.version / 40
        assert (state.clients, state.training_count, state.silent_count) == (20, 20, 0)
        assert set(state.training) == {str(client) for client in range(20)}
        assert 0 <= min(state.training.values()) <= max(state.training.values()) <= row.version
        assert state.hidden_state_lag == row.hidden_state_lag
        assert sum(state.staleness_histogram) == row.uploads
        assert (state.metric_name, state.metric_goal, state.target) == ("f(x) − f*", "min", 1e-9)


@pytest.mark.usefixtures("at_every_event")
def test_clients_that_dropped_out_are_named_as_silent(tmp_path: Path) -> None:
    found = states_of(tmp_path, timing={"dropout": 0.5})
    named = [state for _, state in found if state.silent]
    assert named
    for _, state in found:
        assert len(state.silent) == state.silent_count
        assert state.training_count + len(state.silent) == 20
        assert not state.silent.keys() & state.training.keys()


def test_a_finished_run_leaves_no_live_file(tmp_path: Path) -> None:
    assert states_of(tmp_path)
    assert not (tmp_path / "run" / "live.json").exists()


def test_a_run_that_breaks_off_says_so(tmp_path: Path) -> None:
    def interrupt(row: Row) -> None:
        if row.version >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Config.from_dict(CONFIG), tmp_path / "run", [FunctionListener(interrupt)], track=())
    found = read_live(tmp_path / "run")
    assert found is not None
    assert found.status == "stopped"
    run(Config.from_dict(CONFIG), tmp_path / "run", track=())
    assert not (tmp_path / "run" / "live.json").exists()


@pytest.mark.usefixtures("at_every_event")
def test_rows_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    seen: list[int] = []

    def count(_: Row) -> None:
        lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
        assert all(json.loads(line) for line in lines)
        seen.append(len(lines))

    run(Config.from_dict(CONFIG), tmp_path / "run", [FunctionListener(count)], track=())
    assert seen == list(range(1, 10))
