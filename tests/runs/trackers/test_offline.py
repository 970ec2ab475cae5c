"""Offline nothing is sent anywhere: neither rows nor what the libraries would tell their makers."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from tests.command import qafel

TRACKERS = ("mlflow", "wandb", "tensorboard")


@pytest.fixture
def asked(monkeypatch):
    """Whom the programs that a test starts ask for over HTTP, whatever the host: this is their proxy."""
    found = []
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "WANDB_")) or name.lower() == "no_proxy":
            monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listening.getsockname()[1]}")

        def listen():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    found.append(connection.recv(200))

        thread = threading.Thread(target=listen)
        thread.start()
        yield found
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.slow
def test_a_run_that_every_tracker_shows_asks_nobody(tmp_path, asked):
    for name in TRACKERS:
        pytest.importorskip(name, reason=f"no {name}: pip install 'qafel[{name}]'")
    tracked = [option for name in TRACKERS for option in ("--track", name)]
    short = ("--set", "stop.server_steps=20", "--quiet", "--out", tmp_path / "mine")
    shown = qafel("run", "mushrooms-fedbuff", *short, *tracked)
    assert shown.stderr == ""
    assert asked == []
    assert (tmp_path / "mlflow.db").exists()
    assert list(tmp_path.glob("mine/wandb/offline-run-*/*.wandb"))
    assert list(tmp_path.glob("mine/events.out.tfevents.*"))
