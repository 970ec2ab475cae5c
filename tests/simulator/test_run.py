"""From a configuration to a run directory; and the paper's claims on its first problem."""

import hashlib
import json

import pytest
import safetensors.numpy

from qafel.config import Config, load_recipe
from qafel.errors import DataError
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint
from qafel.runs.directory import CHECKPOINT
from qafel.runs.live import FunctionListener
from tests.running import run


def short(recipe, **changes):
    data = load_recipe(recipe, ["stop.server_steps=200"]).model_dump()
    return Config.from_dict({**data, **changes})


def test_a_run_directory_holds_what_a_reader_needs(tmp_path):
    config = short("mushrooms-qafel-4bit", evaluation={"every": 10, "target": 0.3})
    seen = []
    summary = run(config, tmp_path / "run", [FunctionListener(seen.append)], checkpoint_every_s=0)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.toml", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoint"} <= names
    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert rows == [row.to_json() for row in seen]
    assert Config.from_toml((tmp_path / "run/config.toml").read_text(), "saved") == config
    first = next(row for row in rows if row["metric"] <= 0.3)
    assert (summary["uploads_to_target"], summary["virtual_time_to_target"]) == (
        first["uploads"],
        first["virtual_time"],
    )
    assert summary["metric_final"] == rows[-1]["metric"]
    assert summary["metric_best"] == min(row["metric"] for row in rows)
    assert summary["status"] == "finished"
    assert 0 <= summary["overhead_share"] <= 1


def test_the_saved_model_is_the_servers(tmp_path):
    summary = run(short("mushrooms-fedbuff"), tmp_path)
    (saved,) = safetensors.numpy.load_file(tmp_path / "model.safetensors").values()
    assert hashlib.sha256(saved.tobytes()).hexdigest() == summary["model_sha256"]


def test_a_diverging_run_ends_with_what_it_has(tmp_path):
    summary = run(
        short("mushrooms-fedbuff", algorithm={"method": "fedbuff", "server_lr": 1e30, "client_lr": 1e30}), tmp_path
    )
    assert summary["status"] == "diverged"
    assert summary["server_steps"] < 200
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert all("NaN" not in line and "Infinity" not in line for line in lines)


TIMINGS = {
    "always-training": {},
    "network": {"network": {"upload_rate": 300.0, "download_rate": 1000.0, "spread": 0.5}, "dropout": 0.1},
    "poisson": {"arrivals": "poisson", "rate": 50.0, "max_concurrency": 30},
    "rounds": {"arrivals": "rounds", "over_selection": 0.3, "round_timeout": 1.5},
    "deadline": {"arrivals": "rounds", "round_timeout": 0.2},
    "links": {"arrivals": "poisson", "rate": 50.0, "dropout": 0.1},
    "links in rounds": {"arrivals": "rounds", "over_selection": 0.3, "round_timeout": 1.5},
}


OTHERS = {
    "deadline": {"partial": True},
    "network": {"server_quantizer": "top_k:0.01", "catch_up": {"name": "snapshot", "quantizer": "qsgd:8"}},
    "poisson": {"method": "fedbuff-direct", "catch_up": "per-start"},
    "rounds": {"method": "mcm"},
    "links": {"catch_up": "auto"},
    "links in rounds": {"catch_up": "link"},
}
"""What else is carried over an interruption, and with which timing it is tried."""


@pytest.mark.parametrize("timing", TIMINGS)
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, timing):
    """The run is broken off after an event chosen at random; what the checkpoint holds is all that survives."""
    algorithm = {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4", "server_momentum": 0.3}
    algorithm |= OTHERS.get(timing, {})
    config = short("mushrooms-qafel-4bit", timing=TIMINGS[timing], algorithm=algorithm, evaluation={"every": 7})
    whole = run(config, tmp_path / "whole")
    metrics = (tmp_path / "whole/metrics.jsonl").read_text()

    for stop_at in (5, 20):
        out = tmp_path / f"broken-{stop_at}"
        kill(config, out, 7 * stop_at)
        assert not (out / "summary.json").exists()
        resumed = run(config, out, resume=True, checkpoint_every_s=0)
        assert resumed["model_sha256"] == whole["model_sha256"]
        assert resumed["hidden_state_sha256"] == whole["hidden_state_sha256"]
        totals = ("uploads", "upload_bytes_total", "received_bytes_total", "received_by_all_bytes_total")
        for key in (*totals, "staleness_histogram", "virtual_time", "metric_best", "rejected"):
            assert resumed[key] == whole[key], key
        for key in ("out_of_time", "received_bytes_total"):
            assert resumed[key] == whole[key], key
        without_wall = [
            [_without_wall(line) for line in text.splitlines()]
            for text in (metrics, (out / "metrics.jsonl").read_text())
        ]
        assert without_wall[0] == without_wall[1]


class Killed(BaseException):
    pass


def kill(config, out, version, **options):
    """Break a run off at its first evaluation from this version on."""

    def break_off(row):
        if row.version >= version:
            raise Killed

    with pytest.raises(Killed):
        run(config, out, [FunctionListener(break_off)], **{"checkpoint_every_s": 0, **options})


def test_a_run_begun_anew_is_not_resumed_from_the_checkpoint_before(tmp_path):
    config = short("mushrooms-fedbuff", evaluation={"every": 10})
    kill(config, tmp_path, 100)
    kill(config, tmp_path, 0, checkpoint_every_s=1000)
    with pytest.raises(DataError, match="no checkpoint"):
        run(config, tmp_path, resume=True)


def test_lost_rows_are_not_made_up(tmp_path):
    config = short("mushrooms-fedbuff", evaluation={"every": 10})
    kill(config, tmp_path, 100)
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match="metrics.jsonl has 0 bytes, .* `overwrite`"):
        run(config, tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_resumed_runs_times_are_those_of_all_its_processes(tmp_path):
    config = short("mushrooms-fedbuff", evaluation={"every": 10})
    kill(config, tmp_path, 100)
    checkpoint = read_checkpoint(tmp_path / CHECKPOINT)
    assert checkpoint.values["progress"]["training_before_s"] > 0
    checkpoint.values["progress"].update(wall_before_s=1000.0, training_before_s=900.0)
    write_checkpoint(tmp_path / CHECKPOINT, checkpoint)
    summary = run(config, tmp_path, resume=True, checkpoint_every_s=0)
    assert summary["training_s"] > 900
    assert summary["overhead_share"] < 0.11
    again = read_checkpoint(tmp_path / CHECKPOINT).values["progress"]
    assert 900 < again["training_before_s"] <= summary["training_s"]


def _without_wall(line):
    return {key: value for key, value in json.loads(line).items() if key != "wall_s"}


def test_what_cannot_be_resumed_says_why(tmp_path):
    config = short("mushrooms-fedbuff")
    with pytest.raises(DataError, match="no checkpoint"):
        run(config, tmp_path / "no/such", resume=True)
    assert not (tmp_path / "no").exists()
    run(config, tmp_path, checkpoint_every_s=0)
    with pytest.raises(DataError, match="the checkpoint of another configuration"):
        run(short("mushrooms-fedbuff", seed=5), tmp_path, resume=True)
    data = bytearray((tmp_path / CHECKPOINT).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / CHECKPOINT).write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        run(config, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("steps", "direct_qsgd", "direct_topk"), [(1500, 1.1, 4), pytest.param(10_000, 5, 20, marks=pytest.mark.slow)]
)
def test_the_papers_claims_on_mushrooms_hold(tmp_path, steps, direct_qsgd, direct_topk):
    def reached(recipe):
        config = load_recipe(recipe, ["evaluation.every=1000", f"stop.server_steps={steps}"])
        return run(config, tmp_path / recipe, track=())["metric_final"]

    fedbuff = reached("mushrooms-fedbuff")
    assert reached("mushrooms-qafel-qsgd") < 1.15 * fedbuff
    assert reached("mushrooms-qafel-topk") < 1.15 * fedbuff
    assert reached("mushrooms-qafel-4bit") < 1.15 * fedbuff
    assert reached("mushrooms-direct-qsgd") > direct_qsgd * fedbuff
    assert reached("mushrooms-direct-topk") > direct_topk * fedbuff


def test_a_checkpoint_that_lacks_something_is_refused_in_a_sentence(tmp_path):
    config = short("mushrooms-fedbuff")
    run(config, tmp_path)
    checkpoint = read_checkpoint(tmp_path / CHECKPOINT)
    del checkpoint.arrays["fleet.sequences"]
    write_checkpoint(tmp_path / CHECKPOINT, checkpoint)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(DataError, match="fleet.sequences is missing"):
        run(config, tmp_path, resume=True)
