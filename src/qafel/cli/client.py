"""`qafel client`: take part in a run."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from qafel.cli.broker import require_extra
from qafel.cli.units import human_bytes
from qafel.errors import ConfigError

if TYPE_CHECKING:
    from qafel.algorithm.client import Train
    from qafel.deployment.agreement import Agreement


def client(
    run: Annotated[str, typer.Option(help="The run's name on the broker.")],
    client_id: Annotated[
        int | None, typer.Option(help="This client's number; the credentials' own by default.", min=0)
    ] = None,
    broker: Annotated[str | None, typer.Option(help="The broker's URL; nats://127.0.0.1:4222 by default.")] = None,
    credentials: Annotated[Path | None, typer.Option(help="A client's folder that `qafel broker init` wrote.")] = None,
    task: Annotated[
        str | None, typer.Option(help="The task to train, which must be the run's; the run's by default.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Your own training function, by import path.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Where to keep x̂ and the count; clients/RUN/ID.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Make one update and end.")] = False,
    max_updates: Annotated[int | None, typer.Option(help="End after so many updates.", min=1)] = None,
    min_interval: Annotated[float, typer.Option(help="Least seconds between two starts.", min=0)] = 0.0,
    window: Annotated[int, typer.Option(help="Uploads on their way before training waits.", min=1, max=32)] = 8,
    worker: Annotated[str, typer.Option(help="Where training runs: thread or process.")] = "thread",
    patience: Annotated[float | None, typer.Option(help="Seconds to wait for broker and run at the start.")] = 60.0,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print every event and the report as JSON lines.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Train on what this machine holds and upload, while following the broadcasts; until the run ends.

    Example: qafel client --run mushrooms-qafel-4bit --client-id 3 --min-interval 0.1
    """
    require_extra()
    from qafel.deployment import Access, ClientSettings, run_client  # noqa: PLC0415

    logging.basicConfig(level=logging.ERROR if quiet else logging.WARNING, format="%(message)s")
    access = Access.of(broker, credentials)
    number = access.client if client_id is None else client_id
    if access.client is not None and number != access.client:
        raise ConfigError(f"{credentials} are client {access.client}'s, not client {number}'s: leave out --client-id")
    if number is None:
        raise ConfigError("say which client this is: --client-id N, or a client's --credentials")
    if worker not in ("thread", "process"):
        raise ConfigError(f"--worker is thread or process, got {worker!r}")
    place: Literal["thread", "process"] = "process" if worker == "process" else "thread"
    report = run_client(
        run=run,
        client=number,
        state=state or Path("clients") / run / str(number),
        access=access,
        make_train=TrainFrom(task, train),
        settings=ClientSettings(
            max_updates=1 if once else max_updates,
            min_interval_s=min_interval,
            window=window,
            worker=place,
            patience_s=patience,
        ),
        on_event=_print_event if json_output else None,
    )
    if json_output:
        _print_event({"event": "report", **{name: getattr(report, name) for name in report.__slots__}})
    elif not quiet:
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(report.outcomes.items())) or "none"
        typer.echo(
            f"client {number}: {report.updates:,} updates ({outcomes}), version {report.version:,}, "
            f"{human_bytes(report.sent_bytes)} up, {human_bytes(report.received_bytes)} down; "
            f"run {report.run_state or 'unknown'}",
            err=True,
        )


class TrainFrom:
    """Makes the training function once the run's configuration is known."""

    def __init__(self, task: str | None, path: str | None) -> None:
        self._task = task
        self._function = _imported(path) if path else None

    def __call__(self, agreement: Agreement, number: int) -> tuple[Train, float]:
        if self._function is not None:
            return self._function, 1.0
        from qafel.deployment.task_training import TaskTraining  # noqa: PLC0415

        found = agreement.config.task.name
        if self._task is not None and self._task != found:
            raise ConfigError(f"the run learns {found}, not {self._task}: leave out --task, or choose another --run")
        training = TaskTraining(agreement, number)
        return training, training.weight


def _imported(path: str) -> Callable[..., Any]:
    module, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(f"--train takes MODULE:FUNCTION, got {path!r}")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--train {path}: {error}") from None
    if not callable(function):
        raise ConfigError(f"--train {path} is no function")
    found: Callable[..., Any] = function
    return found


def _print_event(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)
