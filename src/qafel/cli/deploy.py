"""A run over real machines: `qafel broker` and `qafel server`; `qafel client` is a module of its own."""

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

from qafel.cli import logs
from qafel.cli.client import BrokerUrl, client, require_extra
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
from qafel.text import counted, human_bytes, human_count, human_metric

if TYPE_CHECKING:
    from qafel.deployment.broker.folder import BrokerFolder
    from qafel.runs.live import LiveState

__all__ = ["broker", "client", "server"]

log = logging.getLogger(__name__)

broker = typer.Typer(help="Set up, change and start a secured broker (NATS JetStream).", no_args_is_help=True)
_COLUMNS = 80
Folder = Annotated[Path, typer.Argument(help="The broker's folder.")]


@broker.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    clients: Annotated[int, typer.Option(help="How many clients get keys; numbered from 0.", min=0)],
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address under which the broker is reached; may be repeated.")
    ] = None,
    address: Annotated[str, typer.Option(help="Where it listens; 0.0.0.0 for everywhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 4222,
    run: Annotated[list[str] | None, typer.Option(help="Clients take part in this run only.")] = None,
    mutual_tls: Annotated[bool, typer.Option("--mutual-tls", help="Clients show a certificate as well.")] = False,
) -> None:
    """Write a ready nats-server configuration with keys and certificates for a server and N clients.

    Example: qafel broker init broker --clients 5 --host fl.example.org --address 0.0.0.0
    """
    require_extra()
    from qafel.deployment.broker.folder import BrokerFolder  # noqa: PLC0415

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
    """Run nats-server on the folder, in the foreground."""
    path = _open(folder).path
    from qafel.deployment.broker.local import find_nats_server  # noqa: PLC0415

    binary = find_nats_server()
    os.chdir(path)
    os.execv(binary, [str(binary), "-c", "nats-server.conf"])


@broker.command()
def add(folder: Folder, client: Annotated[list[int], typer.Option(help="May be repeated.", min=0)]) -> None:
    """Make keys for further clients, or new ones for known clients."""
    changed = _open(folder)
    changed.add(client)
    _say(changed.reload(), f"{counted(len(client), 'client')} added", "no new key is let in")


@broker.command()
def revoke(folder: Folder, client: Annotated[int, typer.Option(min=0)]) -> None:
    """Remove a client: its key is worth nothing from now on."""
    changed = _open(folder)
    changed.revoke(client)
    _say(changed.reload(), f"client {client} revoked", "it is still let in")


@broker.command("remove-run")
def remove_run(
    run: Annotated[str, typer.Argument(help="The run's name on the broker.")],
    credentials: Annotated[
        Path | None, typer.Option(help="The server's folder that `qafel broker init` wrote.")
    ] = None,
    broker: BrokerUrl = None,
    force: Annotated[bool, typer.Option("--force", help="Even if it does not say that it was stopped.")] = False,
) -> None:
    """Take a run that was stopped or has ended off the broker, with all that is reserved for it.

    The server's folder stays as it is. Example: qafel broker remove-run mushrooms --credentials broker/server
    """
    require_extra()
    from qafel.deployment import Access  # noqa: PLC0415
    from qafel.deployment.broker import removal  # noqa: PLC0415

    word = asyncio.run(removal.remove_run(Access.of(broker, credentials), run, force=force))
    typer.echo(f"run {run!r}, {word}, is off the broker; its server's folder is as it was")


def _say(reloaded: bool, what: str, until_then: str) -> None:
    not_reloaded = (
        "the broker could not be reloaded, because none runs in this folder: if one runs in a container or on another "
        f"machine, {until_then} until it reads this: `nats-server --signal reload` or restart it"
    )
    typer.echo(f"{what}; {'the broker has reloaded' if reloaded else not_reloaded}")


def _open(folder: Path) -> BrokerFolder:
    require_extra()
    from qafel.deployment.broker.folder import BrokerFolder  # noqa: PLC0415

    return BrokerFolder(folder)


def server(
    recipe: RecipeName,
    settings: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; the recipe's own by default.")] = None,
    start_from: StartOption = None,
    run: Annotated[str | None, typer.Option(help="The run's name on the broker; the recipe's by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the run's state and results are; runs/NAME-server.")] = None,
    broker: BrokerUrl = None,
    credentials: Annotated[Path | None, typer.Option(help="A folder that `qafel broker init` wrote.")] = None,
    local_broker: Annotated[bool, typer.Option("--local-broker", help="Start a nats-server, for development.")] = False,
    port: Annotated[int, typer.Option(help="The local broker's port.", min=1, max=65535)] = 4222,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics here.", min=1, max=65535)] = None,
    metrics_address: Annotated[str, typer.Option(help="And at this address.")] = "127.0.0.1",
    snapshot_every: Annotated[int, typer.Option(help="Server steps between snapshots.", min=1)] = 100,
    checkpoint_every: Annotated[int, typer.Option(help="Uploads between checkpoints.", min=1)] = 5000,
    keep_journal: Annotated[bool, typer.Option("--keep-journal", help="Keep every accepted upload.")] = False,
    max_norm_ratio: Annotated[
        float, typer.Option(help="The largest norm of an update, as a multiple of the clients' median; 0: any.")
    ] = 5.0,
    norm_excess: Annotated[
        Literal["clip", "reject"], typer.Option(help="Whether an update beyond it is scaled down to it, or rejected.")
    ] = "clip",
    max_norm: Annotated[
        float | None, typer.Option(help="The largest norm before three clients sent any, and of their median; 0: any.")
    ] = None,
    max_weight: Annotated[
        float | None, typer.Option(help="The largest weight that a client may claim; 10 by default; 0: any.")
    ] = None,
    max_rate: Annotated[float, typer.Option(help="Uploads a second that one client may send; 0: any.")] = 0.0,
    max_share: Annotated[
        float,
        typer.Option(help="One client's largest share of recent updates, as a multiple of an equal one; 0: any."),
    ] = 2.0,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Take the run from another server, with all that only it has."),
    ] = False,
    replicas: Annotated[int, typer.Option(help="Copies that a clustered broker keeps.", min=1, max=5)] = 1,
    patience: Annotated[float | None, typer.Option(help="Seconds to wait for the broker at the start.")] = 10.0,
    track: TrackOption = None,
    json_output: JsonOption = False,
    log_json: logs.LogJsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Serve a run: take updates from clients, step, broadcast. Goes on where it was if it was killed.

    Example: qafel server mushrooms-qafel-4bit --local-broker --set stop.server_steps=1000
    """
    require_extra()
    from qafel.deployment import Access, ServerSettings, run_server  # noqa: PLC0415
    from qafel.deployment.broker.local import LocalBroker  # noqa: PLC0415
    from qafel.deployment.keys import DEFAULT_URL  # noqa: PLC0415
    from qafel.deployment.names import StreamLimits  # noqa: PLC0415
    from qafel.deployment.server import DefenceSettings  # noqa: PLC0415

    logs.start(log_json, quiet)
    config = load_recipe(recipe, with_start(settings, start_from), seed)
    trackers = track_of(track or ())
    name = run or config.name
    out = out or Path("runs") / f"{name}-server"
    if local_broker and (broker or credentials):
        raise ConfigError("--local-broker is a broker without keys: leave out --broker and --credentials")
    screen = _ServerScreen()
    with ExitStack() as stack:
        if local_broker:
            stack.enter_context(_not_left_behind(out / "broker", screen))
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
    """Logs the run's state every time that it is renewed; before the first, when nothing was refused, the banner."""

    banner: str = ""
    serves: bool = False
    """Whether the run's state was ever told, so that nothing was refused."""

    def __call__(self, state: LiveState) -> None:
        if self.banner and not self.serves:
            log.info(self.banner)
        log.info(_server_line(state))
        self.serves = True


def _server_line(state: LiveState) -> str:
    """How the run stands, in 80 columns beside the time: what there is no room for, `qafel status` tells."""
    rejected = sum(state.rejected.values())
    parts = {
        "state": "" if state.status == "running" else state.status,
        "step": f"step {human_count(state.version)}"
        + (f"/{human_count(state.server_steps)}" if state.server_steps else ""),
        "updates": f"{counted(state.uploads, 'update', human_count)}, {human_count(round(state.updates_per_s))}/s",
        "bytes": human_bytes(state.upload_bytes_total + state.broadcast_bytes_total),
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
def _not_left_behind(folder: Path, screen: _ServerScreen) -> Iterator[None]:
    """A context after which a new `folder` is gone again, if what was asked for was refused before it began."""
    new = not folder.exists()
    try:
        yield
    except UserError:
        if new and not screen.serves:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # it holds something else
                folder.parent.rmdir()
        raise
