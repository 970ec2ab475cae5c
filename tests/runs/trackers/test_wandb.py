"""A run in Weights & Biases, offline, read back from the file that `wandb sync` would send."""

from __future__ import annotations

import json
import struct
import time

import pytest

from qafel.config import load_recipe
from qafel.runs.live import FunctionListener
from qafel.runs.trackers import Track
from qafel.search.runner import Watcher
from qafel.search.sweeps import grid, make_sweep, parse_settings
from tests.running import run

pytestmark = [
    pytest.mark.filterwarnings("default"),  # what W&B and what it builds on warn of is not ours
    pytest.mark.usefixtures("with_wandb"),
]


def short(steps=20):
    return load_recipe("mushrooms-fedbuff", [f"stop.server_steps={steps}", "evaluation.every=5"])


def records(path):
    """The records of all offline files of a run, oldest first: a header, then LevelDB's log format of protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(path.glob("wandb/offline-run-*/*.wandb")):
        data, at, whole = file.read_bytes(), 7, b""
        assert data.startswith(b":W&B")
        while at + 7 <= len(data):
            if (left := 32768 - at % 32768) < 7:
                at += left
                continue
            _, length, kind = struct.unpack_from("<IHB", data, at)
            whole += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # whole, or the last part
                yield Record.FromString(whole)
                whole = b""


def of_kind(path, kind):
    """The records of a kind, once W&B's own process has written the last one of every file."""
    while len(_of_kind(path, "exit")) < len(list(path.glob("wandb/offline-run-*"))):
        time.sleep(0.1)
    return _of_kind(path, kind)


def _of_kind(path, kind):
    return [getattr(record, kind) for record in records(path) if record.WhichOneof("record_type") == kind]


def logged(path):
    lines = of_kind(path, "history")
    rows = ({item.key or item.nested_key[0]: json.loads(item.value_json) for item in line.item} for line in lines)
    return [row for row in rows if "uploads" in row]


def rows_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_run_has_its_rows_by_uploads_its_settings_its_group_and_its_files(tmp_path):
    summary, path = run(short(), tmp_path / "mine", track="wandb"), tmp_path / "mine"
    found, rows = logged(path), rows_of(path)
    for name in ("uploads", "upload_bytes_total", "virtual_time", "wall_s"):
        assert [row[name] for row in found] == [row[name] for row in rows]
    assert [row["f_x_-_f"] for row in found] == [row["metric"] for row in rows]
    assert [row["_step"] for row in found] == [row["uploads"] for row in rows]
    (begun,) = of_kind(path, "run")
    assert begun.project == "qafel"
    assert begun.display_name == "mine"
    assert begun.run_group == "mushrooms-fedbuff"
    config = {update.key: json.loads(update.value_json) for update in begun.config.update}
    assert config["algorithm"]["method"] == "fedbuff"
    assert ("*", "uploads") in [(metric.glob_name, metric.step_metric) for metric in of_kind(path, "metric")]
    kept = {update.key: update.value_json for change in of_kind(path, "summary") for update in change.update}
    assert json.loads(kept["metric_best"]) == summary["metric_best"]
    (files,) = of_kind(path, "artifact")
    names = {entry.path for entry in files.manifest.contents}
    assert names == {"config.toml", "metrics.jsonl", "summary.json", "model.safetensors"}


def test_a_resumed_run_goes_on_in_the_same_tracked_run_and_no_row_comes_twice(tmp_path):
    path = tmp_path / "mine"

    def interrupt(row):
        if row.version >= 15:
            time.sleep(0.3)  # so that rows after the checkpoint are sent
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(short(), path, [FunctionListener(interrupt)], track="wandb", checkpoint_every_s=0.0)
    time.sleep(1.0)  # files of one run are sent in the order of the second in which they began
    run(short(), path, track="wandb", resume=True)
    first, second = of_kind(path, "run")
    assert first.run_id == second.run_id
    assert [row["uploads"] for row in logged(path)] == [row["uploads"] for row in rows_of(path)]


def test_the_seeds_of_a_sweep_are_a_group(tmp_path):
    runs = grid(["mushrooms-fedbuff"], [0, 1], parse_settings(["stop.server_steps=5", "algorithm.client_lr=1,2"]))
    assert not make_sweep(runs, tmp_path, Watcher(), workers=1, track=Track(("wandb",))).failed
    groups = {planned.folder: of_kind(tmp_path / planned.folder, "run")[0].run_group for planned in runs}
    assert groups == {planned.folder: planned.config.name for planned in runs}


def test_a_run_of_the_users_own_in_the_same_process_stays_as_it_is(tmp_path):
    import wandb

    own = wandb.init(mode="offline", dir=str(tmp_path), project="own", settings=wandb.Settings(console="off"))
    try:
        run(short(5), tmp_path / "mine", track="wandb")
        assert wandb.run is own
        own.log({"x": 1})
    finally:
        own.finish()


def test_a_server_that_is_gone_is_said_once_and_harms_no_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    from qafel.runs.trackers import wandb as own

    monkeypatch.setattr(own, "_INIT_S", 1)
    said = []
    summary = run(short(), tmp_path / "mine", track="wandb", say=said.append)
    assert summary["status"] == "finished"
    assert len(said) == 1
    assert said[0].startswith("wandb")
