"""`qafel client`: a client of a run. It loads what a client needs and nothing else, because devices are small."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from qafel.cli import logs
from qafel.errors import ConfigError
from qafel.lazy import require_installed
from qafel.parts import find, is_path
from qafel.text import counted, human_bytes, printable

if TYPE_CHECKING:
    from qafel.algorithm.client import Train

log = logging.getLogger(__name__)

BrokerUrl = Annotated[str | None, typer.Option("--broker", help="The broker's URL; nats://127.0.0.1:4222 by default.")]


def require_extra() -> None:
    """Raise, with what to install, if a library of the deployment is missing: they are an extra."""
    require_installed("a deployment", "nats", "nats", "nkeys", "cryptography", "prometheus_client")


def client(
    run: Annotated[str, typer.Option(help="The run's name on the broker.")],
    client_id: Annotated[int | None, typer.Option(help="Its number; by default the credentials'.", min=0)] = None,
    broker: BrokerUrl = None,
    credentials: Annotated[Path | None, typer.Option(help="A client's folder that `qafel broker init` wrote.")] = None,
    task: Annotated[
        str | None, typer.Option(help="The task to train, which must be the run's; the run's by default.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Your own training function, by import path.")
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="An own task or quantizer that the run may name: nothing else is imported. May be repeated.",
        ),
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Where to keep x̂ and the count; clients/RUN/ID.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Make one update and end.")] = False,
    max_updates: Annotated[int | None, typer.Option(help="End after so many updates.", min=1)] = None,
    max_failures: Annotated[int, typer.Option(help="End after so many failures of training in a row.", min=1)] = 10,
    min_interval: Annotated[float, typer.Option(help="Least seconds between two starts.", min=0)] = 0.0,
    window: Annotated[int, typer.Option(help="Uploads on their way before training waits.", min=1, max=32)] = 8,
    worker: Annotated[str, typer.Option(help="Where training runs: thread or process.")] = "thread",
    patience: Annotated[float | None, typer.Option(help="Seconds to wait for broker and run at the start.")] = 60.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
    log_json: logs.LogJsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Train on what this machine holds and upload, while following the broadcasts; until the run ends.

    Example: qafel client --run mushrooms-qafel-4bit --client-id 3 --min-interval 0.1
    """
    require_extra()
    from qafel.deployment import Access, ClientSettings, run_client  # noqa: PLC0415
    from qafel.deployment.client.client import train_task  # noqa: PLC0415

    logs.start(log_json, quiet, level=logging.ERROR if quiet else logging.WARNING)
    access = Access.of(broker, credentials)
    number = access.client if client_id is None else client_id
    if access.client is not None and number != access.client:
        raise ConfigError(f"{credentials} are client {access.client}'s, not client {number}'s: leave out --client-id")
    if number is None:
        raise ConfigError("say which client this is: --client-id N, or a client's --credentials")
    if worker not in ("thread", "process"):
        raise ConfigError(f"--worker is thread or process, got {worker!r}")
    report = run_client(
        _imported(train) if train else None,
        run=run,
        client=number,
        state=state or Path("clients") / run / str(number),
        access=access,
        make_train=partial(train_task, expected=task),
        settings=ClientSettings(
            max_updates=1 if once else max_updates,
            max_failures=max_failures,
            min_interval_s=min_interval,
            window=window,
            worker=cast(Literal["thread", "process"], worker),
            patience_s=patience,
            parts=_named(*(part or ()), *((task,) if task and is_path(task) else ())),
        ),
        on_event=_print_event if json_output else _tell,
    )
    if json_output:
        _print_event({"event": "report", **asdict(report)})
    else:
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(report.outcomes.items())) or "none"
        log.info(
            f"client {number}: {counted(report.updates, 'update')} ({outcomes}), version {report.version:,}, "
            f"{human_bytes(report.sent_bytes)} up, {human_bytes(report.received_bytes)} down; "
            f"run {report.run_state or 'unknown'}"
        )


def _imported(path: str) -> Train:
    if not is_path(path):
        raise ConfigError(f"--train takes MODULE:FUNCTION, got {path!r}")
    function = find(path)
    if not callable(function):
        raise ConfigError(f"--train {path} is not a function")
    return cast("Train", function)


def _named(*paths: str) -> tuple[str, ...]:
    for path in paths:
        if not is_path(path):
            raise ConfigError(f"--part takes package.module:Name, got {path!r}")
    return paths


def _tell(event: dict[str, Any]) -> None:
    """A line for a person: now and then how it goes, at once that it waits."""
    if event["event"] == "waiting":
        log.info(f"waiting: {printable(event['text'])}")
    elif event["event"] == "progress":
        behind = "" if event["behind"] is None else f" ({event['behind']:,} behind)"
        repeats = f", {counted(event['repeated'], 'repeat')}" if event["repeated"] else ""
        line = f"version {event['version']:,}{behind} · {event['accepted']:,} accepted, {event['rejected']:,} rejected"
        waits = f" · waiting for {printable(event['waits_for'])}" if event["waits_for"] else ""
        log.info(f"{line}{repeats} · {event['without_receipt']} on their way{waits}")


def _print_event(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)
