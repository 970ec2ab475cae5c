"""`qafel status`: the runs of a broker, once or again and again, in 80 columns."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from qafel.cli.client import BrokerUrl, require_extra
from qafel.cli.console import JsonOption, console, errors, figures_table, print_json
from qafel.runs.progress import finite_or_none
from qafel.text import UNKNOWN, counted, cut, human_bytes, human_count, human_metric

if TYPE_CHECKING:
    from qafel.deployment.messages import RunStatus
    from qafel.runs.live import LiveState

_WATCH_S = 2.0  # as often as a server renews its state


def status(
    run: Annotated[str | None, typer.Argument(help="One run; all by default.")] = None,
    broker: BrokerUrl = None,
    credentials: Annotated[
        Path | None, typer.Option(help="The operator's or server's folder that `qafel broker init` wrote.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Show runs: a line each with version, rate, lag and bytes; one run alone in full.

    Example: qafel status --credentials broker/operator --watch
    """
    require_extra()
    from qafel.deployment import Access, messages  # noqa: PLC0415

    access = Access.of(broker, credentials)

    if watch:
        with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
            asyncio.run(
                messages.watch_status(access, run, _WATCH_S, partial(_show_again, live, json_output), _complain)
            )
        return
    found = asyncio.run(messages.read_status(access, run))
    if json_output:
        print_json(_plain(found))
    elif found:
        console.print(_screen(found))
    else:
        typer.echo("no runs here" if run is None else f"no run {run!r} here", err=True)
    if run is not None and not found:
        raise typer.Exit(1)


def _show_again(live: Live, json_output: bool, found: list[RunStatus]) -> None:
    """Show the runs in place on a terminal, else below what was shown before."""
    if json_output:
        print(json.dumps(_plain(found)), flush=True)
    elif console.is_terminal:
        live.update(_screen(found) if found else "no runs here", refresh=True)
    else:
        console.print(_screen(found) if found else "no runs here")


def _complain(text: str) -> None:
    errors.print(text, highlight=False, markup=False)


def _plain(found: list[RunStatus]) -> list[dict[str, Any]]:
    return [{**asdict(one), "state": finite_or_none(asdict(one.state)), "word": one.word} for one in found]


def _screen(found: list[RunStatus]) -> Table:
    return _in_full(found[0]) if len(found) == 1 else _table(found)


def _table(found: list[RunStatus]) -> Table:
    """A line for each run, in 80 columns unless names are very long, which are then folded."""
    table = figures_table("", "run", "state", "version", "updates", "/s", "lag", "bytes", "metric", words=2)
    table.title = None
    for column in table.columns[:2]:
        column.no_wrap, column.overflow, column.min_width = False, "fold", 8
    for one in found:
        state = one.state
        cells = (
            one.run,
            cut(one.word.replace("silent for ", "silent "), 18)
            + (" (!)" if state.problem or state.failing_count else ""),
            _steps(state, human_count),
            human_count(state.uploads),
            human_count(round(state.updates_per_s)),
            human_count(max(state.training.values(), default=math.nan)),
            human_bytes(state.upload_bytes_total + state.broadcast_bytes_total),
            UNKNOWN if state.metric is None else human_metric(state.metric),
        )
        table.add_row(*map(Text, cells))
    return table


def _in_full(one: RunStatus) -> Table:
    state, lags = one.state, sorted(one.state.training.values())
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def add(name: str, text: str) -> None:
        table.add_row(Text(name), Text(text))  # what stands in brackets is not markup

    add("run", one.run)
    add("state", one.word)
    if state.failed_checkpoints:
        failed = f"{counted(state.failed_checkpoints, 'checkpoint')} could not be written"
        add("problem", f"{failed}; {state.problem or 'the last one was'}")
    add("version", f"{_steps(state, '{:,}'.format)}, buffer {state.buffer_fill}/{state.buffer_size}")
    rate = human_count(round(state.updates_per_s, 1))
    add("updates", f"{state.uploads:,}, {rate} a second; {counted(one.waiting, 'message')} waiting")
    if lags:
        median = f"half of them at most {lags[(len(lags) - 1) // 2]:,}"
        add("clients", f"{len(lags)} heard of last, up to {counted(lags[-1], 'version')} behind, {median}")
    if state.failing_count:
        reasons = "; ".join(f"{client}: {why}" for client, why in state.failing.items())
        add("failing", f"training fails at {counted(state.failing_count, 'client')}: {reasons}")
    add("sent up", human_bytes(state.upload_bytes_total))
    add("broadcast", human_bytes(state.broadcast_bytes_total))
    add("received", f"{human_bytes(state.received_bytes_total)} by the clients, as they say")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(state.rejected.items())) or "0"
    add("rejected", reasons + (f"; {counted(state.repeated, 'repeat')}, counted once" if state.repeated else ""))
    if state.metric is not None:
        add(state.metric_name, human_metric(state.metric))
    return table


def _steps(state: LiveState, written: Callable[[int], str]) -> str:
    return written(state.version) + (f"/{written(state.server_steps)}" if state.server_steps else "")
