"""A run over real machines: `qafel broker` and `qafel server`. `qafel client` is in `client`."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, final

import typer

from qafel.cli import advanced, broker_option, new_app, output, start_logs
from qafel.cli.client import BrokerUrl, LogJsonOption, require_extra
from qafel.cli.console import (
    JsonOption,
    QuietOption,
    RecipeName,
    SetOption,
    StartOption,
    TrackOption,
    print_json,
    with_start,
)
from qafel.config import load_recipe
from qafel.errors import ConfigError, UserError
from qafel.runs.trackers import track_of
from qafel.text import counted, human_bytes, human_count, human_metric, read_bytes

if TYPE_CHECKING:
    from qafel.deployment.broker import BrokerFolder
    from qafel.runs.live import LiveState

log = logging.getLogger(__name__)

broker = new_app("Set up, change and start a secured broker (NATS JetStream).", no_args_is_help=True)
_COLUMNS = 80
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the broker.")]


@broker.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create.")],
    clients: Annotated[int, typer.Option(metavar="N", help="Number of clients that get keys, numbered from 0.", min=0)],
    host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Host name or address that clients connect to. Repeatable.")
    ] = None,
    address: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port to listen at.", min=1, max=65535)] = 4222,
    run: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="Allow clients this run only. Repeatable.")
    ] = None,
    mutual_tls: Annotated[bool, typer.Option("--mutual-tls", help="Require client certificates.")] = False,
) -> None:
    """Write a nats-server configuration with keys and certificates for a server and N clients.

    Example: qafel broker init broker --clients 5 --host fl.example.org --address 0.0.0.0
    """
    require_extra()
    from qafel.deployment.broker import BrokerFolder  # noqa: PLC0415

    BrokerFolder.init(
        folder, clients, hosts=host or (), address=address, port=port, runs=run or (), mutual_tls=mutual_tls
    )
    typer.echo(
        f"{folder} is ready for {clients} clients:\n"
        f"  qafel broker start {folder}\n"
        f"  qafel server RECIPE --credentials {folder / 'server'}\n"
        f"  qafel client --run RUN --credentials {folder / 'clients' / '0'}"
    )


@broker.command()
def start(folder: Folder) -> None:
    """Run nats-server in the foreground.

    Example: qafel broker start broker
    """
    path = _open(folder).path
    from qafel.deployment.broker import find_nats_server  # noqa: PLC0415

    binary = find_nats_server()
    os.chdir(path)
    os.execv(binary, [str(binary), "-c", "nats-server.conf"])


@broker.command()
def add(
    folder: Folder,
    client: Annotated[list[int], typer.Option(metavar="N", help="Number of a client. Repeatable.", min=0)],
) -> None:
    """Create keys for more clients, or replace the keys of known clients.

    Example: qafel broker add broker --client 5 --client 6
    """
    changed = _open(folder)
    changed.add(client)
    _report_reload(changed, f"{counted(len(client), 'client')} added")


@broker.command()
def revoke(
    folder: Folder, client: Annotated[int, typer.Option(metavar="N", help="Number of the client.", min=0)]
) -> None:
    """Remove a client: the broker no longer accepts its key.

    Example: qafel broker revoke broker --client 5
    """
    changed = _open(folder)
    changed.revoke(client)
    _report_reload(changed, f"client {client} revoked")


@broker.command("remove-run")
def remove_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run on the broker.")],
    force: Annotated[bool, typer.Option("--force", help="Remove a run that may still be running.")] = False,
    broker: BrokerUrl = None,
    credentials: Annotated[Path | None, broker_option(help="Folder `server` that `qafel broker init` wrote.")] = None,
) -> None:
    """Remove a stopped or finished run from the broker. The server's run directory stays.

    Example: qafel broker remove-run mushrooms --credentials broker/server
    """
    require_extra()
    from qafel.deployment import Access, status  # noqa: PLC0415

    word = asyncio.run(status.remove_run(Access.of(broker, credentials), run, force=force))
    typer.echo(f"removed run {run!r} ({word}) from the broker; the server's run directory is unchanged")


def _report_reload(folder: BrokerFolder, done: str) -> None:
    hint = "no broker runs in this folder; one elsewhere needs `nats-server --signal reload` or a restart to apply this"
    typer.echo(f"{done}; {'the broker has reloaded' if folder.reload() else hint}")


def _open(folder: Path) -> BrokerFolder:
    require_extra()
    from qafel.deployment.broker import BrokerFolder  # noqa: PLC0415

    return BrokerFolder(folder)


def server(
    recipe: RecipeName,
    settings: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="Random seed. Default: the recipe's.")] = None,
    start_from: StartOption = None,
    run: Annotated[str | None, typer.Option(help="Name of the run on the broker. Default: the recipe's.")] = None,
    broker: BrokerUrl = None,
    credentials: Annotated[Path | None, broker_option(help="Folder `server` that `qafel broker init` wrote.")] = None,
    local_broker: Annotated[
        bool, broker_option("--local-broker", help="Start a nats-server without keys, for development.")
    ] = False,
    out: Annotated[Path | None, output(help="Run directory. Default: runs/NAME-server.")] = None,
    metrics_port: Annotated[
        int | None, output(metavar="PORT", help="Serve Prometheus metrics here.", min=1, max=65535)
    ] = None,
    track: TrackOption = None,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
    log_json: LogJsonOption = False,
    metrics_address: Annotated[str, advanced(help="Address of the Prometheus metrics.")] = "127.0.0.1",
    port: Annotated[int, advanced(metavar="PORT", help="Port of the local broker.", min=1, max=65535)] = 4222,
    patience: Annotated[
        float | None, advanced(metavar="SECONDS", help="Seconds to wait for the broker at the start.")
    ] = 10.0,
    replicas: Annotated[int, advanced(metavar="N", help="Copies in a clustered broker.", min=1, max=5)] = 1,
    take_over: Annotated[
        bool, advanced("--take-over", help="Replace another server of this run. Updates that only it has are lost.")
    ] = False,
    snapshot_every: Annotated[
        int, advanced(metavar="N", help="Server steps between uploads of the whole x̂ to the broker.", min=1)
    ] = 100,
    checkpoint_every: Annotated[int, advanced(metavar="N", help="Uploads between checkpoints.", min=1)] = 5000,
    link_memory: Annotated[
        str, advanced(metavar="SIZE", help="Disk space for clients' start points, with linked starts.")
    ] = "2GB",
    starts_per_hour: Annotated[
        float, advanced(metavar="N", help="Maximum linked starts per hour and client; 0: no limit.", min=0)
    ] = 3600.0,
    starts_at_once: Annotated[
        int, advanced(metavar="N", help="Clients that wait for a linked start; others are told to ask later.", min=1)
    ] = 64,
    keep_journal: Annotated[bool, advanced("--keep-journal", help="Keep every accepted upload on disk.")] = False,
    max_norm_ratio: Annotated[
        float, advanced(metavar="N", help="Maximum norm of an update, relative to the clients' median; 0: no limit.")
    ] = 5.0,
    norm_excess: Annotated[
        Literal["clip", "reject"], advanced(help="Scale updates above a norm limit down, or reject them.")
    ] = "clip",
    max_norm: Annotated[
        float | None,
        advanced(
            metavar="N",
            help="Maximum norm until three clients are known, then of their median; 0: no limit. Default: by recipe.",
        ),
    ] = None,
    max_weight: Annotated[
        float | None, advanced(metavar="N", help="Maximum weight of a client's update; 0: no limit. Default: 10.")
    ] = None,
    max_rate: Annotated[float, advanced(metavar="N", help="Maximum uploads per second and client; 0: no limit.")] = 0.0,
    max_share: Annotated[
        float,
        advanced(
            metavar="N", help="Maximum share of a client in recent updates, relative to an equal share; 0: no limit."
        ),
    ] = 2.0,
) -> None:
    """Serve a run: receive updates, step, broadcast. After a crash, the same command continues the run.

    Example: qafel server mushrooms-qafel-4bit --local-broker --set stop.server_steps=1000
    """
    require_extra()
    from qafel.deployment import Access, ServerSettings, run_server  # noqa: PLC0415
    from qafel.deployment.broker import LocalBroker  # noqa: PLC0415
    from qafel.deployment.keys import DEFAULT_URL  # noqa: PLC0415
    from qafel.deployment.names import StreamLimits  # noqa: PLC0415
    from qafel.deployment.server import DefenceSettings, StartSettings  # noqa: PLC0415

    start_logs(log_json, quiet)
    config = load_recipe(recipe, with_start(settings, start_from), seed)
    trackers = track_of(track or ())
    name = run or config.name
    out = out or Path("runs") / f"{name}-server"
    if local_broker and (broker or credentials):
        raise ConfigError("--local-broker starts its own broker without keys: leave out --broker and --credentials")
    screen = _ServerScreen()
    with ExitStack() as stack:
        if local_broker:
            stack.enter_context(_removed_on_failure(out / "broker", screen))
            broker = stack.enter_context(LocalBroker((out / "broker").absolute(), port=port)).url
            where = "" if broker == DEFAULT_URL else f" --broker {broker}"
            where += "".join(f" --part {path}" for path in config.custom_parts_of_clients())
            screen.banner = f"broker at {broker}; clients: qafel client --run {name} --client-id N{where}"
        summary = run_server(
            config,
            out,
            access=Access.of(broker, credentials),
            settings=ServerSettings(
                run=name,
                snapshot_every=snapshot_every,
                checkpoint_every=checkpoint_every,
                keep_journal=keep_journal,
                metrics_port=metrics_port,
                metrics_address=metrics_address,
                limits=StreamLimits(replicas=replicas),
                defence=DefenceSettings(
                    max_norm_ratio or None,
                    max_rate or None,
                    norm_excess,
                    math.inf if max_norm == 0 else max_norm,
                    math.inf if max_weight == 0 else max_weight,
                    max_share or None,
                ),
                starts=StartSettings(
                    int(read_bytes(link_memory, "--link-memory")), starts_per_hour or None, starts_at_once
                ),
                take_over=take_over,
                patience_s=patience,
                track=trackers,
            ),
            progress=screen,
        )
    if json_output:
        print_json(summary)
    else:
        log.info(f"{summary['status']} at version {summary['server_steps']:,}; results in {out}")


@final
@dataclass(slots=True)
class _ServerScreen:
    """Logs each state of the run, and before the first one the banner."""

    banner: str = ""
    serves: bool = False
    """Whether the server has started."""

    def __call__(self, state: LiveState) -> None:
        if self.banner and not self.serves:
            log.info(self.banner)
        log.info(_server_line(state))
        self.serves = True


def _server_line(state: LiveState) -> str:
    """The run's state in 80 columns after the time. `qafel status` shows more."""
    rejected = sum(state.rejected.values())
    parts = {
        "state": "" if state.status == "running" else state.status,
        "step": f"step {human_count(state.version)}"
        + (f"/{human_count(state.server_steps)}" if state.server_steps else ""),
        "updates": f"{counted(state.uploads, 'update', human_count)}, {human_count(round(state.updates_per_s))}/s",
        "bytes": human_bytes(state.total_bytes),
        "clients": counted(state.training_count, "client"),
        "rejected": f"{human_count(rejected)} rejected" if rejected else "",
        "repeats": counted(state.repeated, "repeat", human_count) if state.repeated else "",
        "failing": f"{human_count(state.failing_count)} failing" if state.failing_count else "",
        "failed": f"{counted(state.failed_checkpoints, 'checkpoint')} failed" if state.failed_checkpoints else "",
        "metric": "" if state.metric is None else f"{state.metric_name} {human_metric(state.metric)}",
    }
    for least in ("", "repeats", "bytes", "clients"):
        parts.pop(least, None)
        if len(line := " · ".join(part for part in parts.values() if part)) <= _COLUMNS:
            break
    return line


@contextmanager
def _removed_on_failure(folder: Path, screen: _ServerScreen) -> Iterator[None]:
    """Remove a new `folder` again if the server does not start."""
    new = not folder.exists()
    try:
        yield
    except UserError:
        if new and not screen.serves:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # not empty
                folder.parent.rmdir()
        raise
