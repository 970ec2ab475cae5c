"""A run in MLflow, read back through MLflow's own client."""

from __future__ import annotations

import json
import socket
import time

import numpy as np
import pytest
import safetensors.numpy

from qafel.config import load_recipe
from qafel.runs.live import FunctionListener
from qafel.runs.trackers import Track
from qafel.search.runner import Watcher
from qafel.search.sweeps import grid, make_sweep, parse_settings
from tests.command import qafel_here
from tests.running import run

pytestmark = [
    pytest.mark.filterwarnings("default"),  # what MLflow and what it builds on warn of is not ours
    pytest.mark.filterwarnings("error:.*noload"),  # but for the version of SQLAlchemy, which is
    pytest.mark.usefixtures("with_mlflow"),
]


def short(*more, steps=20):
    return load_recipe("mushrooms-fedbuff", [f"stop.server_steps={steps}", "evaluation.every=5", *more])


def rows_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def the_run(store):
    (found,) = runs_in(store)
    return found


def runs_in(store):
    experiment = store.get_experiment_by_name("qafel")
    return store.search_runs([experiment.experiment_id])


def history(store, tracked, name):
    return sorted((metric.step, metric.value) for metric in store.get_metric_history(tracked.info.run_id, name))


def test_a_run_has_its_rows_by_uploads_its_settings_and_its_files(tmp_path, store):
    summary = run(short(), tmp_path / "mine", track="mlflow")
    tracked, rows = the_run(store), rows_of(tmp_path / "mine")
    assert history(store, tracked, "f_x_-_f") == [(row["uploads"], row["metric"]) for row in rows]
    for name in ("upload_bytes_total", "broadcast_bytes_total", "virtual_time", "version", "hidden_state_lag"):
        assert history(store, tracked, name) == [(row["uploads"], row[name]) for row in rows]
    times = [metric.timestamp for metric in store.get_metric_history(tracked.info.run_id, "uploads")]
    assert [at - tracked.info.start_time for at in sorted(times)] == [int(1000 * row["wall_s"]) for row in rows]
    assert tracked.info.run_name == "mine"
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["algorithm.method"] == "fedbuff"
    assert tracked.data.params["stop.server_steps"] == "20"
    assert tracked.data.params["seed"] == "0"
    assert tracked.data.tags["qafel.metric"] == "f(x) − f*"
    assert tracked.data.tags["qafel.status"] == "finished"
    assert tracked.data.metrics["summary/metric_best"] == summary["metric_best"]
    files = {file.path for file in store.list_artifacts(tracked.info.run_id)}
    assert files == {"config.toml", "metrics.jsonl", "summary.json", "model.safetensors"}
    model = store.download_artifacts(tracked.info.run_id, "model.safetensors", str(tmp_path))
    (weights,) = safetensors.numpy.load_file(model).values()
    (own,) = safetensors.numpy.load_file(tmp_path / "mine/model.safetensors").values()
    np.testing.assert_array_equal(weights, own)


class Interrupted(Exception):
    pass


def interrupt_at(version):
    def interrupt(row):
        if row.version >= version:
            time.sleep(0.3)  # so that rows after the checkpoint are sent
            raise Interrupted

    return FunctionListener(interrupt)


def test_a_resumed_run_goes_on_in_the_same_tracked_run_and_no_row_comes_twice(tmp_path, store):
    path = tmp_path / "mine"
    with pytest.raises(Interrupted):
        run(short(), path, [interrupt_at(15)], track="mlflow", checkpoint_every_s=0.0)
    before = the_run(store)
    assert before.info.status == "KILLED"
    assert before.data.tags["qafel.status"] == "failed"
    run(short(steps=30), path, track="mlflow", resume=True)
    after, rows = the_run(store), rows_of(path)
    assert after.info.run_id == before.info.run_id
    assert after.info.status == "FINISHED"
    assert [row["version"] for row in rows] == [0, 5, 10, 15, 20, 25, 30]
    assert history(store, after, "f_x_-_f") == [(row["uploads"], row["metric"]) for row in rows]
    assert after.data.params["stop.server_steps"] == "20"  # MLflow never changes a parameter
    assert after.data.tags["stop.server_steps"] == "30"


def test_a_run_that_is_tracked_only_since_it_was_resumed_has_all_its_rows(tmp_path, store):
    path = tmp_path / "mine"
    with pytest.raises(Interrupted):
        run(short(), path, [interrupt_at(10)], track="none", checkpoint_every_s=0.0)
    run(short(), path, track="mlflow", resume=True)
    assert len(history(store, the_run(store), "uploads")) == len(rows_of(path)) == 5


def test_a_run_made_again_is_another_tracked_run(tmp_path, store):
    run(short(), tmp_path / "mine", track="mlflow")
    run(short(), tmp_path / "mine", track="mlflow")
    first, second = runs_in(store)
    assert history(store, first, "uploads") == history(store, second, "uploads")


def test_a_run_that_was_deleted_in_the_store_is_tracked_anew(tmp_path, store):
    run(short(), tmp_path / "mine", track="mlflow")
    store.delete_run(the_run(store).info.run_id)
    run(short(steps=30), tmp_path / "mine", track="mlflow", resume=True)
    assert len(history(store, the_run(store), "uploads")) == len(rows_of(tmp_path / "mine"))


def test_the_seeds_of_a_sweep_stand_below_one_run_also_when_it_is_repeated(tmp_path, store):
    def sweep(seeds):
        settings = parse_settings(["stop.server_steps=5", "algorithm.client_lr=1,2"])
        runs = grid(["mushrooms-fedbuff"], seeds, settings)
        return make_sweep(runs, tmp_path, Watcher(), workers=1, track=Track(("mlflow",)))

    assert not sweep([0]).failed
    assert not sweep([0, 1]).failed
    runs = runs_in(store)
    parents = {tracked.info.run_id: tracked for tracked in runs if "mlflow.parentRunId" not in tracked.data.tags}
    below = [
        (parents[tracked.data.tags["mlflow.parentRunId"]].info.run_name, tracked.data.params["seed"])
        for tracked in runs
        if tracked.info.run_id not in parents
    ]
    names = ["mushrooms-fedbuff-client_lr=1", "mushrooms-fedbuff-client_lr=2"]
    assert sorted(below) == [(name, seed) for name in names for seed in "01"]
    assert len(parents) == 2
    assert all("seed" not in parent.data.params for parent in parents.values())


def test_a_store_that_the_user_names_is_used(tmp_path, store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the user")
    store.create_experiment("of the user", artifact_location=(tmp_path / "files").as_uri())
    run(short(), tmp_path / "elsewhere/mine", track="mlflow")
    experiment = store.get_experiment_by_name("of the user")
    assert len(store.search_runs([experiment.experiment_id])) == 1
    assert not (tmp_path / "elsewhere/mlflow.db").exists()


@pytest.fixture
def nobody(monkeypatch):
    """The address of a server that is gone."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def test_a_server_that_is_gone_is_said_once_and_harms_no_run(tmp_path, nobody):
    said = []
    summary = run(short(), tmp_path / "mine", track="mlflow", say=said.append)
    assert summary["model_sha256"] == run(short(), tmp_path / "other", track="none")["model_sha256"]
    assert len(said) == 1
    assert said[0].startswith("mlflow")


def test_a_server_that_is_gone_is_said_once_for_a_sweep(tmp_path, nobody, caplog):
    runs = grid(["mushrooms-fedbuff"], [0, 1], parse_settings(["stop.server_steps=5"]))
    found = make_sweep(runs, tmp_path, Watcher(), workers=1, track=Track(("mlflow",)))
    assert [row["status"] for row in found.rows] == ["finished"] * 2
    assert caplog.text.count("mlflow does not accept") == 1


def test_the_command_says_so_too(tmp_path, nobody):
    out = tmp_path / "mine"
    _, errors = qafel_here(
        "run", "mushrooms-fedbuff", "--set", "stop.server_steps=5", "--out", out, "--track", "mlflow"
    )
    assert errors.count("warning: mlflow") == 1
