"""`qafel broker`: a secured NATS server's configuration, keys and certificates; and to start it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from qafel.errors import ConfigError

broker = typer.Typer(help="Set up, change and start a secured broker (NATS JetStream).", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The broker's folder.")]


def require_extra() -> None:
    """The deployment's libraries are an extra: say so, where they are missing."""
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
    from qafel.deployment.broker_folder import BrokerFolder  # noqa: PLC0415

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
    require_extra()
    from qafel.deployment.broker_folder import BrokerFolder  # noqa: PLC0415
    from qafel.deployment.local_broker import find_nats_server  # noqa: PLC0415

    binary = find_nats_server()
    os.chdir(BrokerFolder(folder).path)
    os.execv(binary, [str(binary), "-c", "nats-server.conf"])


@broker.command()
def add(folder: Folder, client: Annotated[list[int], typer.Option(help="May be repeated.", min=0)]) -> None:
    """Make keys for further clients, or new ones for known clients."""
    require_extra()
    from qafel.deployment.broker_folder import BrokerFolder  # noqa: PLC0415

    changed = BrokerFolder(folder)
    changed.add(client)
    _say(changed.reload(), f"{len(client)} clients added", "they are not let in")


@broker.command()
def revoke(folder: Folder, client: Annotated[int, typer.Option(min=0)]) -> None:
    """Strike a client off: its key is worth nothing from now on."""
    require_extra()
    from qafel.deployment.broker_folder import BrokerFolder  # noqa: PLC0415

    changed = BrokerFolder(folder)
    changed.revoke(client)
    _say(changed.reload(), f"client {client} revoked", "it is still let in")


def _say(reloaded: bool, what: str, until_then: str) -> None:
    if reloaded:
        typer.echo(f"{what}; the broker has reloaded")
    else:
        typer.echo(
            f"{what}; the broker could not be reloaded, as none was found at work in this folder: where one runs, in a "
            f"container or on another machine, {until_then} until it reads this. There: `nats-server --signal reload`, "
            "or restart it"
        )
