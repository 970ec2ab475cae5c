"""`qafel plan`: what a budget affords, before anything is run."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer
from rich.table import Table

from qafel.cli.progress import console, errors
from qafel.cli.units import human_bytes
from qafel.config import Config
from qafel.errors import ConfigError
from qafel.tasks.protocol import Task
from qafel.theory import Constants, estimate_constants
from qafel.theory.fleet import DurationLaw, Fleet
from qafel.theory.plan import BUFFER_SIZES, CLIENT_SPECS, SERVER_SPECS, Choice, Demand, Plan, make_plan
from qafel.theory.plan_json import plan_json
from qafel.theory.reasons import reasons

_BYTES = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def plan(
    size: Annotated[int | None, typer.Option("--size", "-d", min=1, help="Parameters of the model.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="The number of clients.")] = None,
    task_name: Annotated[
        str | None, typer.Option("--task", help="Take size and clients from a task and measure L, σ_ℓ and B on it.")
    ] = None,
    byte_budget: Annotated[str | None, typer.Option(help="Uploads and broadcasts (each once): 10GB.")] = None,
    every_copy: Annotated[
        bool, typer.Option("--every-copy", help="Count a broadcast once per client that receives it.")
    ] = False,
    time_budget: Annotated[str | None, typer.Option(help="How long it may take: 3600, 90min, 12h, 2d.")] = None,
    duration: Annotated[
        str, typer.Option(help="Time per update: seconds, or half-normal:1, log-normal:1,0.5, uniform:1,0.5.")
    ] = "half-normal:1",
    upload_rate: Annotated[str | None, typer.Option(help="A client's bytes per second up: 125kB.")] = None,
    download_rate: Annotated[str | None, typer.Option(help="A client's bytes per second down.")] = None,
    latency: Annotated[str, typer.Option(help="Of every message: 50ms.")] = "0",
    arrival_rate: Annotated[
        float | None, typer.Option(help="Clients that start per second; all are always training by default.")
    ] = None,
    local_steps: Annotated[int, typer.Option(min=1, help="P, local steps of an update.")] = 10,
    buffer_size: Annotated[int | None, typer.Option(min=1, help="K; the best one by default.")] = None,
    client_quantizer: Annotated[
        list[str] | None, typer.Option(help="A spec to consider; may be repeated; the family by default.")
    ] = None,
    server_quantizer: Annotated[
        list[str] | None, typer.Option(help="A spec to consider; may be repeated; the family by default.")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="L.")] = None,
    noise: Annotated[float | None, typer.Option(help="σ_ℓ.")] = None,
    heterogeneity: Annotated[float | None, typer.Option(help="B.")] = None,
    gap: Annotated[float | None, typer.Option(help="f(x⁰) − f*.")] = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="τ_max,1 in updates; from the durations by default.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Of a gradient, where the task has batches.")] = None,
    seed: Annotated[int, typer.Option(help="Of the measured constants.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend quantizers, K and step sizes for a budget of bytes or time, by the paper's theorem.

    Example: qafel plan --task quadratic --byte-budget 100MB --duration half-normal:1
    """
    fleet_of = {
        "durations": DurationLaw.parse(duration),
        "upload_rate": _quantity(upload_rate, _BYTES, "--upload-rate"),
        "download_rate": _quantity(download_rate, _BYTES, "--download-rate"),
        "latency": _quantity(latency, _SECONDS, "--latency"),
        "arrival_rate": arrival_rate,
    }
    budgets = {
        "budget_bytes": _quantity(byte_budget, _BYTES, "--byte-budget"),
        "budget_s": _quantity(time_budget, _SECONDS, "--time-budget"),
    }
    if all(budget is None for budget in budgets.values()):
        raise ConfigError("a plan needs a budget: --byte-budget, --time-budget, or both")
    task = None if task_name is None else _task(task_name, clients, size)
    given = (smoothness, noise, heterogeneity, gap)
    size, clients = (task.layout.size, task.clients) if task else (size, clients)
    if size is None or clients is None:
        raise ConfigError("give --size and --clients, or a --task that has them")
    demand = Demand(
        size=size,
        fleet=Fleet(clients=clients, **fleet_of),  # type: ignore[arg-type]
        constants=_constants(task, given, seed, batch_size),
        local_steps=local_steps,
        every_copy=every_copy,
        max_staleness=max_staleness,
        client_specs=client_quantizer or CLIENT_SPECS,
        server_specs=server_quantizer or SERVER_SPECS,
        buffer_sizes=BUFFER_SIZES if buffer_size is None else (buffer_size,),
        layout=task.layout if task else None,
        **budgets,
    )
    made = make_plan(demand)
    if json_output:
        print(json.dumps(plan_json(made), indent=2, ensure_ascii=False))
    else:
        _show(made)


def _quantity(text: str | None, units: dict[str, float], option: str) -> float | None:
    """A number with a unit, such as 1.5GB or 90min."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    try:
        return float(match[1]) * units[match[2].lower()] if match else float("")
    except (KeyError, ValueError):
        known = ", ".join(unit for unit in units if unit)
        raise ConfigError(f"{option} takes a number and a unit ({known}), got {text!r}") from None


def _task(name: str, clients: int | None, size: int | None) -> Task:
    settings: dict[str, Any] = {"name": name}
    if clients is not None:
        settings["clients"] = clients
    if size is not None:
        settings["dimension"] = size
    return Config.from_dict({"task": settings}, "qafel plan").task.make()


def _constants(
    task: Task | None,
    given: tuple[float | None, float | None, float | None, float | None],
    seed: int,
    batch: int | None,
) -> Constants:
    """The constants as given; those that are not, measured on the task."""
    smoothness, noise, heterogeneity, gap = given
    if smoothness is not None and noise is not None and heterogeneity is not None and gap is not None:
        return Constants(smoothness, noise, heterogeneity, gap)
    if task is None:
        raise ConfigError(
            "the theorem needs --smoothness (L), --noise (σ_ℓ), --heterogeneity (B) and --gap (f(x⁰) − f*); "
            "or name a --task to measure them on"
        )
    errors.print(f"measuring L, σ_ℓ and B of {task.name} at x⁰ …", style="dim", highlight=False)
    found = estimate_constants(task, seed=seed, initial_gap=gap, batch_size=batch)
    return Constants(
        found.smoothness if smoothness is None else smoothness,
        found.gradient_noise if noise is None else noise,
        found.heterogeneity if heterogeneity is None else heterogeneity,
        found.initial_gap,
    )


def _show(made: Plan) -> None:
    demand, constants = made.demand, made.demand.constants
    console.print(
        f"{demand.size:,} parameters, {demand.fleet.clients:,} clients; L = {constants.smoothness:.4g}, "
        f"σ_ℓ = {constants.gradient_noise:.4g}, B = {constants.heterogeneity:.4g}, "
        f"f(x⁰) − f* = {constants.initial_gap:.4g}",
        highlight=False,
    )
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    other = "FedBuff, same budget" if made.fedbuff_fits else "FedBuff, one step"
    for name in ("", "recommended", other):
        table.add_column(name, no_wrap=True)
    ours, theirs = _column(made.recommended), _column(made.fedbuff)
    for name, value in ours.items():
        table.add_row(f"[bold]{name}[/]", value, theirs[name])
    console.print(table)
    for reason in reasons(made):
        console.print(f"• {reason}", highlight=False)
    if made.alternatives:
        listed = "; ".join(
            f"{it.client.spec} up, {it.server.spec} down, K = {it.setting.buffer_size}: {it.bound.total:.4g}"
            for it in made.alternatives
        )
        console.print(f"next best bounds: {listed}", style="dim", highlight=False)


def _column(choice: Choice) -> dict[str, str]:
    setting, cost, sizes, bound = choice.setting, choice.forecast, choice.step_sizes, choice.bound
    return {
        "client quantizer": f"{choice.client.spec}, δ_c = {setting.client_delta:.3g}",
        "server quantizer": f"{choice.server.spec}, δ_s = {setting.server_delta:.3g}",
        "buffer size K": f"{setting.buffer_size}",
        "local steps P": f"{setting.local_steps}",
        "client rate η_ℓ": f"{sizes.client_lr:.4g}",
        "server rate η_g": f"{sizes.server_lr:.4g}",
        "server steps": f"{cost.server_steps:,}",
        "uploads": f"{cost.uploads:,}",
        "bytes per upload": f"{choice.exchange.upload_bytes:,}",
        "bytes per broadcast": f"{choice.exchange.broadcast_bytes:,}",
        "sent up": human_bytes(cost.upload_bytes),
        "broadcast": human_bytes(cost.broadcast_bytes),
        "received by all": human_bytes(cost.received_bytes),
        "time": _human_time(cost.duration_s),
        "bound on ‖∇f‖²": f"{bound.total:.4g}",
        "  start": f"{bound.start:.3g}",
        "  staleness": f"{bound.staleness:.3g}",
        "  drift": f"{bound.drift:.3g}",
        "  noise": f"{bound.noise:.3g}",
    }


def _human_time(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
