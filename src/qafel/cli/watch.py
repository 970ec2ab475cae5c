"""`qafel watch`: runs on a page in the browser, while they go on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from qafel.cli import logs
from qafel.cli.client import BrokerUrl, require_extra
from qafel.errors import BrokerError, BrokerUnreachable, ConfigError
from qafel.lazy import require_installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qafel.deployment import Access
    from qafel.deployment.messages import RunStatus
    from qafel.watch.sources import Source
    from qafel.watch.watched import Watched

_RENEWED_S = 2.0  # as often as a server renews its state


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Run directories, or folders in which runs are or will be."),
    ] = None,
    broker: BrokerUrl = None,
    credentials: Annotated[
        Path | None, typer.Option(help="The operator's or server's folder that `qafel broker init` wrote.")
    ] = None,
    port: Annotated[int, typer.Option(help="The page's port; 0 takes any that is free.", min=0, max=65535)] = 8765,
    address: Annotated[
        str, typer.Option(help="The page's address; by default only this machine sees it.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Answer to this name, too, besides localhost. May be repeated.")
    ] = None,
) -> None:
    """Show runs on one page in the browser, live: simulated ones, deployed ones, several side by side.

    It shows the metric with target and time left, bytes, buffer, staleness, clients, rejections and rate. Runs that
    begin later in a folder show up; with `--broker` or `--credentials`, so do the runs of a broker.

    Example: qafel watch runs/
    """
    require_installed("the live page", "watch", plotly="Plotly")
    from qafel.http import listen  # noqa: PLC0415  (no other command needs it)
    from qafel.watch import serve  # noqa: PLC0415  (an extra)
    from qafel.watch.sources import Folders  # noqa: PLC0415

    logs.start()
    sources: list[Source] = []
    where = [str(folder) for folder in folders or ()]
    if folders:
        sources.append(Folders(folders))
    if broker is not None or credentials is not None:
        runs = _broker_runs(broker, credentials)
        sources.append(runs)
        where.append(runs.where)
    if not sources:
        raise ConfigError("say what to watch: run directories or folders of them, or a broker with --broker")
    listening = listen(address, port, "the page", ("port", "address"))
    host, own_port = listening.getsockname()[:2]
    if not serve.is_loopback(address):
        typer.echo(f"anyone who reaches {host}:{own_port} can read the page: it asks for no password", err=True)
    shown = f"[{host}]" if ":" in host else host

    def ready() -> None:
        typer.echo(f"watching {', '.join(where)} at http://{shown}:{own_port}/ until Ctrl-C")

    with suppress(KeyboardInterrupt):
        serve.serve(sources, listening, where=", ".join(where), allow_hosts=allow_host or (), ready=ready)


def _broker_runs(broker: str | None, credentials: Path | None) -> _BrokerRuns:
    """The runs of a broker, which must be there at the beginning."""
    require_extra()
    from qafel.deployment import Access, messages  # noqa: PLC0415

    access = Access.of(broker, credentials)
    found = asyncio.run(messages.read_status(access))
    return _BrokerRuns(access, found)


@final
class _BrokerRuns:
    """The runs of a broker, as their servers tell of them. It is a source for the page."""

    def __init__(self, access: Access, found: list[RunStatus]) -> None:
        from qafel.watch.sources import Told  # noqa: PLC0415

        self.where = ", ".join(access.servers)
        self._access = access
        self._told = Told(self.where)
        self._following: asyncio.Task[None] | None = None
        self._show(found)

    @property
    def note(self) -> str:
        return self._told.note

    async def look(self) -> Sequence[Watched]:
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        return await self._told.look()

    async def _follow(self) -> None:
        from qafel.deployment import messages  # noqa: PLC0415

        while True:
            with suppress(BrokerError, BrokerUnreachable):
                await messages.watch_status(self._access, None, _RENEWED_S, self._show, self._complain)
            await asyncio.sleep(_RENEWED_S)

    def _show(self, found: list[RunStatus]) -> None:
        for one in found:
            self._told.tell(one.run, one.state, one.silent_s)
        self._told.forget_all_but([one.run for one in found])
        self._told.note = ""

    def _complain(self, text: str) -> None:
        self._told.note = f"{text}. What is shown of its runs is what was heard last."
