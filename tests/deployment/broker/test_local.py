"""A broker of our own ends with us, and its store and port are taken over by who comes next."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

import pytest

from qafel.deployment.broker import LocalBroker, free_port
from qafel.errors import BrokerUnreachable
from tests.deployment.processes import Command, wait_for


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _server(tmp_path: Path, port: int) -> Command:
    return Command(
        "server", tmp_path / "server.out", "mushrooms-qafel-4bit", "--local-broker", "--port", str(port), "--out",
        str(tmp_path / "run"), "--quiet", "--json",
    )  # fmt: skip


@pytest.mark.slow
def test_a_killed_servers_broker_ends_and_the_next_server_takes_its_store_over(tmp_path: Path) -> None:
    port = free_port()
    server = _server(tmp_path, port)
    client = Command(
        "client", tmp_path / "client.out", "--run", "mushrooms-qafel-4bit", "--client-id", "7", "--broker",
        f"nats://127.0.0.1:{port}", "--state", str(tmp_path / "state"), "--min-interval", "0.01", "--json",
    )  # fmt: skip
    try:
        wait_for(lambda: _version(client) >= 2, "two steps")
        server.kill()
        wait_for(lambda: not _listens(port), "the broker to end with its server")
        server = _server(tmp_path, port)
        before = _version(client)
        wait_for(lambda: _version(client) >= before + 2, "training to go on")
        server.kill()
        server = _server(tmp_path, port)  # at once: the old broker may still be there
        before = _version(client)
        wait_for(lambda: _version(client) >= before + 2, "training to go on")
        assert client.end() == 0
        assert server.end() == 0, server.output.with_suffix(".err").read_text(encoding="utf-8")
        assert not _listens(port)
    finally:
        for command in (client, server):
            if command.alive:
                command.kill()
    log = (tmp_path / "run" / "broker" / "nats-server.log").read_text(encoding="utf-8")
    assert "Restored" in log
    assert "[FTL]" not in log


def test_a_folder_has_one_broker_and_a_port_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qafel.deployment.broker._TAKE_OVER_S", 0.2)
    with LocalBroker(tmp_path / "broker") as broker:
        with pytest.raises(BrokerUnreachable, match="another nats-server uses"):
            LocalBroker(tmp_path / "broker").start()
        with pytest.raises(BrokerUnreachable, match="choose another `port`"):
            LocalBroker(tmp_path / "other", port=broker.port).start()
        broker.stop(signal.SIGKILL)
        broker.start()
    with LocalBroker(tmp_path / "broker"):
        pass


def _version(client: Command) -> int:
    return max((event["version"] for event in client.events() if event["event"] == "version"), default=0)
