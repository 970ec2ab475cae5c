"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys

import pytest

from qafel.cli.demo import REFERENCE
from qafel.cli.demo import _table as demo_table
from tests.command import qafel

QUICK = ["--set", "stop.server_steps=30", "--quiet"]


def test_every_command_has_help_with_an_example():
    commands = ["demo", "run", "report", "recipes", "quantizers", "plan", "tune", "paper", "server", "client", "status"]
    overview = qafel("--help").stdout
    for command in (*commands, "tasks", "bench", "broker"):
        assert command in overview
    benchmarks = [f"bench {name}" for name in ("quantizers", "simulator", "training", "deployment")]
    for command in (*commands, "tasks show", "broker init", *benchmarks):
        assert "Example: qafel" in qafel(*command.split(), "--help").stdout


def test_version():
    assert qafel("--version").stdout.startswith("qafel ")


def test_recipes_and_tasks_are_listed():
    names = {recipe["name"] for recipe in json.loads(qafel("recipes", "--json").stdout)}
    assert {"mushrooms-fedbuff", "mushrooms-qafel-qsgd", "mushrooms-direct-topk"} <= names
    assert "mushrooms-qafel-4bit" in qafel("recipes").stdout
    assert "mushrooms" in json.loads(qafel("tasks", "--json").stdout)


def test_the_same_command_gives_the_same_model_and_another_seed_another(tmp_path):
    def sha(*extra):
        return json.loads(qafel("run", "mushrooms-qafel-4bit", *QUICK, "--json", *extra, cwd=tmp_path).stdout)[
            "model_sha256"
        ]

    assert sha("--seed", 0) == sha("--seed", 0) != sha("--seed", 1)
    assert (tmp_path / "runs/mushrooms-qafel-4bit-seed0/summary.json").exists()


def test_a_run_says_what_it_did(tmp_path):
    shown = qafel("run", "mushrooms-fedbuff", *QUICK, "--out", tmp_path / "out").stdout
    for word in ("f(x) − f*", "uploads", "300, 516 bytes each", "model sha256", "results in"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "unknown recipe 'nonsense'"),
        (["mushrooms-fedbuf"], "did you mean 'mushrooms-fedbuff'?"),
        (["mushrooms-fedbuff", "--set", "stop.steps=3"], "unknown key 'stop.steps'; did you mean 'server_steps'?"),
        (["mushrooms-fedbuff", "--set", "stop.server_steps=many"], "valid integer, found 'many'"),
        (["mushrooms-fedbuff", "--set", "stop.server_steps=0"], "greater than or equal to 1, found 0"),
        (["mushrooms-qafel-4bit", "--set", "algorithm.client_quantizer=qsgd:99"], "qsgd"),
        (["mushrooms-fedbuff", "--set", "task.clients=9000"], "between 1 and 8124 clients"),
        (["mushrooms-fedbuff", "--out", "/dev/null/run"], "cannot write to /dev/null/run"),
        (["gone.toml"], "gone.toml cannot be read"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(arguments, words, tmp_path):
    finished = qafel("run", *arguments, "--quiet", cwd=tmp_path, expect=2)
    assert words in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert not finished.stdout


def test_another_runs_results_are_not_lost(tmp_path):
    qafel("run", "mushrooms-fedbuff", *QUICK, "--out", tmp_path)
    before = (tmp_path / "summary.json").read_text()
    other = ["run", "mushrooms-qafel-4bit", *QUICK, "--out", tmp_path]
    assert "holds a run of another configuration" in qafel(*other, expect=2).stderr
    assert (tmp_path / "summary.json").read_text() == before
    qafel(*other, "--overwrite")
    assert (tmp_path / "summary.json").read_text() != before


def test_an_unfinished_run_is_not_lost(tmp_path):
    command = ["run", "mushrooms-fedbuff", *QUICK, "--checkpoint-every", 0, "--out", tmp_path]
    qafel(*command)
    (tmp_path / "summary.json").unlink()  # as if it had been killed
    refused = qafel(*command, expect=2).stderr
    for word in ("holds an unfinished run", "--resume", "--overwrite"):
        assert word in refused
    qafel(*command, "--resume")
    (tmp_path / "summary.json").unlink()
    qafel(*command, "--overwrite")


def test_the_demos_table_has_a_place_for_runs_that_diverged():
    facts = {"uploads": 10, "upload_bytes_total": 100, "broadcast_bytes_total": 10}
    summaries = [{"name": REFERENCE, "metric_final": 0.5, **facts}, {"name": "wild", "metric_final": None, **facts}]
    for rows in (summaries, [{**summaries[0], "metric_final": None}, summaries[1]]):
        table = demo_table(["FedBuff", "wild"], rows)
        assert list(table.columns[1].cells)[-1] == list(table.columns[2].cells)[-1] == "–"


def test_a_server_quantizer_that_cannot_work_is_warned_of_and_refused_under_strict(tmp_path):
    unfit = [
        "run",
        "mushrooms-qafel-qsgd",
        *QUICK,
        "--set",
        "algorithm.server_quantizer=qsgd:levels=1,norm=l2,bucket=none",
    ]
    assert "warning:" in qafel(*unfit, cwd=tmp_path).stderr
    refused = qafel(*unfit, "--strict", cwd=tmp_path / "..", expect=2).stderr
    assert "--strict" in refused


def test_the_demo_shows_a_table_a_picture_and_a_report(tmp_path):
    shown = qafel("demo", "--steps", 100, "--out", tmp_path / "demo").stdout
    for word in ("QAFeL, server top 1 %", "direct, server top 50 %", "traffic ×", "report.html"):
        assert word in shown
    assert (tmp_path / "demo/comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "demo/report.html").read_text()[:500].lower()


def test_the_light_core_loads_without_torch_ray_or_a_broker():
    code = (
        "import sys; from qafel.cli import app; "
        "loaded = {'torch', 'ray', 'nats', 'tensorboard'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
