"""`qafel run` makes a run directory, keeps what is there, and says what was wrong."""

import json
import signal
import subprocess
import sys
import time

import pytest

from qafel.runs.checkpoints import read_checkpoint
from qafel.runs.directory import CHECKPOINT
from qafel.text import human_bytes
from tests.command import qafel, qafel_here

QUICK = ["--set", "stop.server_steps=30", "--quiet"]


def test_the_same_command_gives_the_same_model_and_another_seed_another(tmp_path, monkeypatch):
    def sha(run, seed, **place):
        found = run("run", "mushrooms-qafel-4bit", *QUICK, "--json", "--seed", seed, **place)
        return json.loads(found[0] if isinstance(found, tuple) else found.stdout)["model_sha256"]

    monkeypatch.chdir(tmp_path)
    assert sha(qafel, 0, cwd=tmp_path) == sha(qafel_here, 0) != sha(qafel_here, 1)
    assert (tmp_path / "runs/mushrooms-qafel-4bit-seed0/summary.json").exists()


def test_a_run_says_what_it_did(tmp_path):
    shown, _ = qafel_here("run", "mushrooms-fedbuff", *QUICK, "--out", tmp_path / "out")
    received = human_bytes(json.loads((tmp_path / "out/summary.json").read_text())["received_bytes_total"])
    for word in (
        *("f(x) − f*", "uploads", "300, 516 bytes each", f"{received} received"),
        *("model sha256", "results in"),
    ):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "'nonsense'"),
        (["mushrooms-fedbuf"], "'mushrooms-fedbuff'"),
        (["mushrooms-fedbuff", "--set", "stop.steps=3"], "'server_steps'"),
        (["mushrooms-fedbuff", "--set", "stop.server_steps=many"], "'many'"),
        (["mushrooms-fedbuff", "--set", "stop.server_steps=0"], "stop.server_steps"),
        (["mushrooms-qafel-4bit", "--set", "algorithm.client_quantizer=qsgd:99"], "qsgd"),
        (["mushrooms-fedasync", "--set", "algorithm.catch_up=snapshot"], "updates"),
        (["mushrooms-fedbuff", "--set", "task.clients=9000"], "8124"),
        (["mushrooms-fedbuff", "--out", "/dev/null/run"], "/dev/null/run"),
        (["gone.toml"], "gone.toml"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown, complaint = qafel_here("run", *arguments, "--quiet", expect=2)
    assert words in complaint
    assert complaint.count("\n") == 1
    assert not shown


@pytest.mark.parametrize("more", [["--seed", 1, "--seed", 2], ["mushrooms-fedasync"]])
def test_several_seeds_or_recipes_are_a_sweeps(more, tmp_path, monkeypatch):
    """A single run with the last seed would be a wrong result without a word."""
    monkeypatch.chdir(tmp_path)
    assert "qafel sweep" in qafel_here("run", "mushrooms-fedbuff", *more, "--quiet", expect=2)[1]
    assert not list(tmp_path.iterdir())


def test_a_users_mistake_shows_no_traceback(tmp_path):
    finished = qafel("run", "nonsense", cwd=tmp_path, expect=2)
    assert "'nonsense'" in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_another_runs_results_are_not_lost(tmp_path):
    qafel_here("run", "mushrooms-fedbuff", *QUICK, "--out", tmp_path)
    before = (tmp_path / "summary.json").read_text()
    other = ["run", "mushrooms-qafel-4bit", *QUICK, "--out", tmp_path]
    assert "configuration" in qafel_here(*other, expect=2)[1]
    assert (tmp_path / "summary.json").read_text() == before
    qafel_here(*other, "--overwrite")
    assert (tmp_path / "summary.json").read_text() != before


def test_a_deployed_run_is_not_lost_and_nobody_is_told_to_resume_it_here(tmp_path):
    command = ["run", "mushrooms-fedbuff", *QUICK, "--out", tmp_path]
    qafel_here(*command)
    (tmp_path / "summary.json").unlink()
    (tmp_path / "state").mkdir()  # as of `qafel server`
    _, refused = qafel_here(*command, expect=2)
    assert "holds a deployed run" in refused
    assert "--resume" not in refused


def test_an_unfinished_run_is_not_lost(tmp_path):
    command = ["run", "mushrooms-fedbuff", *QUICK, "--checkpoint-every", 0, "--out", tmp_path]
    qafel_here(*command)
    (tmp_path / "summary.json").unlink()  # as if it had been killed
    _, refused = qafel_here(*command, expect=2)
    for word in ("holds an unfinished run", "--resume", "--overwrite"):
        assert word in refused
    qafel_here(*command, "--resume")
    (tmp_path / "summary.json").unlink()
    qafel_here(*command, "--overwrite")


def test_a_script_may_resume_a_finished_run_blindly(tmp_path):
    command = ["run", "mushrooms-fedbuff", *QUICK, "--json", "--out", tmp_path]
    first, _ = qafel_here(*command)
    again, said = qafel_here(*command, "--resume")
    assert json.loads(again) == json.loads(first)
    assert "finished" in said
    _, refused = qafel_here(*command, "--set", "stop.server_steps=20", "--resume", expect=2)
    assert "limits" in refused


def test_a_server_quantizer_that_cannot_work_is_warned_of_and_refused_under_strict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unfit = "algorithm.server_quantizer=qsgd:levels=1,norm=l2,bucket=none"
    command = ["run", "mushrooms-qafel-qsgd", *QUICK, "--set", unfit]
    assert "warning:" in qafel_here(*command)[1]
    assert "--strict" in qafel_here(*command, "--strict", expect=2)[1]
    biased = ["run", "mushrooms-mcm", *QUICK, "--set", "algorithm.server_quantizer=top_k:0.5", "--strict"]
    assert "biased" in qafel_here(*biased, expect=2)[1]
    assert "warning:" not in qafel_here("run", "mushrooms-mcm", *QUICK)[1]


def test_ctrl_c_saves_and_the_same_command_resumes_to_the_same_hash(tmp_path):
    recipe = ["run", "mushrooms-qafel-4bit", "--quiet", "--seed", "3", "--json"]
    command = [sys.executable, "-m", "qafel", *recipe, "--set", "stop.server_steps=1e9", "--out", "it"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "it/metrics.jsonl").exists() or not (tmp_path / "it/metrics.jsonl").stat().st_size:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert not (tmp_path / "it/summary.json").exists()
    assert "--resume" in said
    saved = read_checkpoint(tmp_path / "it" / CHECKPOINT).values["server"]["version"]
    end = ["--set", f"stop.server_steps={saved + 100}"]  # which only now can be known
    resumed = json.loads(qafel(*recipe, *end, "--out", "it", "--resume", cwd=tmp_path).stdout)
    whole = json.loads(qafel(*recipe, *end, "--out", "whole", cwd=tmp_path).stdout)
    assert resumed["model_sha256"] == whole["model_sha256"]


def test_a_finished_run_goes_on_with_larger_limits_to_the_hash_of_a_run_started_with_them(tmp_path):
    recipe = ["run", "mushrooms-qafel-4bit", "--quiet", "--json", "--out"]
    short, long = ("--set", "stop.server_steps=55"), ("--set", "stop.server_steps=90")
    expected = json.loads(qafel_here(*recipe, tmp_path / "whole", *long)[0])
    qafel_here(*recipe, tmp_path / "grown", *short)
    _, refused = qafel_here(*recipe, tmp_path / "grown", *long, expect=2)
    assert "--resume" in refused
    grown = json.loads(qafel_here(*recipe, tmp_path / "grown", *long, "--resume")[0])
    assert grown["model_sha256"] == expected["model_sha256"]


def test_a_run_starts_from_another_runs_model_and_that_is_part_of_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = json.loads(qafel_here("run", "mushrooms-fedbuff", *QUICK, "--json", "--out", "first")[0])
    begin = ["run", "mushrooms-qafel-4bit", *QUICK, "--json", "--out", "next"]
    start = ["--start-from", "first/model.safetensors"]
    qafel_here(*begin, *start)
    rows = [json.loads(line) for line in (tmp_path / "next/metrics.jsonl").read_text().splitlines()]
    assert rows[0]["metric"] == first["metric_final"]
    (tmp_path / "moved.safetensors").write_bytes((tmp_path / "first/model.safetensors").read_bytes())
    longer = ["--set", "stop.server_steps=60", "--resume"]
    for other in ([], ["--start-from", "next/model.safetensors"]):
        assert "configuration" in qafel_here(*begin, *longer, *other, expect=2)[1]
    grown = json.loads(qafel_here(*begin, *longer, "--start-from", "moved.safetensors")[0])
    whole = json.loads(qafel_here(*begin[:-1], "whole", *longer[:-1], *start)[0])
    assert grown["model_sha256"] == whole["model_sha256"]
    # What the directory states is enough to go on: the model itself may be gone by then.
    (tmp_path / "moved.safetensors").unlink()
    further = ["--set", "stop.server_steps=70", "--resume"]
    qafel_here("run", "next/config.toml", "--quiet", "--out", "next", *further)


def test_a_sweep_starts_all_its_runs_from_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = json.loads(qafel_here("run", "mushrooms-fedbuff", *QUICK, "--json", "--out", "a, b")[0])
    options = ["--seeds", 2, "--out", "all", "--workers", 1]
    qafel_here("sweep", "mushrooms-fedbuff", *QUICK, *options, "--start-from", "a, b/model.safetensors")
    for seed in range(2):
        line = (tmp_path / f"all/mushrooms-fedbuff-seed{seed}/metrics.jsonl").read_text().splitlines()[0]
        assert json.loads(line)["metric"] == first["metric_final"]
    (tmp_path / "other.toml").write_text('task = { name = "quadratic" }')
    other = qafel_here("sweep", "other.toml", *options, "--start-from", "a, b/model.safetensors", expect=2)[1]
    assert "'weights'" in other
