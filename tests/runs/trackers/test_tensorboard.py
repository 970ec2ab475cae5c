"""A run as TensorBoard events, read back by TensorBoard."""

from __future__ import annotations

import json

import pytest

from qafel.config import load_recipe
from qafel.runs.live import FunctionListener
from tests.running import run

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no TensorBoard")


def short(steps=20):
    return load_recipe("mushrooms-fedbuff", [f"stop.server_steps={steps}", "evaluation.every=5"])


def events_and_rows(path):
    events = accumulator.EventAccumulator(str(path))
    events.Reload()
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return events, rows


def test_tensorboard_reads_the_events(tmp_path):
    run(short(), tmp_path)
    events, rows = events_and_rows(tmp_path)
    metric = events.Scalars("f_x_-_f")
    assert [event.step for event in metric] == [row["uploads"] for row in rows]
    assert [event.value for event in metric] == pytest.approx([row["metric"] for row in rows], rel=1e-6)
    assert "hidden_state_lag" in events.Tags()["scalars"]


def test_a_resumed_run_shows_every_row_once(tmp_path):
    def interrupt(row):
        if row.version >= 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(short(), tmp_path, [FunctionListener(interrupt)], checkpoint_every_s=0.0)
    run(short(), tmp_path, resume=True)
    events, rows = events_and_rows(tmp_path)
    assert [event.step for event in events.Scalars("f_x_-_f")] == [row["uploads"] for row in rows]


def test_a_run_made_again_leaves_no_events_of_the_one_before(tmp_path):
    run(short(40), tmp_path)
    run(short(20), tmp_path)
    events, rows = events_and_rows(tmp_path)
    assert [event.step for event in events.Scalars("f_x_-_f")] == [row["uploads"] for row in rows]


def test_no_events_are_written_if_none_are_asked_for(tmp_path):
    run(short(), tmp_path, track="none")
    assert not list(tmp_path.glob("events.*"))
    assert not (tmp_path / "trackers").exists()
