"""The fleet: a broker, a server and clients, each a process, and a line to the broker that can be cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from qafel.algorithm import Message
from qafel.config import load_recipe
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.keys import Access
from qafel.deployment.server.journal import read_journal
from qafel.deployment.server.ledger import Ledger
from qafel.rng import Stream
from tests.deployment.clock import CANNOT, Clock
from tests.deployment.live import replay
from tests.deployment.processes import Command, Line, wait_for

RUN = "faults"
CLIENTS = 8
STRANGER = CLIENTS
"""A client that has a key, and sends nothing but nonsense."""
RECIPE = f"""
name = "{RUN}"
[task]
name = "mushrooms"
clients = {CLIENTS}
[algorithm]
method = "qafel"
client_quantizer = "qsgd:4"
server_quantizer = "qsgd:4"
buffer_size = 4
[evaluation]
every = 1000
[stop]
server_steps = 1_000_000
"""
_LAST_STEPS = 8
_PATIENCE_S = 900.0


class Fleet:
    """Broker, server and clients. Every fault leaves them running again."""

    def __init__(
        self,
        folder: Path,
        clients: int,
        seed: int,
        *,
        secured: bool,
        longest_pause_s: float,
        catch_up: str = "exact",
    ) -> None:
        self.folder = folder
        self.linked = catch_up in ("link", "auto")
        self.random = random.Random(seed)
        self.longest_pause_s = longest_pause_s
        self.clients: dict[int, Command] = {}
        self.copies: list[Path] = []
        """Of the broker's store, at earlier moments."""
        self._clocks: dict[str, Clock] = {}
        self._servers = self._version = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.recipe = folder / "faults.toml"
        self.recipe.write_text(RECIPE.replace("buffer_size", f"catch_up = '{catch_up}'\nbuffer_size"), encoding="utf-8")
        port = free_port()
        if secured:
            BrokerFolder.init(folder / "broker", CLIENTS + 1, port=port, sync="2m")
        self.broker = LocalBroker(folder / "broker", port=port)
        self.broker.start()
        self.store = self.broker.folder / "store"
        self.line = Line(self.broker.port)
        self.run = folder / "run"
        self.server = self.start_server()
        for number in range(clients):
            self.start_client(number)

    def access(self, user: str) -> Access:
        """Of one of the broker's users, directly."""
        return Access.of(self.broker.url, self.broker.folder / user if self.broker.secured else None)

    def _options(self, user: str) -> list[str]:
        """The broker at the end of the line, with the keys of whoever it is."""
        if not self.broker.secured:
            return ["--broker", f"nats://127.0.0.1:{self.line.port}"]
        return ["--broker", f"tls://127.0.0.1:{self.line.port}", "--credentials", str(self.broker.folder / user)]

    def clock(self, name: str) -> Clock:
        """That of the server, or of a client."""
        if name not in self._clocks:
            self._clocks[name] = Clock(self.folder / f"clock-{name}")
        return self._clocks[name]

    def _environment(self, name: str) -> dict[str, str] | None:
        return None if CANNOT else self.clock(name).environment

    def start_server(self, *more: str) -> Command:
        self._servers += 1
        return Command(
            "server", self.folder / f"server-{self._servers}.out", str(self.recipe), "--out", str(self.run),
            *self._options("server"), "--keep-journal", "--checkpoint-every", "150", "--snapshot-every", "20",
            "--patience", "300", "--json", *more, environment=self._environment("server"), piped=True,
        )  # fmt: skip

    def start_client(self, number: int) -> Command:
        self.clients[number] = Command(
            "client", self.folder / f"client-{number}.out", "--run", RUN, "--client-id", str(number),
            *self._options(f"clients/{number}"), "--state", str(self.state_of(number)), "--min-interval", "0.2",
            "--patience", "900", "--json", environment=self._environment(str(number)), piped=True,
        )  # fmt: skip
        return self.clients[number]

    def state_of(self, number: int) -> Path:
        return self.folder / f"state-{number}"

    def any_client(self) -> int:
        return self.random.choice(sorted(self.clients))

    def version(self) -> int:
        """The highest version that any client was seen to hold."""
        self._version = max(self._version, *map(_version, self.clients.values()))
        return self._version

    def reach(self, version: int) -> None:
        """Wait for it; meanwhile nobody ends."""

        def reached() -> bool:
            for command in (self.server, *self.clients.values()):
                assert command.alive, f"{command.output} ended: {command.errors[-1000:]}"
            return self.version() >= version

        wait_for(reached, f"version {version}", _PATIENCE_S, look_s=0.2)

    def goes_on(self) -> None:
        self.reach(self.version() + 2)

    def end(self) -> dict[str, Any]:
        """Stop the server; let it go on to a last step, after which all end by themselves; hold what is left to the
        claims.
        """
        self.goes_on()
        assert self.server.end() == 0, self.server.errors
        version = int(self._summary()["server_steps"]) + _LAST_STEPS
        self.server = self.start_server("--set", f"stop.server_steps={version}")
        ended = [self.server, *self.clients.values()]
        wait_for(lambda: not any(command.alive for command in ended), "the run to end", _PATIENCE_S)
        for command in ended:
            assert command.process.returncode == 0, f"{command.output}: {command.errors[-1000:]}"
        summary = self._summary()
        assert (summary["status"], summary["server_steps"]) == ("finished", version)
        reports = [client.events(last_bytes=1 << 16)[-1] for client in self.clients.values()]
        if not self.linked:  # a client with linked starts holds its last start
            assert {(report["event"], report["version"]) for report in reports} == {("report", version)}
        return self._prove(version, {report["digest"] for report in reports})

    def _summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "summary.json").read_text(encoding="utf-8"))
        return found

    def _prove(self, version: int, digests: set[int]) -> dict[str, Any]:
        """x and x̂ are what the journal gives, clients hold x̂, no update counts twice, none is lost that was
        acknowledged.
        """
        config = load_recipe(str(self.recipe))
        task = config.task.make()
        algorithm = config.algorithm.compose(task.layout)
        initial = task.initial_model(Stream.named(config.seed, "initial-model"))
        state = self.run / "state"
        with Ledger.open(state, lambda: initial, algorithm, config.seed, size=initial.size) as ledger:
            held = ledger.server
            again = replay(state, initial, algorithm, config.seed)
        assert again.version == held.version == version
        assert np.array_equal(again.model, held.model)
        assert np.array_equal(again.hidden_state.vector, held.hidden_state.vector)
        assert self.linked or digests == {held.hidden_state.digest}
        counted = [(m.sender, m.sequence) for m in map(Message.from_bytes, read_journal(state))]
        assert len(counted) == len(set(counted)), "an update was counted twice"
        told = {
            (number, event["sequence"])
            for number in range(CLIENTS)
            if (path := self.folder / f"client-{number}.out").exists()
            for event in Command.events_of(path)
            if event.get("event") == "accepted"
        }
        assert told <= set(counted), f"acknowledged updates were lost: {sorted(told - set(counted))}"
        return {"version": version, "counted": len(counted), "acknowledged": len(told), "survivors": len(self.clients)}

    def close(self) -> None:
        for command in (self.server, *self.clients.values()):
            if command.alive:
                command.kill()
        self.line.close()
        self.broker.stop()


def _version(client: Command) -> int:
    return max((e["version"] for e in client.events(last_bytes=1 << 12) if e["event"] == "version"), default=0)
