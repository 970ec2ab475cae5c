"""The commands as a user types them, and the mistakes a user makes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import typer
from typer.testing import CliRunner

from qafel.algorithm import HiddenState, LocalTraining
from qafel.cli.client import client
from qafel.cli.deploy import broker, server
from qafel.deployment.broker import LocalBroker, free_port
from qafel.errors import ConfigError, UserError
from qafel.params import Vector
from qafel.rng import Stream
from tests.command import qafel
from tests.deployment.processes import Command, wait_for

EXAMPLES = Path(__file__).parents[2] / "examples" / "deployment"


def nudge(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
    """A user's training function, found by its import path."""
    noise = stream.generator().standard_normal(start.vector.size, np.float32)
    return start.vector + np.float32(0.001) * noise


def _app(command: object) -> typer.Typer:
    app = typer.Typer()
    app.command()(command)  # type: ignore[type-var]
    return app


@pytest.mark.slow
def test_a_secured_run_with_a_users_function_a_worker_process_and_single_updates(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "broker"
    made = CliRunner().invoke(broker, ["init", str(folder), "--clients", "3", "--port", str(port), "--run", "five"])
    assert made.exit_code == 0, made.output
    assert "qafel broker start" in made.output
    with LocalBroker(folder, port=port):
        steps = ["--set", "stop.server_steps=3", "--set", "algorithm.buffer_size=4"]
        keys = ["--credentials", str(folder / "server"), "--out", str(tmp_path / "run"), "--json"]
        serving = Command(
            "server", tmp_path / "server.out", str(EXAMPLES / "mushrooms.toml"), "--run", "five", *steps, *keys
        )

        def take_part(number: int, *arguments: str) -> Command:
            own = ["--credentials", str(folder / "clients" / str(number)), "--state", str(tmp_path / f"state-{number}")]
            return Command("client", tmp_path / f"client-{number}.out", "--run", "five", *own, "--json", *arguments)

        once = take_part(0, "--max-updates", "1")
        assert once.process.wait(120) == 0, once.output.with_suffix(".err").read_text(encoding="utf-8")
        assert once.events()[-1]["outcomes"] == {"accepted": 1}
        others = [
            take_part(1, "--train", "tests.cli.test_deploy:nudge", "--min-interval", "0.05"),
            take_part(2, "--worker", "process", "--min-interval", "0.05"),
        ]
        for command in (*others, serving):
            assert command.process.wait(120) == 0, command.output.with_suffix(".err").read_text(encoding="utf-8")
        assert [command.events()[-1]["run_state"] for command in others] == ["finished", "finished"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["server_steps"], summary["uploads"]) == ("finished", 3, 12)
    model = safetensors.numpy.load_file(str(tmp_path / "run" / "model.safetensors"))
    assert model["weights"].shape == (113,)
    assert {"name", "metric_final", "staleness_mean", "model_sha256"} <= summary.keys()


@pytest.mark.slow
def test_a_local_broker_needs_no_set_up_and_trackers_hear_of_a_deployed_run(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    port = free_port()
    arguments = ["--local-broker", "--port", str(port), "--out", str(tmp_path / "run"), "--set", "stop.uploads=20"]
    arguments += ["--set", "evaluation.every=1", "--track", "tensorboard"]
    serving = Command("server", tmp_path / "server.out", "mushrooms-fedbuff", *arguments)
    worker = Command(
        "client", tmp_path / "client.out", "--run", "mushrooms-fedbuff", "--client-id", "7", "--broker",
        f"nats://127.0.0.1:{port}", "--state", str(tmp_path / "state"),
    )  # fmt: skip
    assert serving.process.wait(120) == 0, serving.output.with_suffix(".err").read_text(encoding="utf-8")
    wait_for(lambda: not worker.alive, "the client to end with the run")
    assert worker.process.returncode == 0
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event.step for event in events.Scalars("f_x_-_f")] == [row["uploads"] for row in rows]


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        (client, ["--run", "x"], "--client-id"),
        (client, ["--run", "a.b", "--client-id", "1"], "name"),
        (client, ["--run", "x", "--client-id", "1", "--train", "nonsense"], "MODULE:FUNCTION"),
        (client, ["--run", "x", "--client-id", "1", "--train", "no_such_module:f"], "no_such_module"),
        (client, ["--run", "x", "--credentials", "nowhere"], "qafel broker init"),
        (
            client,
            ["--run", "x", "--client-id", "1", "--broker", "nats://127.0.0.1:9", "--patience", "0.2"],
            "nats://127.0.0.1:9",
        ),
        (server, ["mushrooms-fedavg", "--out", "OUT", "--broker", "nats://127.0.0.1:9"], "rounds"),
        (
            server,
            [
                "mushrooms-direct-qsgd",
                "--set",
                "algorithm.catch_up=per-start",
                "--out",
                "OUT",
                "--broker",
                "nats://127.0.0.1:9",
            ],
            "start",
        ),
        (server, ["mushrooms-fedbuff", "--local-broker", "--broker", "nats://x"], "--broker"),
        (
            server,
            ["mushrooms-fedbuff", "--out", "OUT", "--broker", "nats://127.0.0.1:9", "--patience", "0.2"],
            "nats://127.0.0.1:9",
        ),
    ],
)
def test_a_users_mistake_is_one_sentence(
    command: object, arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(_app(command), [str(tmp_path) if part == "OUT" else part for part in arguments])
    assert isinstance(found.exception, UserError), found.output
    assert sentence in str(found.exception)


def test_a_metrics_port_in_use_is_one_sentence_and_no_banner_comes_before_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = ["--port", str(free_port()), "--metrics-port", str(taken.getsockname()[1])]
        refused = qafel("server", "mushrooms-fedbuff", "--local-broker", *ports, "--out", tmp_path / "run", expect=2)
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert "--metrics-port" in refused.stderr


def test_the_client_command_that_a_local_broker_prints_works_as_it_stands(tmp_path: Path) -> None:
    """It names the broker unless that is where clients look anyway; the server is well by then."""
    port = str(free_port())
    stop = ["--set", "stop.uploads=20", "--set", "algorithm.buffer_size=5", "--set", "task.clients=1"]
    arguments = ["--local-broker", "--port", port, "--out", str(tmp_path / "run"), *stop]
    serving = Command("server", tmp_path / "server.out", "mushrooms-fedbuff", *arguments)
    said = tmp_path / "server.err"
    banner = wait_for(lambda: said.read_text(encoding="utf-8").splitlines(), "the banner")[0]
    assert f" broker at nats://127.0.0.1:{port}; clients: qafel client " in banner
    command = banner.partition("clients: qafel ")[2].replace(" N", " 0").split()
    taken = qafel(*command, cwd=tmp_path)
    assert "20 accepted" in taken.stderr
    assert (tmp_path / "clients" / "mushrooms-fedbuff" / "0").is_dir()
    assert serving.process.wait(120) == 0
    for line in (*said.read_text(encoding="utf-8").splitlines(), *taken.stderr.splitlines()):
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S", line), line


def test_machines_read_every_line_that_server_and_client_log(tmp_path: Path) -> None:
    port = str(free_port())
    stop = ["--set", "stop.uploads=20", "--set", "algorithm.buffer_size=5", "--set", "task.clients=1"]
    arguments = ["--local-broker", "--port", port, "--out", str(tmp_path / "run"), *stop, "--log-json"]
    serving = Command("server", tmp_path / "server.out", "mushrooms-fedbuff", *arguments)
    where = ["--run", "mushrooms-fedbuff", "--client-id", "0", "--broker", f"nats://127.0.0.1:{port}", "--log-json"]
    taken = qafel("client", *where, cwd=tmp_path)
    assert serving.process.wait(120) == 0
    refused = qafel("client", *where, "--patience", "0.1", cwd=tmp_path, expect=2)
    logs = [(tmp_path / "server.err").read_text(encoding="utf-8"), taken.stderr, refused.stderr]
    for text, last in zip(logs, ("results in", "20 accepted", "no broker at"), strict=True):
        lines = [json.loads(line) for line in text.splitlines()]
        assert last in lines[-1]["message"]
        for line in lines:
            assert set(line) == {"time", "level", "logger", "message"}
            assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert lines[-1]["level"] == "error"


def test_a_traceback_is_part_of_its_line_for_machines() -> None:
    program = (
        "import logging; from qafel.cli import start_logs; start_logs(as_json=True)\n"
        "try: 1 / 0\nexcept ZeroDivisionError: logging.getLogger('qafel.x').exception('one\\ntwo \\ud800')\n"
        "raise KeyError('three')"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
    logged, unexpected = (json.loads(line) for line in said.splitlines())
    assert (logged["level"], logged["logger"], logged["message"]) == ("error", "qafel.x", "one\ntwo \ud800")
    assert logged["exception"].endswith("ZeroDivisionError: division by zero")
    assert unexpected["exception"].endswith("KeyError: 'three'")


def test_a_brokers_folder_is_not_overwritten(tmp_path: Path) -> None:
    assert CliRunner().invoke(broker, ["init", str(tmp_path / "b"), "--clients", "1"]).exit_code == 0
    again = CliRunner().invoke(broker, ["init", str(tmp_path / "b"), "--clients", "1"])
    assert isinstance(again.exception, ConfigError)
    added = CliRunner().invoke(broker, ["add", str(tmp_path / "b"), "--client", "5"])
    assert added.exit_code == 0
    assert (tmp_path / "b" / "clients" / "5" / "user.nk").exists()
    assert CliRunner().invoke(broker, ["revoke", str(tmp_path / "b"), "--client", "5"]).exit_code == 0
    assert isinstance(
        CliRunner().invoke(broker, ["revoke", str(tmp_path / "b"), "--client", "5"]).exception, ConfigError
    )


def test_only_a_nats_server_in_its_own_folder_is_told_to_reload(tmp_path: Path) -> None:
    """The file with its number outlives it, and another process may have the number by now."""
    path, elsewhere = tmp_path / "b", tmp_path / "elsewhere"
    assert CliRunner().invoke(broker, ["init", str(path), "--clients", "2"]).exit_code == 0
    elsewhere.mkdir()
    disguised = tmp_path / "nats-server"
    disguised.symlink_to("/bin/sleep")
    for command, place in ((["/bin/sleep", "60"], path), ([str(disguised), "60"], elsewhere)):
        with subprocess.Popen(command, cwd=place) as process:
            (path / "nats-server.pid").write_text(str(process.pid), encoding="ascii")
            said = CliRunner().invoke(broker, ["add", str(path), "--client", "1"])
            process.kill()
            assert process.wait() == -signal.SIGKILL  # and nothing before that
        assert "--signal reload" in said.output
    said = CliRunner().invoke(broker, ["revoke", str(path), "--client", "1"])
    assert "--signal reload" in said.output


def test_a_client_id_that_is_not_the_credentials_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a client keeps its state
    assert CliRunner().invoke(broker, ["init", str(tmp_path / "b"), "--clients", "4"]).exit_code == 0
    mine = str(tmp_path / "b" / "clients" / "3")
    arguments = ["--run", "x", "--credentials", mine, "--broker", "nats://127.0.0.1:9", "--patience", "0.1"]
    other = CliRunner().invoke(_app(client), [*arguments, "--client-id", "5"])
    assert isinstance(other.exception, ConfigError)
    assert "--client-id" in str(other.exception)
    same = CliRunner().invoke(_app(client), [*arguments, "--client-id", "3"])
    assert "nats://127.0.0.1:9" in str(same.exception)


def test_the_light_core_does_not_load_the_deployment() -> None:
    program = "import sys, qafel, qafel.cli.deploy; "
    program += "sys.exit(any(name.split('.')[0] in ('nats', 'nkeys', 'prometheus_client') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=250).returncode == 0


@pytest.mark.slow
def test_the_example_reaches_what_the_simulator_reaches(tmp_path: Path) -> None:
    """In the recorded order to the bit; in that order with other seeds up to what seeds differ by, and a twentieth."""
    example = [sys.executable, str(EXAMPLES / "five_clients.py"), "--steps", "100", "--folder", str(tmp_path)]
    finished = subprocess.run(example, capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stderr
    deployed, replayed, *others = (
        json.loads((tmp_path / kind / "summary.json").read_text(encoding="utf-8"))
        for kind in ("deployed", *(f"replayed-{seed}" for seed in range(4)))
    )
    for key in ("server_steps", "uploads", "upload_bytes_total", "staleness_mean", "staleness_max"):
        assert deployed[key] == replayed[key], key
    assert deployed["model_sha256"] == replayed["model_sha256"]
    assert deployed["hidden_state_sha256"] == replayed["hidden_state_sha256"]
    assert deployed["metric_final"] == pytest.approx(replayed["metric_final"], rel=1e-6)
    reached = [summary["metric_final"] for summary in others]
    assert 0.95 * min(reached) <= deployed["metric_final"] <= 1.05 * max(reached)
