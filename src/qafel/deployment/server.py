"""The server: takes uploads, makes them safe, broadcasts, acknowledges; in this order, many at a time.

`pipeline` is that order, `serving` its sessions with the broker; here a configuration and a folder become a server.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Final

from qafel.algorithm import PRESETS
from qafel.config import Config
from qafel.deployment.access import Access
from qafel.deployment.heartbeat import Progress
from qafel.deployment.observe import open_rows
from qafel.deployment.results import Summary, write_results
from qafel.deployment.serving import DeploymentServer
from qafel.deployment.settings import ServerSettings
from qafel.deployment.truth import Truth
from qafel.errors import ConfigError
from qafel.results.run_directory import write_atomically
from qafel.rng import Stream
from qafel.tasks import Task

_HISTORY_BYTES: Final = 256 << 20  # of broadcasts, on the broker
_KEPT_BYTES: Final = 4 << 20  # the same, in memory: what a wiped broker gets beside a snapshot


def run_server(
    config: Config,
    out: Path,
    *,
    access: Access | None = None,
    settings: ServerSettings | None = None,
    task: Task | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Serve a run until its last step, its target, or a signal; go on with it if its folder holds it already."""
    return asyncio.run(_serve(config, out, access or Access(), settings or ServerSettings(), task, progress))


async def _serve(
    config: Config, out: Path, access: Access, settings: ServerSettings, task: Task | None, progress: Progress | None
) -> Summary:
    made: Task = await asyncio.to_thread(config.task.make) if task is None else task
    server = open_server(config, out, access, settings, made, progress)
    with server.truth, server.rows:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.end, "stopped")
        await server.run()
        summary = write_results(out, server.state, config, made, server.truth, server.evaluator)
        return {**summary, "wire_sent_bytes": server.wire[0], "wire_received_bytes": server.wire[1]}


def open_server(
    config: Config,
    out: Path,
    access: Access,
    settings: ServerSettings,
    task: Task,
    progress: Progress | None = None,
) -> DeploymentServer:
    """The server with its state from disk, not yet connected."""
    if PRESETS[config.algorithm.preset].synchronous:
        raise ConfigError(f"{config.algorithm.preset} goes in rounds, a deployment does not: take fedbuff or qafel")
    algorithm = config.algorithm.wire(task.layout)
    folder = out / "state"
    _require_same_run(out, config)
    broadcast_bytes = algorithm.server_quantizer.max_payload_bytes(task.layout.size)
    history = max(2, min(settings.limits.history, _HISTORY_BYTES // max(1, broadcast_bytes)))
    truth = Truth.open(
        folder,
        lambda: task.initial_model(Stream.named(config.seed, "initial-model")),
        algorithm,
        config.seed,
        history=max(2, min(history, _KEPT_BYTES // max(1, broadcast_bytes))),
    )
    write_atomically(out / "config.toml", config.to_toml().encode())
    return DeploymentServer(config, task, truth, access, settings, history, open_rows(out), progress)


def _require_same_run(out: Path, config: Config) -> None:
    path = out / "config.toml"
    if (out / "state").exists() and path.exists() and path.read_text(encoding="utf-8") != config.to_toml():
        raise ConfigError(f"{out} holds a run of another configuration: choose another --out")
