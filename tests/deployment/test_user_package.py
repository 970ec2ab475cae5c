"""A user's package, one file per part: it runs simulated, resumed after an interruption, and deployed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from qafel.config import load_recipe
from qafel.deployment.broker import LocalBroker
from tests.command import qafel_here
from tests.deployment.processes import Command, wait_for
from tests.deployment.recorded import check_recorded
from tests.documents import blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "custom-parts.md"
PARTS = {
    "server_rule": "class SignStep(ServerRule)",
    "accumulator": "class FreshestHalf(Kept)",
    "client_rule": "class Momentum(ClientRule)",
    "quantizer": "class HalfPrecision",
    "staleness": "class Halving:",
    "task": "class Rooms",
}
RECIPE = """
name = "rooms"
task = {name = "rooms.task:Rooms", arguments = {clients = 3}}
evaluation = {every = 5}
stop = {server_steps = 30}
[algorithm]
method = "qafel"
buffer_size = 3
client_lr = 0.5
local_steps = 2
server_rule = {name = "rooms.server_rule:SignStep", lr = 0.1}
accumulator = "rooms.accumulator:FreshestHalf"
client_rule = "rooms.client_rule:Momentum"
client_quantizer = "rooms.quantizer:HalfPrecision"
server_quantizer = "rooms.quantizer:HalfPrecision"
staleness = {name = "rooms.staleness:Halving", every = 4}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as docs/custom-parts.md shows it, and a recipe that names its parts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rooms").mkdir()
    (tmp_path / "rooms" / "__init__.py").touch()
    blocks = [block.text for block in blocks_of(PAGE.read_text(encoding="utf-8")) if block.language == "python"]
    for part, head in PARTS.items():
        (source,) = [text for text in blocks if head in text]
        assert source.count("\n") <= 50, part
        (tmp_path / "rooms" / f"{part}.py").write_text(source, encoding="utf-8")
    path = tmp_path / "rooms.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def ends(run: Path) -> tuple[str, int, str, str]:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return summary["status"], summary["uploads"], summary["model_sha256"], summary["hidden_state_sha256"]


def test_it_is_simulated_and_resumed_to_the_same_bits(recipe: Path, tmp_path: Path) -> None:
    qafel_here("run", recipe, "--out", tmp_path / "whole", "--quiet")
    for steps, resume in ((7, []), (16, ["--resume"]), (30, ["--resume"])):
        limit = ["--set", f"stop.server_steps={steps}"]
        qafel_here("run", recipe, "--out", tmp_path / "resumed", "--quiet", *limit, *resume)
    assert ends(tmp_path / "resumed") == ends(tmp_path / "whole")
    rows = [json.loads(row) for row in (tmp_path / "whole" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1]["metric"] < 0.5 * rows[0]["metric"], "it learns"
    qafel_here("run", recipe, "--out", tmp_path / "workers", "--quiet", "--executor", "processes", "--workers", 2)
    assert ends(tmp_path / "workers") == ends(tmp_path / "whole")


@pytest.mark.slow
def test_it_is_deployed_with_a_killed_server_and_a_killed_client(
    recipe: Path, tmp_path: Path, local_broker: LocalBroker
) -> None:
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}

    def start_server() -> Command:
        options = ["--keep-journal", "--checkpoint-every", "10", "--json", "--broker", local_broker.url]
        place = ["--out", str(tmp_path / "run")]
        return Command("server", tmp_path / "server.out", str(recipe), *place, *options, environment=environment)

    def start_client(number: int) -> Command:
        parts = [f"--part=rooms.{name}" for name in ("task:Rooms", "client_rule:Momentum", "quantizer:HalfPrecision")]
        options = ["--broker", local_broker.url, "--json", "--min-interval", "0.02"]
        place = ["--run", "rooms", "--client-id", str(number), "--state", str(tmp_path / f"client-{number}")]
        output = tmp_path / f"client-{number}.out"
        return Command("client", output, *place, *options, *parts, environment=environment)

    def accepted(number: int) -> int:
        return sum(event["event"] == "accepted" for event in commands[1 + number].events())

    commands = [start_server(), *map(start_client, range(3))]
    try:
        wait_for(lambda: all(accepted(number) >= 4 for number in range(3)), "updates", 120)
        commands[0].kill()
        commands[2].kill()
        commands[0], commands[2] = start_server(), start_client(1)
        wait_for(lambda: not any(command.alive for command in commands), "the run to end", 180)
        for command in commands:
            assert command.process.returncode == 0, command.errors[-1000:]
    finally:
        for command in commands:
            if command.alive:
                command.kill()
    assert ends(tmp_path / "run")[:2] == ("finished", 90)
    folders = {number: tmp_path / f"client-{number}" for number in range(3)}
    assert check_recorded(tmp_path / "run" / "state", load_recipe(str(recipe)), folders) >= 90
