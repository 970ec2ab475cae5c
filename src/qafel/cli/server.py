"""`qafel server`: serve a run to real clients over a broker."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qafel.cli.broker import require_extra
from qafel.cli.units import human_bytes
from qafel.config import load_recipe
from qafel.errors import ConfigError

if TYPE_CHECKING:
    from qafel.deployment.agreement import RunState


def server(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (`qafel recipes`) or a TOML file.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a setting; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; the recipe's own by default.")] = None,
    run: Annotated[str | None, typer.Option(help="The run's name on the broker; the recipe's by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the run's state and results are; runs/NAME-server.")] = None,
    broker: Annotated[str | None, typer.Option(help="The broker's URL; nats://127.0.0.1:4222 by default.")] = None,
    credentials: Annotated[Path | None, typer.Option(help="A folder that `qafel broker init` wrote.")] = None,
    local_broker: Annotated[
        bool, typer.Option("--local-broker", help="Start a nats-server of our own; for development.")
    ] = False,
    port: Annotated[int, typer.Option(help="The local broker's port.", min=1, max=65535)] = 4222,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics here.", min=1, max=65535)] = None,
    metrics_address: Annotated[str, typer.Option(help="And at this address.")] = "127.0.0.1",
    snapshot_every: Annotated[int, typer.Option(help="Server steps between snapshots.", min=1)] = 100,
    checkpoint_every: Annotated[int, typer.Option(help="Uploads between checkpoints.", min=1)] = 5000,
    keep_journal: Annotated[bool, typer.Option("--keep-journal", help="Keep every accepted upload.")] = False,
    max_norm_ratio: Annotated[
        float, typer.Option(help="Reject updates whose norm exceeds this multiple of the clients' median; 0: none.")
    ] = 100.0,
    max_rate: Annotated[float, typer.Option(help="Uploads a second that one client may send; 0: any.")] = 0.0,
    replicas: Annotated[int, typer.Option(help="Copies that a clustered broker keeps.", min=1, max=5)] = 1,
    patience: Annotated[float | None, typer.Option(help="Seconds to wait for the broker at the start.")] = 10.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No status line.")] = False,
) -> None:
    """Serve a run: take updates from clients, step, broadcast. Goes on where it was if it was killed.

    Example: qafel server mushrooms-qafel-4bit --local-broker --set stop.server_steps=1000
    """
    require_extra()
    from qafel.deployment import Access, ServerSettings, run_server  # noqa: PLC0415
    from qafel.deployment.defence import DefenceSettings  # noqa: PLC0415
    from qafel.deployment.layout import Limits  # noqa: PLC0415
    from qafel.deployment.local_broker import LocalBroker  # noqa: PLC0415

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    config = load_recipe(recipe, settings or (), seed)
    name = run or config.name
    out = out or Path("runs") / f"{name}-server"
    if local_broker and (broker or credentials):
        raise ConfigError("--local-broker is a broker without keys: leave out --broker and --credentials")
    with ExitStack() as stack:
        if local_broker:
            broker = stack.enter_context(LocalBroker((out / "broker").absolute(), port=port)).url
            if not quiet:
                typer.echo(f"broker at {broker}; clients: qafel client --run {name} --client-id N", err=True)
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
                limits=Limits(replicas=replicas),
                defence=DefenceSettings(max_norm_ratio or None, max_rate or None),
                patience_s=patience,
            ),
            progress=None if quiet else _show,
        )
    if json_output:
        typer.echo(json.dumps(summary, indent=2))
    elif not quiet:
        typer.echo(f"{summary['status']} at version {summary['server_steps']:,}; results in {out}", err=True)


def _show(state: RunState) -> None:
    steps = f"/{state.server_steps:,}" if state.server_steps else ""
    metric = "" if state.metric is None else f" · {state.metric_name} {state.metric:.4g}"
    rejected = sum(state.rejected.values())
    traffic = human_bytes(state.upload_bytes + state.broadcast_bytes)
    typer.echo(
        f"{state.state} · version {state.version:,}{steps} · buffer {state.buffer} · {state.uploads:,} updates, "
        f"{state.updates_per_s:,.0f}/s · {traffic} · {len(state.clients)} clients · {rejected} rejected{metric}",
        err=True,
    )
