"""A cluster of three secured brokers while a run goes on: its leader is killed again and again, then files of one node
after the other are damaged. By hand, as elections take their time:

python -m tests.deployment.cluster --kills 3 --damages 20 --seed 1

Claims: updates go on to count whatever happens to one node of three; no acknowledged update is lost, none counts twice,
and all clients hold the server's hidden state. A node that does not come back by itself does so once its store is
deleted. That is printed; the claims hold before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from qafel.algorithm import Message
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client.client import DeploymentClient
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.names import SHARED_STREAMS, Names, StreamLimits
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.journal import read_journal
from qafel.errors import BrokerError, BrokerUnreachable
from tests.deployment.live import serving, taking_part, until, update

NAMES = Names("live")
DAMAGED = {
    "blocks": "*/streams/*/msgs/*.blk",
    "indexes": "*/streams/*/msgs/*.db",
    "consumers": "*/streams/*/obs/*/*",
    "stream metadata": "*/streams/*/meta.*",
    "raft logs": "$SYS/_js_/*/msgs/*",
    "raft snapshots": "$SYS/_js_/*/snapshots/*",
    "raft metadata": "$SYS/_js_/*/*.*",
}
"""Kinds of files under a node's store."""
_COMES_BACK_S = 40.0


def start_cluster(folder: Path) -> tuple[list[LocalBroker], Path]:
    """Three copies of one broker's folder, with the lines that docs/deployment.md adds."""
    ports, routes = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
    first = BrokerFolder.init(folder / "node-0", 3, port=ports[0], sync="2m").path
    for number in (1, 2):
        shutil.copytree(first, folder / f"node-{number}")
    brokers = []
    for number in range(3):
        config = folder / f"node-{number}" / "nats-server.conf"
        text = config.read_text(encoding="utf-8").replace(f"port: {ports[0]}", f"port: {ports[number]}")
        others = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
        text += f"""
server_name: "node-{number}"
cluster {{
  name: "qafel"
  listen: "127.0.0.1:{routes[number]}"
  routes: [{others}]
  tls {{ cert_file: "broker/cert.pem", key_file: "broker/key.pem", ca_file: "ca/ca.pem", verify: true }}
}}
"""
        config.write_text(text, encoding="utf-8")
        brokers.append(LocalBroker(folder / f"node-{number}", port=ports[number]))
        brokers[-1].start()
    return brokers, first


@dataclass
class Cluster:
    """Three brokers with a run, and what happens to them."""

    brokers: list[LocalBroker]
    access: Access
    one: DeploymentClient
    other: DeploymentClient
    random: random.Random
    happened: Counter[str] = field(default_factory=Counter)

    async def leader(self) -> str:
        """The node that leads the stream of uploads."""
        async with session(self.access, "server") as broker:
            found = await broker.connection.jetstream().stream_info(NAMES.upload_stream)
        assert found.cluster is not None
        return found.cluster.leader or ""

    async def works(self, what: str) -> None:
        """Updates of both clients count."""
        began = time.monotonic()
        await update(self.one, most_s=180)
        first_s = time.monotonic() - began
        for _ in range(4):
            await update(self.one, most_s=180)
            await update(self.other, most_s=180)
        print(f"{what}: an update counts after {first_s:.1f} s, 9 after {time.monotonic() - began:.1f} s", flush=True)

    async def kill_leader(self) -> None:
        killed = await self.leader()
        broker = self.brokers[int(killed.removeprefix("node-"))]
        await asyncio.to_thread(broker.stop, signal.SIGKILL)
        await self.works(f"{killed}, the leader, killed")
        await asyncio.to_thread(broker.start)
        await self.all_current()

    async def damage_node(self) -> None:
        """Flip a bit, or cut short, one to three files of a kind of one node, and start it again."""
        number, kind = self.random.randrange(3), self.random.choice(list(DAMAGED))
        broker, word = self.brokers[number], self.random.choice(("flipped", "flipped", "truncated"))
        await asyncio.to_thread(broker.stop, self.random.choice((signal.SIGTERM, signal.SIGKILL)))
        await update(self.one, most_s=180)  # which it misses
        store = broker.folder / "store" / "jetstream"
        paths = [path for path in sorted(store.glob(DAMAGED[kind])) if path.is_file() and path.stat().st_size]
        for path in self.random.sample(paths, min(len(paths), self.random.choice((1, 3)))):
            data = bytearray(path.read_bytes())
            at = self.random.randrange(len(data))
            data[at:] = (
                b"" if word == "truncated" else bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
            )
            path.write_bytes(data)
        what = f"{kind} of node-{number} {word}"
        self.happened[f"{kind} {word}"] += 1
        starts = await self._starts(broker)
        await self.works(what)
        if starts and await self.all_current():
            return
        print(f"{what}: it does not come back, and is wiped", flush=True)
        self.happened["wiped"] += 1
        await asyncio.to_thread(broker.stop, signal.SIGKILL)
        shutil.rmtree(broker.folder / "store")
        assert await self._starts(broker)
        await self.works(f"node-{number} wiped")
        assert await self.all_current(), f"node-{number} did not come back from an empty store"

    async def _starts(self, broker: LocalBroker) -> bool:
        try:
            await asyncio.to_thread(broker.start)
        except BrokerUnreachable as error:
            print(error)
            return False
        return True

    async def all_current(self) -> bool:
        """Whether all nodes hold all streams, after a while."""
        deadline = time.monotonic() + _COMES_BACK_S
        while time.monotonic() < deadline:
            try:
                if await self._current():
                    return True
            except BrokerError:
                pass  # an election
            await asyncio.sleep(0.5)
        return False

    async def _current(self) -> bool:
        async with session(self.access, "server") as broker:
            for stream in (*SHARED_STREAMS, NAMES.upload_stream, NAMES.broadcast_stream):
                if not await broker.answers_for(stream):
                    return False
                found = (await broker.connection.jetstream().stream_info(stream)).cluster
                replicas = (found.replicas if found else None) or []
                if not found or not found.leader or [each.current for each in replicas] != [True, True]:
                    return False
        return True


async def check(folder: Path, brokers: list[LocalBroker], first: Path, kills: int, damages: int, seed: int) -> None:
    urls = tuple(broker.url for broker in brokers)
    accesses = [replace(Access.of(None, first / user), servers=urls) for user in ("server", "clients/0", "clients/1")]
    settings = ServerSettings(heartbeat_s=0.3, limits=StreamLimits(replicas=3), keep_journal=True)
    async with (
        serving(folder, accesses[0], None, settings) as server,
        taking_part(folder, accesses[1], 0) as one,
        taking_part(folder, accesses[2], 1) as other,
    ):
        cluster = Cluster(brokers, accesses[0], one, other, random.Random(seed))
        await cluster.works("all three there")
        for _ in range(kills):
            await cluster.kill_leader()
        for _ in range(damages):
            await cluster.damage_node()
        held = server.ledger.server.hidden_state
        await until(lambda: one.follower.version == other.follower.version == held.version, 60)
        assert one.core.hidden_state.digest == other.core.hidden_state.digest == held.digest
        told = one.outbox.counts["accepted"] + other.outbox.counts["accepted"]
    counted = [(m.sender, m.sequence) for m in map(Message.from_bytes, read_journal(folder / "state"))]
    assert len(counted) == len(set(counted)) >= told
    print(f"all hold the same version {held.version}; {told} updates acknowledged, {len(counted)} counted, none twice")
    print(dict(cluster.happened))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3, help="how often the leader is killed")
    parser.add_argument("--damages", type=int, default=10, help="how often files of a node are damaged")
    parser.add_argument("--seed", type=int, default=0, help="which node and files, and how")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="qafel-cluster-"))
    brokers, first = start_cluster(folder)
    try:
        asyncio.run(check(folder, brokers, first, options.kills, options.damages, options.seed))
    finally:
        for broker in brokers:
            broker.stop()


if __name__ == "__main__":
    main()
