"""`qafel plan`: what a budget affords, before anything is run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import tomli_w
import typer
from rich.table import Column, Table

from qafel.cli.console import JsonOption, console, errors
from qafel.config import Config
from qafel.config.tasks import TASKS
from qafel.errors import ConfigError
from qafel.parts import is_path
from qafel.planning import BudgetPlan, Choice, DurationLaw, Fleet, PlanRequest, make_plan, plan_json, reasons
from qafel.planning.plan import CLIENT_SPECS, SERVER_SPECS
from qafel.quantizers import Quantizer, is_measured
from qafel.tasks.protocol import Task
from qafel.text import human_bytes, human_seconds, read_bytes, read_seconds
from qafel.theory import Constants, estimate_constants, sampled_clients


def plan(
    size: Annotated[int | None, typer.Option("--size", "-d", min=1, help="Parameters of the model.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="The number of clients.")] = None,
    task_name: Annotated[
        str | None, typer.Option("--task", help="Take the size and clients of a task; measure L, σ_ℓ and B on it.")
    ] = None,
    byte_budget: Annotated[str | None, typer.Option(help="For uploads and broadcasts (each once): 10GB.")] = None,
    every_copy: Annotated[bool, typer.Option("--every-copy", help="Count a broadcast once per receiver.")] = False,
    time_budget: Annotated[str | None, typer.Option(help="For the training: 3600, 90min, 12h, 2d.")] = None,
    duration: Annotated[
        str, typer.Option(help="The time per update: seconds, or half-normal:1, log-normal:1,0.5, uniform:1,0.5.")
    ] = "half-normal:1",
    upload_rate: Annotated[str | None, typer.Option(help="Bytes per second that a client uploads: 1Mbit.")] = None,
    download_rate: Annotated[str | None, typer.Option(help="Bytes per second that a client downloads.")] = None,
    latency: Annotated[str, typer.Option(help="The latency of every message: 50ms.")] = "0",
    arrival_rate: Annotated[float | None, typer.Option(help="Clients that start per second; else all train.")] = None,
    local_steps: Annotated[int, typer.Option(min=1, help="P, the local steps of an update.")] = 10,
    buffer_size: Annotated[int | None, typer.Option(min=1, help="K; by default the plan chooses it.")] = None,
    client_quantizer: Annotated[
        list[str] | None, typer.Option(help="A client quantizer to consider; can be repeated; by default many.")
    ] = None,
    server_quantizer: Annotated[
        list[str] | None, typer.Option(help="A server quantizer to consider; can be repeated; by default many.")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="L, the smoothness of the loss.")] = None,
    noise: Annotated[float | None, typer.Option(help="σ_ℓ, the noise of a gradient.")] = None,
    heterogeneity: Annotated[float | None, typer.Option(help="B, the heterogeneity of the clients.")] = None,
    gap: Annotated[float | None, typer.Option(help="f(x⁰) − f*, the gap at the start.")] = None,
    max_staleness: Annotated[int | None, typer.Option(min=0, help="τ_max,1 in updates; else from durations.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Batch size of the measured gradients.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the measured constants; 0 by default.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TASK.KEY=VALUE", help="Change a setting of the --task.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Recommend quantizers, K and step sizes for a budget of bytes or time, by the paper's theorem.

    Example: qafel plan --task quadratic --byte-budget 100MB --duration half-normal:1
    """
    given = {"smoothness": smoothness, "gradient_noise": noise, "heterogeneity": heterogeneity, "initial_gap": gap}
    missing = [name for name, value in given.items() if value is None]
    if byte_budget is None and time_budget is None:
        raise ConfigError("a plan needs a budget: --byte-budget, --time-budget, or both")
    if every_copy and byte_budget is None:
        raise ConfigError("--every-copy needs a --byte-budget: give one, or leave out --every-copy")
    if task_name is None and batch_size is not None:
        raise ConfigError("--batch-size needs a --task: name one, or leave out --batch-size")
    for setting in settings or ():
        if task_name is None or not setting.strip().startswith("task."):
            raise ConfigError(f"--set changes settings of the --task, such as task.clients=10; got {setting!r}")
    if seed is not None and (task_name is None or not missing):
        raise ConfigError("--seed is used only to measure constants on a --task, and none are measured: leave it out")
    fleet_of: dict[str, Any] = {
        "durations": DurationLaw.parse(duration),
        "upload_rate": None if upload_rate is None else read_bytes(upload_rate, "--upload-rate"),
        "download_rate": None if download_rate is None else read_bytes(download_rate, "--download-rate"),
        "latency": read_seconds(latency, "--latency"),
        "arrival_rate": arrival_rate,
    }
    budgets = {
        "budget_bytes": None if byte_budget is None else read_bytes(byte_budget, "--byte-budget"),
        "budget_s": None if time_budget is None else read_seconds(time_budget, "--time-budget"),
    }
    task = None if task_name is None else _task(task_name, clients, size, settings or ())
    size, clients = (task.layout.size, task.clients) if task else (size, clients)
    if size is None or clients is None:
        raise ConfigError("give --size and --clients, or a --task that has them")
    fleet = Fleet(clients=clients, **fleet_of)
    constants, measured = _constants(task, given, missing, seed or 0, batch_size)
    request = PlanRequest(
        size=size,
        fleet=fleet,
        constants=constants,
        local_steps=local_steps,
        batch_size=batch_size,
        every_copy=every_copy,
        max_staleness=max_staleness,
        client_specs=client_quantizer or CLIENT_SPECS,
        server_specs=server_quantizer or SERVER_SPECS,
        buffer_sizes=None if buffer_size is None else (buffer_size,),
        layout=task.layout if task else None,
        measured=measured,
        **budgets,
    )
    made = make_plan(request)
    if json_output:
        print(json.dumps(plan_json(made), indent=2, ensure_ascii=False))
    else:
        _show(made)


def _task(name: str, clients: int | None, size: int | None, overrides: Iterable[str]) -> Task:
    if is_path(name) and (clients or size) is not None:
        raise ConfigError(f"--clients and --size: {name} sets its own; say --set task.arguments.NAME=VALUE instead")
    if size is not None and name in TASKS and "dimension" not in TASKS[name].model_fields:
        raise ConfigError(f"--size: the task {name} sets the size of its model; leave it out")
    settings = {"name": name, "clients": clients, "dimension": size}
    given = {key: value for key, value in settings.items() if value is not None}
    return Config.from_toml(tomli_w.dumps({"task": given}), "qafel plan", overrides).task.make()


def _constants(
    task: Task | None, given: dict[str, float | None], missing: list[str], seed: int, batch: int | None
) -> tuple[Constants, dict[str, int | None]]:
    """The constants as given, and those that are missing measured on the task; and on how many clients each was."""
    if not missing:
        return Constants(**given), {}  # type: ignore[arg-type]  # none is missing
    if task is None:
        raise ConfigError(
            "the theorem needs --smoothness (L), --noise (σ_ℓ), --heterogeneity (B) and --gap (f(x⁰) − f*); "
            "or name a --task to measure them on"
        )
    errors.print(f"measuring L, σ_ℓ and B of {task.name} at x⁰ …", style="dim", highlight=False)
    found = estimate_constants(task, seed=seed, initial_gap=given["initial_gap"], batch_size=batch)
    sampled = sampled_clients(task)
    values = {name: getattr(found, name) if value is None else value for name, value in given.items()}
    return Constants(**values), {name: sampled.get(name) for name in missing}


def _show(made: BudgetPlan) -> None:
    for line in _asked(made.request):
        console.print(line, highlight=False)
    other = "FedBuff, same budget" if made.fedbuff_fits else "FedBuff, one step"
    columns = (Column(name, no_wrap=True) for name in ("", "recommended", other))
    table = Table(*columns, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for (name, ours), theirs in zip(_column(made.recommended).items(), _column(made.fedbuff).values(), strict=True):
        table.add_row(f"[bold]{name}[/]", ours, theirs)
    console.print(table)
    for reason in reasons(made):
        console.print(f"• {reason}", highlight=False)
    if made.alternatives:
        listed = "; ".join(
            f"{it.client.spec} up, {it.server.spec} down, K = {it.setting.buffer_size}: {it.bound.total:.4g}"
            for it in made.alternatives
        )
        console.print(f"next best bounds: {listed}", style="dim", highlight=False)


def _asked(request: PlanRequest) -> list[str]:
    """What was asked for, as the plan understood it."""
    constants, fleet = request.constants, request.fleet
    up, down = (
        f"{human_bytes(rate)}/s" if rate else "without delay" for rate in (fleet.upload_rate, fleet.download_rate)
    )
    arrivals = "all clients always train" if fleet.arrival_rate is None else f"{fleet.arrival_rate:g} arrive per second"
    counted = ", every copy counted" if request.every_copy else ", a broadcast counted once"
    budget = [] if request.budget_bytes is None else [human_bytes(request.budget_bytes) + counted]
    budget += [] if request.budget_s is None else [human_seconds(request.budget_s)]
    stale = "from the durations" if request.max_staleness is None else f"{request.max_staleness:,} updates"
    return [
        f"{request.size:,} parameters, {fleet.clients:,} clients; L = {constants.smoothness:.4g}, "
        f"σ_ℓ = {constants.gradient_noise:.4g}, B = {constants.heterogeneity:.4g}, "
        f"f(x⁰) − f* = {constants.initial_gap:.4g}",
        f"{fleet.durations} s per update, {arrivals}; up {up}, down {down}, latency {fleet.latency:g} s; "
        f"budget: {' and '.join(budget)}; τ_max,1: {stale}",
    ]


def _column(choice: Choice) -> dict[str, str]:
    setting, cost, sizes, bound = choice.setting, choice.forecast, choice.step_sizes, choice.bound
    return {
        "client quantizer": f"{choice.client.spec}, δ_c {_equals(choice.client)} {setting.client_delta:.3g}",
        "server quantizer": f"{choice.server.spec}, δ_s {_equals(choice.server)} {setting.server_delta:.3g}",
        "buffer size K": f"{setting.buffer_size:,}",
        "local steps P": f"{setting.local_steps}",
        "client rate η_ℓ": f"{sizes.client_lr:.4g}",
        "server rate η_g": f"{sizes.server_lr:.4g}",
        "server steps": f"{cost.server_steps:,}",
        "staleness τ": f"{setting.max_staleness:,}",
        "uploads": f"{cost.uploads:,}",
        "bytes per upload": f"{choice.message_sizes.upload_bytes:,}",
        "bytes per broadcast": f"{choice.message_sizes.broadcast_bytes:,}",
        "sent up": human_bytes(cost.upload_bytes),
        "broadcast": human_bytes(cost.broadcast_bytes),
        "received by all": human_bytes(cost.received_by_all_bytes),
        "time": human_seconds(cost.duration_s),
        "bound on ‖∇f‖²": f"{bound.total:.4g}",
        **{f"  {term}": f"{value:.3g}" for term, value in asdict(bound).items()},
    }


def _equals(quantizer: Quantizer) -> str:
    return "≈ (measured)" if is_measured(quantizer) else "="
