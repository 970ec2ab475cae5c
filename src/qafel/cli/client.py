"""`qafel client`: a client of a run. The module imports little, because devices are small."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from qafel.cli import advanced, broker_option, output, start_logs
from qafel.errors import ConfigError
from qafel.lazy import require_installed
from qafel.parts import find, is_path
from qafel.text import counted, human_bytes, printable

if TYPE_CHECKING:
    from qafel.algorithm.client import Train

log = logging.getLogger(__name__)

BrokerUrl = Annotated[
    str | None,
    broker_option("--broker", help="URL of the broker. Default: the one in --credentials, else nats://127.0.0.1:4222."),
]
LogJsonOption = Annotated[bool, advanced("--log-json", help="Write log lines as JSON objects.")]


def require_extra() -> None:
    """Raise `ConfigError` if the extra `nats` is not installed."""
    require_installed("a deployment", "nats", "nats", "nkeys", "cryptography", "prometheus_client", "psutil")


def client(
    run: Annotated[str, typer.Option(help="Name of the run on the broker.")],
    client_id: Annotated[
        int | None, typer.Option(metavar="N", help="Client number. Default: from --credentials.", min=0)
    ] = None,
    task: Annotated[str | None, typer.Option(help="Refuse a run whose task is not this one.")] = None,
    train: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Custom training function, by import path.")
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="Allow the run to use this custom task or quantizer. Repeatable."),
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder of the client's state. Default: clients/RUN/ID.")] = None,
    max_updates: Annotated[int | None, typer.Option(metavar="N", help="Stop after this many updates.", min=1)] = None,
    broker: BrokerUrl = None,
    credentials: Annotated[
        Path | None, broker_option(help="Folder `clients/N` that `qafel broker init` wrote.")
    ] = None,
    json_output: Annotated[bool, output("--json", help="Print events as JSON lines.")] = False,
    quiet: Annotated[bool, output("--quiet", "-q", help="Print errors only.")] = False,
    min_interval: Annotated[
        float, advanced(metavar="SECONDS", help="Minimum seconds between two starts.", min=0)
    ] = 0.0,
    follow: Annotated[
        Literal["always", "start"],
        advanced(help="Follow all broadcasts, or download before each start and disconnect between starts."),
    ] = "always",
    max_failures: Annotated[
        int, advanced(metavar="N", help="Stop after this many failed trainings in a row.", min=1)
    ] = 10,
    window: Annotated[int, advanced(metavar="N", help="Maximum uploads without a receipt.", min=1, max=32)] = 8,
    worker: Annotated[Literal["thread", "process"], advanced(help="Where training runs.")] = "thread",
    patience: Annotated[
        float | None, advanced(metavar="SECONDS", help="Seconds to wait for broker and run at the start.")
    ] = 60.0,
    log_json: LogJsonOption = False,
) -> None:
    """Train on this machine's data and upload updates, until the run ends.

    Example: qafel client --run mushrooms-qafel-4bit --client-id 3 --max-updates 100
    """
    require_extra()
    from qafel.deployment import Access, ClientSettings, run_client  # noqa: PLC0415
    from qafel.deployment.client.training import train_task  # noqa: PLC0415

    start_logs(log_json, quiet, level=logging.ERROR if quiet else logging.WARNING)
    access = Access.of(broker, credentials)
    number = access.client if client_id is None else client_id
    if access.client is not None and number != access.client:
        raise ConfigError(f"{credentials} belongs to client {access.client}, not {number}: leave out --client-id")
    if number is None:
        raise ConfigError("which client is this? Give --client-id N, or a client's --credentials")
    report = run_client(
        _imported(train) if train else None,
        run=run,
        client=number,
        state=state or Path("clients") / run / str(number),
        access=access,
        make_train=partial(train_task, expected=task),
        settings=ClientSettings(
            max_updates=max_updates,
            max_failures=max_failures,
            min_interval_s=min_interval,
            follow=follow,
            window=window,
            worker=worker,
            patience_s=patience,
            parts=_named(*(part or ()), *((task,) if task and is_path(task) else ())),
        ),
        on_event=_print_event if json_output else _log_event,
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


def _log_event(event: dict[str, Any]) -> None:
    """Log progress, and what the client waits for."""
    if event["event"] == "waiting":
        log.info(f"waiting: {printable(event['text'])}")
    elif event["event"] == "progress":
        behind = "" if event["behind"] is None else f" ({event['behind']:,} behind)"
        repeats = f", {counted(event['repeated'], 'repeat')}" if event["repeated"] else ""
        line = f"version {event['version']:,}{behind} · {event['accepted']:,} accepted, {event['rejected']:,} rejected"
        waits = f" · waiting for {printable(event['waits_for'])}" if event["waits_for"] else ""
        log.info(f"{line}{repeats} · {event['without_receipt']} without receipt{waits}")


def _print_event(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)
