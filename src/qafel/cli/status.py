"""`qafel status`: the runs of a broker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from qafel.cli.broker import require_extra
from qafel.cli.units import human_bytes

if TYPE_CHECKING:
    from qafel.deployment.status import RunStatus


def status(
    run: Annotated[str | None, typer.Argument(help="One run; all by default.")] = None,
    broker: Annotated[str | None, typer.Option(help="The broker's URL; nats://127.0.0.1:4222 by default.")] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="The operator's or server's folder that `qafel broker init` wrote.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show runs, their versions, how far behind their clients are, rates and bytes.

    Example: qafel status --credentials broker/operator
    """
    require_extra()
    from qafel.deployment.access import Access  # noqa: PLC0415
    from qafel.deployment.status import read_status  # noqa: PLC0415

    found = asyncio.run(read_status(Access.of(broker, credentials), run))
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
    for name in ("run", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("version", "buffer", "updates", "per s", "waiting", "lag", "up", "broadcast", "rejected", "metric"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        state = one.state
        lags = sorted(state.clients.values())
        table.add_row(
            one.run,
            one.word,
            f"{state.version:,}" + (f"/{state.server_steps:,}" if state.server_steps else ""),
            state.buffer,
            f"{state.uploads:,}",
            f"{state.updates_per_s:,.0f}",
            f"{one.waiting:,}",
            f"{lags[len(lags) // 2]}…{lags[-1]} of {len(lags)}" if lags else "–",
            human_bytes(state.upload_bytes),
            human_bytes(state.broadcast_bytes),
            ", ".join(f"{count} {reason}" for reason, count in sorted(state.rejected.items())) or "0",
            "–" if state.metric is None else f"{state.metric:.4g}",
        )
    return table
