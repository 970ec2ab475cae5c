"""`qafel broker`: set up, change and start a secured NATS server. `qafel status`: the runs of a broker."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from qafel.errors import ConfigError
from qafel.text import human_bytes

if TYPE_CHECKING:
    from qafel.deployment.broker.folder import BrokerFolder
    from qafel.deployment.messages import RunStatus

broker = typer.Typer(help="Set up, change and start a secured broker (NATS JetStream).", no_args_is_help=True)


Folder = Annotated[Path, typer.Argument(help="The broker's folder.")]
BrokerUrl = Annotated[str | None, typer.Option("--broker", help="The broker's URL; nats://127.0.0.1:4222 by default.")]


def require_extra() -> None:
    """Raise, with what to install, if a library of the deployment is missing: they are an extra."""
    missing = [
        name for name in ("nats", "nkeys", "cryptography", "prometheus_client") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise ConfigError(f"a deployment needs {', '.join(missing)}: pip install 'qafel[nats]'")


@broker.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    clients: Annotated[int, typer.Option(help="How many clients get keys; numbered from 0.", min=0)],
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address under which the broker is reached; may be repeated.")
    ] = None,
    address: Annotated[str, typer.Option(help="Where it listens; 0.0.0.0 for everywhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 4222,
    run: Annotated[
        list[str] | None, typer.Option(help="Let clients take part in this run only; may be repeated.")
    ] = None,
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
    _say(changed.reload(), f"{len(client)} clients added", "they are not let in")


@broker.command()
def revoke(folder: Folder, client: Annotated[int, typer.Option(min=0)]) -> None:
    """Remove a client: its key is worth nothing from now on."""
    changed = _open(folder)
    changed.revoke(client)
    _say(changed.reload(), f"client {client} revoked", "it is still let in")


def _say(reloaded: bool, what: str, until_then: str) -> None:
    if reloaded:
        typer.echo(f"{what}; the broker has reloaded")
    else:
        typer.echo(
            f"{what}; the broker could not be reloaded, because none runs in this folder: if one runs in a container "
            f"or on another machine, {until_then} until it reads this: `nats-server --signal reload` or restart it"
        )


def _open(folder: Path) -> BrokerFolder:
    require_extra()
    from qafel.deployment.broker.folder import BrokerFolder  # noqa: PLC0415

    return BrokerFolder(folder)


def status(
    run: Annotated[str | None, typer.Argument(help="One run; all by default.")] = None,
    broker: BrokerUrl = None,
    credentials: Annotated[
        Path | None, typer.Option(help="The operator's or server's folder that `qafel broker init` wrote.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show runs, their versions, how far behind their clients are, rates and bytes.

    Example: qafel status --credentials broker/operator
    """
    require_extra()
    from qafel.deployment import Access, messages  # noqa: PLC0415

    found = asyncio.run(messages.read_status(Access.of(broker, credentials), run))
    if json_output:
        typer.echo(json.dumps([{**asdict(one), "word": one.word} for one in found], indent=2))
    elif found:
        Console().print(_table(found))
    else:
        typer.echo("no runs here" if run is None else f"no run {run!r} here", err=True)
    if run is not None and not found:
        raise typer.Exit(1)


def _table(found: list[RunStatus]) -> Table:
    table = Table(box=None, header_style="bold")
    for number, name in enumerate(_cells(found[0])):
        table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    for one in found:
        table.add_row(*_cells(one).values())
    return table


def _cells(one: RunStatus) -> dict[str, str]:
    state, lags = one.state, sorted(one.state.clients.values())
    return {
        "run": one.run,
        "state": one.word,
        "version": f"{state.version:,}" + (f"/{state.server_steps:,}" if state.server_steps else ""),
        "buffer": state.buffer,
        "updates": f"{state.uploads:,}",
        "per s": f"{state.updates_per_s:,.0f}",
        "waiting": f"{one.waiting:,}",
        "lag": f"{lags[len(lags) // 2]}…{lags[-1]} of {len(lags)}" if lags else "–",
        "up": human_bytes(state.upload_bytes),
        "broadcast": human_bytes(state.broadcast_bytes),
        "rejected": ", ".join(f"{count} {reason}" for reason, count in sorted(state.rejected.items())) or "0",
        "metric": "–" if state.metric is None else f"{state.metric:.4g}",
    }
