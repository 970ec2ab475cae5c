"""`qafel status` and `qafel watch`: runs while they are running, in the terminal or in the browser."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from qafel.cli import broker_option, start_logs
from qafel.cli.client import BrokerUrl, require_extra
from qafel.cli.console import JsonOption, console, errors, figures_table, print_json, print_plain
from qafel.errors import BrokerError, BrokerUnreachable, ConfigError
from qafel.lazy import require_installed
from qafel.runs.progress import finite_or_none
from qafel.text import UNKNOWN, counted, cut, human_bytes, human_count, human_metric

if TYPE_CHECKING:
    from qafel.deployment import Access
    from qafel.deployment.status import RunStatus
    from qafel.runs.live import LiveState
    from qafel.watch.sources import Source, Watched

_REFRESH_S = 2.0  # a server publishes its state as often
Credentials = Annotated[
    Path | None,
    broker_option(help="Folder `operator` or `server` that `qafel broker init` wrote."),
]


def status(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Name of one run. Default: all runs.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")] = False,
    broker: BrokerUrl = None,
    credentials: Credentials = None,
    json_output: JsonOption = False,
) -> None:
    """Show deployed runs: one line for each, or all details of one run.

    Example: qafel status --credentials broker/operator --watch
    """
    require_extra()
    from qafel.deployment import Access  # noqa: PLC0415
    from qafel.deployment.status import read_status, watch_status  # noqa: PLC0415

    access = Access.of(broker, credentials)
    if watch:
        with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:

            def show(found: list[RunStatus]) -> None:
                screen = _screen(found) if found else "no runs here"
                if json_output:
                    print(json.dumps(_plain(found)), flush=True)
                elif console.is_terminal:
                    live.update(screen, refresh=True)
                else:
                    console.print(screen)

            asyncio.run(watch_status(access, run, _REFRESH_S, show, lambda text: print_plain(text, errors)))
        return
    found = asyncio.run(read_status(access, run))
    if json_output:
        print_json(_plain(found))
    elif found:
        console.print(_screen(found))
    else:
        typer.echo("no runs here" if run is None else f"no run {run!r} here", err=True)
    if run is not None and not found:
        raise typer.Exit(1)


def _plain(found: list[RunStatus]) -> list[dict[str, Any]]:
    return [{**asdict(one), "state": finite_or_none(asdict(one.state)), "word": one.word} for one in found]


def _screen(found: list[RunStatus]) -> Table:
    return _in_full(found[0]) if len(found) == 1 else _table(found)


def _table(found: list[RunStatus]) -> Table:
    """A line for each run, in 80 columns; long names wrap."""
    table = figures_table("", "run", "state", "version", "updates", "/s", "lag", "total", "metric", words=2)
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
            human_bytes(state.total_bytes),
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
        table.add_row(Text(name), Text(text))  # brackets are not markup

    add("run", one.run)
    add("state", one.word)
    if state.failed_checkpoints:
        failed = f"{counted(state.failed_checkpoints, 'checkpoint')} could not be written"
        add("problem", f"{failed}; {state.problem or 'the last one succeeded'}")
    add("version", f"{_steps(state, '{:,}'.format)}, buffer {state.buffer_fill}/{state.buffer_size}")
    rate = human_count(round(state.updates_per_s, 1))
    add("updates", f"{state.uploads:,}, {rate} a second; {counted(one.waiting, 'message')} waiting")
    if lags:
        median = f"half of them at most {lags[(len(lags) - 1) // 2]:,}"
        add("clients", f"{len(lags)} seen recently, up to {counted(lags[-1], 'version')} behind, {median}")
    if state.failing_count:
        reasons = "; ".join(f"{client}: {why}" for client, why in state.failing.items())
        add("failing", f"training fails on {counted(state.failing_count, 'client')}: {reasons}")
    add("total bytes", human_bytes(state.total_bytes))
    add("sent up", human_bytes(state.upload_bytes_total))
    add("broadcast", human_bytes(state.broadcast_bytes_total))
    add("received", f"{human_bytes(state.received_bytes_total)} reported by the clients")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(state.rejected.items())) or "0"
    add("rejected", reasons + (f"; {counted(state.repeated, 'repeat')}, counted once" if state.repeated else ""))
    if state.metric is not None:
        add(state.metric_name, human_metric(state.metric))
    return table


def _steps(state: LiveState, written: Callable[[int], str]) -> str:
    return written(state.version) + (f"/{written(state.server_steps)}" if state.server_steps else "")


def watch(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="Run directories, or folders that contain runs.")
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the page; 0 selects a free one.", min=0, max=65535)
    ] = 8765,
    address: Annotated[str, typer.Option(help="Address of the page. By default, only this machine reaches it.")] = (
        "127.0.0.1"
    ),
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Accept requests for this host name besides localhost. Repeatable."),
    ] = None,
    broker: Annotated[str | None, broker_option(help="URL of a broker. Default: the one in --credentials.")] = None,
    credentials: Credentials = None,
) -> None:
    """Show simulated and deployed runs live on one page in the browser.

    The page shows the metric, the target and the time left, bytes, buffer, staleness, clients, rejections and rate.
    New runs in a folder appear. `--broker` or `--credentials` adds the runs of a broker.

    Example: qafel watch runs/
    """
    require_installed("the live page", "watch", plotly="Plotly")
    from qafel.http import listen  # noqa: PLC0415
    from qafel.watch import is_loopback, serve  # noqa: PLC0415  (an extra)
    from qafel.watch.sources import Folders  # noqa: PLC0415

    start_logs()
    sources: list[Source] = []
    where = [str(folder) for folder in folders or ()]
    if folders:
        sources.append(Folders(folders))
    if broker is not None or credentials is not None:
        require_extra()
        from qafel.deployment import Access  # noqa: PLC0415
        from qafel.deployment.status import read_status  # noqa: PLC0415

        access = Access.of(broker, credentials)
        runs = _BrokerRuns(access, asyncio.run(read_status(access)))
        sources.append(runs)
        where.append(runs.where)
    if not sources:
        raise ConfigError("nothing to watch: name run directories, folders of them, or a broker with --broker")
    listening = listen(address, port, "the page", ("port", "address"))
    host, bound_port = listening.getsockname()[:2]
    if not is_loopback(address):
        typer.echo(f"the page has no password: everyone who reaches {host}:{bound_port} can read it", err=True)
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound_port}/"

    def ready() -> None:
        typer.echo(f"watching {', '.join(where)} at {url} until Ctrl-C")

    with suppress(KeyboardInterrupt):
        serve(sources, listening, where=", ".join(where), allow_hosts=allow_host or (), ready=ready)


@final
class _BrokerRuns:
    """A source for the page: the runs of a broker, from the states that their servers publish."""

    def __init__(self, access: Access, found: list[RunStatus]) -> None:
        from qafel.watch.sources import Reported  # noqa: PLC0415

        self.where = ", ".join(access.servers)
        self._access = access
        self._states = Reported(self.where)
        self._following: asyncio.Task[None] | None = None
        self._show(found)

    @property
    def note(self) -> str:
        return self._states.note

    async def look(self) -> Sequence[Watched]:
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        return await self._states.look()

    async def _follow(self) -> None:
        from qafel.deployment.status import watch_status  # noqa: PLC0415

        while True:
            with suppress(BrokerError, BrokerUnreachable):
                await watch_status(self._access, None, _REFRESH_S, self._show, self._complain)
            await asyncio.sleep(_REFRESH_S)

    def _show(self, found: list[RunStatus]) -> None:
        for one in found:
            self._states.report(one.run, one.state, one.silent_s)
        self._states.forget_all_but([one.run for one in found])
        self._states.note = ""

    def _complain(self, text: str) -> None:
        self._states.note = f"{text}. Its runs are shown as last received."
