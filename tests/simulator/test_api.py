"""`simulate` from Python: with `out` it writes the run directory of the command line, for any task."""

import json
import os
import signal
import threading
import warnings

import numpy as np
import pytest

from qafel import Evaluation, HalfNormal, Layout, Limits, LogNormal, Quadratic, Timing, method, simulate
from qafel.config import load_recipe
from qafel.errors import ConfigError, DataError, OutputError
from qafel.report import write_report
from qafel.runs.directory import state_of
from qafel.runs.reading import Run


class OwnTask:
    """Nothing of the package's: learn the mean of the clients' points."""

    name, metric_name, metric_goal = "own", "distance", "min"
    clients = 5
    layout = Layout.of({"point": (3,)})

    def samples(self, client):
        return 1

    def initial_model(self, stream):
        return np.zeros(3, np.float32)

    def train(self, client, start, local, stream):
        y = start.vector.copy()
        for _ in range(local.steps_for(1)):
            y -= np.float32(local.lr) * (y - np.float32(client))
        return y

    def evaluate(self, model):
        return {"metric": float(np.linalg.norm(model - 2))}


def algorithm(**settings):
    quantizers = {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
    return method("qafel", client_lr=0.1, server_lr=0.5, **quantizers, **settings)


def run(out=None, steps=40, seed=0, task=None, durations=None, **options):
    timing = Timing() if durations is None else Timing(duration=durations)
    limits, evaluation = Limits(server_steps=steps), Evaluation(every=7)
    given = {"limits": limits, "evaluation": evaluation, "seed": seed, "out": out}
    return simulate(task or OwnTask(), algorithm(), timing, **given, **options)


def without_clock(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]


def test_an_own_tasks_run_directory_is_read_by_report_and_reader(tmp_path):
    result = run(tmp_path / "mine")
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"config.toml", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoint"} <= names
    read = Run.load(tmp_path / "mine")
    assert (read.name, read.task, read.finished) == ("mine", "own", True)
    assert read.summary == result.summary
    np.testing.assert_array_equal(read.column("metric"), result.history["metric"])
    assert read.config["algorithm"]["client_quantizer"] == "qsgd:4"
    assert read.config["task"]["class"].endswith("test_api:OwnTask")
    write_report([read], tmp_path / "report.html")
    assert "distance" in (tmp_path / "report.html").read_text()


def test_with_and_without_a_directory_the_result_is_the_same_and_without_one_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = run()
    assert not list(tmp_path.iterdir())
    written = run(tmp_path / "mine")
    assert plain.summary["model_sha256"] == written.summary["model_sha256"]
    assert [row | {"wall_s": 0} for row in plain.history.rows] == [row | {"wall_s": 0} for row in written.history.rows]


def test_an_interrupted_run_resumes_to_the_same_result(tmp_path):
    whole = run(tmp_path / "whole")

    def interrupt(row):
        if row.version >= 14:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", on_row=interrupt)
    assert not (tmp_path / "broken/summary.json").exists()
    resumed = run(tmp_path / "broken", resume=True)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert without_clock(tmp_path / "broken") == without_clock(tmp_path / "whole")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interruption_breaks_off_at_once(tmp_path):
    def interrupt(row):
        if row.version >= 14:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the second interruption was not heard")

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", on_row=interrupt)
    assert not (tmp_path / "broken/checkpoint").exists()


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "mine")))
    thread.start()
    thread.join()
    assert results[0].summary["status"] == "finished"


def test_a_finished_run_goes_on_with_larger_limits_to_the_hash_and_rows_of_a_run_that_had_them_from_the_start(tmp_path):
    long = run(tmp_path / "long", steps=66)
    run(tmp_path / "grown", steps=40)
    with pytest.raises(OutputError, match="this run with other limits"):
        run(tmp_path / "grown", steps=66)
    grown = run(tmp_path / "grown", steps=66, resume=True)
    assert grown.summary["model_sha256"] == long.summary["model_sha256"]
    assert without_clock(tmp_path / "grown") == without_clock(tmp_path / "long")


def test_a_finished_run_is_resumed_with_the_same_limits_to_what_it_was(tmp_path):
    before = run(tmp_path / "mine")
    files = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    rows = []
    again = run(tmp_path / "mine", resume=True, on_row=rows.append)
    assert again.summary == before.summary
    assert np.array_equal(again.model, before.model)
    assert np.array_equal(again.hidden_state, before.hidden_state)
    assert again.history.rows == before.history.rows
    assert not rows
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == files


def test_a_finished_run_does_not_go_back_to_smaller_limits(tmp_path):
    before = run(tmp_path / "mine", steps=40).summary
    with pytest.raises(DataError, match="past these limits: set larger ones"):
        run(tmp_path / "mine", steps=30, resume=True)
    assert Run.load(tmp_path / "mine").summary == before


def test_another_run_is_not_lost_unless_asked(tmp_path):
    first = run(tmp_path / "mine").summary
    with pytest.raises(OutputError, match="holds a run of another configuration"):
        run(tmp_path / "mine", seed=1)
    with pytest.raises(OutputError, match="holds a run of another configuration"):
        run(tmp_path / "mine", task=Quadratic(clients=5, dimension=3))
    assert Run.load(tmp_path / "mine").summary == first
    assert run(tmp_path / "mine", seed=1, overwrite=True).summary["seed"] == 1


@pytest.mark.parametrize(
    "other", [HalfNormal(seed=0, scale=2.0), HalfNormal(seed=1), LogNormal(seed=0), LogNormal(seed=0, spread=0.4)]
)
def test_other_durations_are_another_run_which_resume_does_not_go_on_with(tmp_path, other):
    run(
        tmp_path / "mine",
        durations=HalfNormal(seed=0) if isinstance(other, HalfNormal) else LogNormal(seed=0, spread=0.3),
    )
    with pytest.raises(DataError, match="another configuration"):
        run(tmp_path / "mine", steps=50, durations=other, resume=True)


class Shifted(OwnTask):
    """Its data are shifted, or it is judged otherwise. Nothing else tells."""

    def __init__(self, shift, goal="min"):
        self.shift, self.metric_goal = np.float32(shift), goal

    def train(self, client, start, local, stream):
        return start.vector - np.float32(local.lr) * (start.vector - client - self.shift)


def test_a_task_with_other_data_is_another_run_which_resume_does_not_go_on_with(tmp_path):
    run(tmp_path / "mine", task=Shifted(0))
    with pytest.raises(DataError, match="another task"):
        run(tmp_path / "mine", steps=50, task=Shifted(5), resume=True)
    with pytest.raises(DataError, match="another task"):
        run(tmp_path / "mine", steps=50, task=Shifted(0, goal="max"), resume=True)
    run(tmp_path / "mine", steps=50, task=Shifted(0), resume=True)
    with pytest.raises(DataError, match="another task"):
        run(tmp_path / "mine", steps=60, task=Shifted(5), resume=True)


def test_the_command_line_points_to_python_for_a_run_that_python_made(tmp_path):
    run(tmp_path / "mine")
    with pytest.raises(ConfigError, match="Python"):
        load_recipe(str(tmp_path / "mine/config.toml"))


def test_a_run_killed_before_its_first_checkpoint_is_not_overwritten_by_another(tmp_path):
    class KilledError(Exception):
        pass

    def kill(row):
        if row.version >= 14:
            raise KilledError

    with pytest.raises(KilledError):
        run(tmp_path / "mine", on_row=kill)
    rows = without_clock(tmp_path / "mine")
    assert len(rows) == 3
    with pytest.raises(OutputError, match="holds a run of another configuration"):
        run(tmp_path / "mine", seed=1)
    assert without_clock(tmp_path / "mine") == rows
    assert run(tmp_path / "mine").summary["status"] == "finished"  # the same rows, again


def test_unfit_quantizers_are_python_warnings():
    algorithm = method("qafel", client_quantizer="affine:4", server_quantizer="none", client_lr=0.1, server_lr=0.5)
    with pytest.warns(UserWarning, match="client quantizer 'affine:4' is biased"):
        simulate(OwnTask(), algorithm, Timing(), limits=Limits(server_steps=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(steps=1)


def test_the_state_of_a_python_run_is_told_by_its_settings(tmp_path):
    run(tmp_path / "mine")
    settings = dict(Run.load(tmp_path / "mine").config)
    assert state_of(tmp_path / "mine", settings) == "finished"
    assert state_of(tmp_path / "mine", {**settings, "stop": {"server_steps": 99}}) == "other limits"
    assert state_of(tmp_path / "mine", {**settings, "seed": 7}) == "other"


@pytest.mark.parametrize("form", ["path", "vector", "tensors"])
def test_a_run_from_python_starts_from_a_model_in_any_form(tmp_path, form):
    first = run(tmp_path / "first")
    given = {
        "path": tmp_path / "first/model.safetensors",
        "vector": first.model,
        "tensors": {"point": first.model.astype(np.float64)},
    }[form]
    result = run(tmp_path / "next", start_from=given)
    assert result.history["metric"][0] == first.history["metric"][-1]
    assert run(start_from=given).summary["model_sha256"] == result.summary["model_sha256"]
    assert len(Run.load(tmp_path / "next").config["start"]["sha256"]) == 64
    with pytest.raises(DataError, match="another configuration"):
        run(tmp_path / "next", steps=60, resume=True)
    grown = run(tmp_path / "next", steps=60, resume=True, start_from=given)
    assert grown.summary["model_sha256"] == run(steps=60, start_from=given).summary["model_sha256"]


def test_linked_starts_begin_from_the_given_model_also_in_a_resumed_run(tmp_path):
    task, algorithm = Quadratic(60, 40), method("qafel", catch_up="link", client_lr=0.1, local_steps=1, buffer_size=4)
    timing, given = Timing(arrivals="poisson", rate=5.0), np.ones(40, np.float32)

    def simulated(steps: int, **options):
        return simulate(task, algorithm, timing, server_steps=steps, start_from=given, **options).summary

    simulated(8, out=tmp_path)
    found, whole = simulated(16, out=tmp_path, resume=True), simulated(16)
    assert found["model_sha256"] == whole["model_sha256"]
    assert found["received_bytes_total"] == whole["received_bytes_total"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros(4), "it has shape (4,), the task has 3 parameters"),
        ({"weights": np.zeros(3)}, "it has a tensor 'weights', the task's are point"),
        ([0.0, float("nan"), 0.0], "NaN"),
        ("gone.safetensors", "cannot read the model to start from"),
        (np.zeros(3, int), "floats"),
    ],
)
def test_a_model_that_cannot_be_started_from_is_one_sentence(given, words):
    with pytest.raises(DataError) as refused:
        run(start_from=given)
    assert words in str(refused.value)
