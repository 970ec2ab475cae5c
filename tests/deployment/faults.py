"""A fleet under random faults, and the proof that nothing was lost. By hand, the long form:

python -m tests.deployment.faults --faults 200 --seed 1 --folder faults
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from qafel.algorithm import Message
from qafel.config import load_recipe
from qafel.deployment.broker.folder import BrokerFolder
from qafel.deployment.broker.local import LocalBroker, free_port
from qafel.deployment.server.journal import read_journal
from qafel.deployment.server.ledger import Ledger
from qafel.rng import Stream
from tests.deployment.live import replay
from tests.deployment.processes import Command, Line, wait_for

RECIPE = """
name = "faults"
[task]
name = "mushrooms"
clients = 8
[algorithm]
preset = "qafel"
client_quantizer = "qsgd:4"
server_quantizer = "qsgd:4"
buffer_size = 4
[evaluation]
every = 1000
[stop]
server_steps = 1_000_000
"""


KINDS = {
    "kill_server": 4,
    "kill_client": 4,
    "kill_broker": 4,
    "wipe_broker": 1,
    "cut_connections": 4,
    "client_leaves": 2,
    "client_joins": 2,
    "pause_server": 1,
    "split_brain": 1,
    "second_server": 1,
    "fill_disk": 1,
    "flip_journal": 1,
    "flip_checkpoint": 1,
}
"""Every kind of fault, and how often it comes."""


class Fleet:
    """Broker, server and clients; every fault leaves them running again."""

    def __init__(self, folder: Path, clients: int, seed: int, secured: bool = False) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.clients: dict[int, Command] = {}
        self._first_clients = clients
        folder.mkdir(parents=True, exist_ok=True)
        self.recipe = folder / "faults.toml"
        self.recipe.write_text(RECIPE, encoding="utf-8")
        port = free_port()
        if secured:
            BrokerFolder.init(folder / "broker", 8, port=port, sync="2m")
        self.broker = LocalBroker(folder / "broker", port=port)
        self.broker.start()
        self.line = Line(self.broker.port)
        self.run = folder / "run"
        self.server = self._start_server()
        for number in range(clients):
            self._start_client(number)

    def _access(self, name: str) -> list[str]:
        """The broker at the end of the line, with the keys of whoever it is."""
        if not self.broker.secured:
            return ["--broker", f"nats://127.0.0.1:{self.line.port}"]
        return ["--broker", f"tls://127.0.0.1:{self.line.port}", "--credentials", str(self.broker.folder / name)]

    def _start_server(self, *more: str) -> Command:
        return Command(
            "server", self.folder / "server.out", str(self.recipe), "--out", str(self.run),
            *self._access("server"), "--keep-journal", "--checkpoint-every", "150", "--snapshot-every", "20", "--json",
            *more,
        )  # fmt: skip

    def _start_client(self, number: int) -> None:
        self.clients[number] = Command(
            "client", self.folder / f"client-{number}.out", "--run", "faults", "--client-id", str(number),
            *self._access(f"clients/{number}"), "--state", str(self.folder / f"state-{number}"), "--min-interval",
            "0.02", "--json",
        )  # fmt: skip

    def version(self) -> int:
        """The highest version that any client holds."""
        return max((self._versions(client) for client in self.clients.values()), default=0)

    def _versions(self, client: Command) -> int:
        return max((e["version"] for e in client.events(last_bytes=1 << 16) if e["event"] == "version"), default=0)

    def goes_on(self) -> None:
        before = self.version()
        wait_for(lambda: self.version() >= before + 2, f"training to go on after version {before}", 60)

    def kill_server(self) -> None:
        self.server.kill()
        self.server = self._start_server()

    def pause_server(self) -> None:
        """For longer than the broker waits for an answer to its pings."""
        self.server.process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(1, 20))
        self.server.process.send_signal(signal.SIGCONT)

    def split_brain(self) -> None:
        """A server that stands still is replaced by one in a copy of its folder, and then wakes up."""
        before = self.server
        before.process.send_signal(signal.SIGSTOP)
        self.run = Path(shutil.copytree(self.run, self.folder / f"run-{self.random.getrandbits(40):x}"))
        self.server = self._start_server("--take-over")
        self.goes_on()
        before.process.send_signal(signal.SIGCONT)
        wait_for(lambda: not before.alive, "the loser to end", 60)
        assert "another server has taken over run 'faults'" in self._errors()

    def second_server(self) -> None:
        """In a folder of its own, or in a copy."""
        intruder, mine = self.folder / f"intruder-{self.random.getrandbits(40):x}", self.run
        if self.random.random() < 0.5:
            shutil.copytree(self.run, intruder)
        self.run = intruder
        second = self._start_server()
        self.run = mine
        wait_for(lambda: not second.alive, "the second server to end", 60)
        assert second.process.returncode
        shutil.rmtree(intruder)

    def fill_disk(self) -> None:
        """Files cannot grow any more, in the middle of a record: the server ends, and goes on when there is room."""
        files = sorted((self.run / "state").glob("journal-*.log"))
        limit = min(5000, files[-1].stat().st_size + self.random.randrange(1, 400))
        resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        wait_for(lambda: not self.server.alive, "the server to end", 60)
        assert self.server.process.returncode
        self.server = self._start_server()

    def flip_journal(self) -> None:
        """A bit of a file with synced records: the server refuses to start until it is mended, or does not need it."""
        self.server.kill()
        files = sorted((self.run / "state").glob("journal-*.log"))
        path = next(path for path in reversed(files) if path.stat().st_size > 1000)
        byte = self.random.randrange(50, path.stat().st_size - 500)  # behind the header, before the last records
        _flip(path, byte)
        damaged = path.read_bytes()
        server, before = self._start_server(), self.version()
        wait_for(lambda: not server.alive or self.version() > before, "the server to refuse or go on", 60)
        if server.alive:
            server.kill()
        else:
            assert server.process.returncode
            assert "is damaged at byte" in self._errors()
        assert path.read_bytes() == damaged
        _flip(path, byte)
        self.server = self._start_server()

    def flip_checkpoint(self) -> None:
        self.server.kill()
        found = sorted((self.run / "state").glob("checkpoint-*.qafel"))
        if len(found) > 1:
            _flip(found[-1], self.random.randrange(found[-1].stat().st_size))
        self.server = self._start_server()

    def _errors(self) -> str:
        """What servers said, whatever the width of its lines."""
        return " ".join((self.folder / "server.err").read_text(encoding="utf-8").split())

    def kill_client(self) -> None:
        number = self.random.choice(sorted(self.clients))
        self.clients[number].kill()
        self._start_client(number)

    def kill_broker(self) -> None:
        self.broker.stop(signal.SIGKILL)
        self.broker.start()

    def wipe_broker(self) -> None:
        self.broker.stop(signal.SIGKILL)
        shutil.rmtree(self.broker.folder / "store")
        self.broker.start()

    def cut_connections(self) -> None:
        self.line.cut()

    def client_leaves(self) -> None:
        if len(self.clients) > 2:
            number = self.random.choice(sorted(self.clients))
            # One that has not begun yet dies of the signal.
            assert self.clients.pop(number).end() in (0, -signal.SIGTERM)
        else:
            self.client_joins()

    def client_joins(self) -> None:
        absent = sorted(set(range(8)) - set(self.clients))
        if absent:
            self._start_client(self.random.choice(absent))
        else:
            self.client_leaves()

    def kinds(self) -> list[str]:
        return list(KINDS)

    def end(self) -> dict[str, object]:
        """Stop everything, and hold what is left to the claims."""
        wait_for(lambda: self.server.alive, "the server to live")
        self.goes_on()
        assert self.server.end() == 0, self._errors()
        final = json.loads((self.run / "summary.json").read_text(encoding="utf-8"))
        version = final["server_steps"]
        for number, client in self.clients.items():
            wait_for(lambda c=client: self._versions(c) == version, f"client {number} to hold version {version}")  # type: ignore[misc]
        digests = {}
        for number, client in self.clients.items():
            assert client.end() == 0
            report = client.events()[-1]
            assert report["event"] == "report"
            assert report["version"] == version
            digests[number] = report["digest"]
        return self._prove(version, digests)

    def _prove(self, version: int, digests: dict[int, int]) -> dict[str, object]:
        config = load_recipe(str(self.recipe))
        task = config.task.make()
        algorithm = config.algorithm.wire(task.layout)
        initial = task.initial_model(Stream.named(config.seed, "initial-model"))
        state = self.run / "state"
        with Ledger.open(state, lambda: initial, algorithm, config.seed) as ledger:
            held = ledger.server
            again = replay(state, initial, algorithm, config.seed)
        assert again.version == held.version == version
        assert np.array_equal(again.model, held.model)
        assert np.array_equal(again.hidden_state.vector, held.hidden_state.vector)
        assert set(digests.values()) == {held.hidden_state.digest}
        counted = [(m.sender, m.sequence) for m in map(Message.from_bytes, read_journal(state))]
        assert len(counted) == len(set(counted)), "an update was counted twice"
        told = {
            (number, event["sequence"])
            for number in range(8)
            if (path := self.folder / f"client-{number}.out").exists()
            for event in _events(path)
            if event.get("event") == "accepted"
        }
        assert told <= set(counted), f"acknowledged updates were lost: {sorted(told - set(counted))}"
        return {"version": version, "counted": len(counted), "acknowledged": len(told), "survivors": len(digests)}

    def close(self) -> None:
        for command in (self.server, *self.clients.values()):
            if command.alive:
                command.kill()
        self.line.close()
        self.broker.stop()


def _flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 16
    path.write_bytes(data)


def _events(path: Path) -> list[dict[str, object]]:
    command = Command.__new__(Command)
    command.output = path
    return command.events()


def run_faults(
    folder: Path,
    kinds: list[str],
    *,
    seed: int,
    clients: int = 4,
    most_s: float = float("inf"),
    secured: bool = False,
) -> dict[str, object]:
    """Start a fleet, let these faults happen at random moments, at most for so long, and prove the outcome."""
    fleet, began = Fleet(folder, clients, seed, secured), time.monotonic()
    happened: Counter[str] = Counter()
    try:
        wait_for(lambda: fleet.version() >= 2, "training to begin", 60)
        for kind in kinds:
            if time.monotonic() - began > most_s:
                break
            happened[kind] += 1
            time.sleep(fleet.random.uniform(0.0, 0.6))
            getattr(fleet, kind)()
            if fleet.random.random() < 0.5:  # else the next fault comes into the recovery
                fleet.goes_on()
        return {"faults": happened.total(), **happened, **fleet.end()}
    finally:
        fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--secured", action="store_true", help="with TLS, keys and signatures")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further faults after so long")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the fleet ends with us
    folder = options.folder or Path(tempfile.mkdtemp(prefix="qafel-faults-"))
    kinds = random.Random(options.seed).choices(list(KINDS), list(KINDS.values()), k=options.faults)
    began = time.monotonic()
    outcome = run_faults(folder, kinds, seed=options.seed, most_s=options.seconds, secured=options.secured)
    print(json.dumps({**outcome, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
