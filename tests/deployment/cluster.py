"""A cluster of three secured brokers, whose leader is killed again and again while a run goes on. By hand, as elections
take their time:

python -m tests.deployment.cluster
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from qafel.algorithm import Message
from qafel.deployment.broker.folder import BrokerFolder
from qafel.deployment.broker.local import LocalBroker, free_port
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.names import Names, StreamLimits
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.journal import read_journal
from tests.deployment.live import serving, taking_part, until, update


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


async def leader(access: Access) -> str:
    """The node that leads the stream of uploads."""
    async with session(access, "server") as broker:
        found = await broker.connection.jetstream().stream_info(Names("live").upload_stream)
    assert found.cluster is not None
    return found.cluster.leader or ""


async def check(folder: Path, brokers: list[LocalBroker], first: Path) -> None:
    urls = tuple(broker.url for broker in brokers)
    accesses = [replace(Access.of(None, first / user), servers=urls) for user in ("server", "clients/0", "clients/1")]
    settings = ServerSettings(heartbeat_s=0.3, limits=StreamLimits(replicas=3))
    async with (
        serving(folder, accesses[0], None, settings) as server,
        taking_part(folder, accesses[1], 0) as one,
        taking_part(folder, accesses[2], 1) as other,
    ):
        for _ in range(15):
            await update(one)
        for _ in range(3):
            killed = await leader(accesses[0])
            began, broker = time.monotonic(), brokers[int(killed.removeprefix("node-"))]
            await asyncio.to_thread(broker.stop, signal.SIGKILL)
            await update(one, most_s=120)
            first_s = time.monotonic() - began
            for _ in range(9):
                await update(one, most_s=60)
                await update(other, most_s=60)
            print(f"{killed}, the leader, killed: an update counts after {first_s:.1f} s, 19 after ", end="")
            print(f"{time.monotonic() - began:.1f} s")
            await asyncio.to_thread(broker.start)
            await asyncio.sleep(3)
        held = server.ledger.server.hidden_state
        await until(lambda: one.follower.version == other.follower.version == held.version)
        assert one.core.hidden_state.digest == other.core.hidden_state.digest == held.digest
        told = one.outbox.counts["accepted"] + other.outbox.counts["accepted"]
    counted = [(m.sender, m.sequence) for m in map(Message.from_bytes, read_journal(folder / "state"))]
    assert len(counted) == len(set(counted)) >= told
    print(f"all hold the same version {held.version}; {told} updates acknowledged, {len(counted)} counted, none twice")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="qafel-cluster-"))
    brokers, first = start_cluster(folder)
    try:
        asyncio.run(check(folder, brokers, first))
    finally:
        for broker in brokers:
            broker.stop()


if __name__ == "__main__":
    main()
