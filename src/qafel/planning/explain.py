"""Why a plan says what it says, in sentences; and all of it as plain values for programs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from qafel.planning.forecast import Forecast
from qafel.planning.plan import BudgetPlan, Choice, PlanRequest
from qafel.theory.theorem import conditions, largest_client_lr, largest_server_lr, trivial_bound

SYMBOLS = {"smoothness": "L", "gradient_noise": "σ_ℓ", "heterogeneity": "B", "initial_gap": "f(x⁰) − f*"}

_BINDING = 0.999
"""A step size above this share of the largest counts as the largest."""


def reasons(plan: BudgetPlan) -> list[str]:
    """What decided: the quantizers, K, the step sizes; then what the plan gains, what it rests on and leaves out."""
    return [
        _of_client(plan.recommended),
        _of_server(plan),
        _of_buffer(plan),
        *_of_downlink(plan),
        _of_step_sizes(plan),
        _of_gain(plan),
        _of_staleness(plan),
        *_of_constants(plan),
        *_of_payloads(plan),
        *_of_bound(plan),
    ]


def _of_client(choice: Choice) -> str:
    setting, bound = choice.setting, choice.bound
    share = (bound.noise + bound.staleness) / bound.total
    return (
        f"clients send {choice.client.spec}: its error multiplies the variance of updates by 1 + ω_c = "
        f"{1 + setting.client_omega:.3g} in the noise and the staleness term, and both are divided by "
        f"K = {setting.buffer_size}; together they make {100 * share:.2g} % of the bound"
    )


def _of_server(plan: BudgetPlan) -> str:
    choice, constants = plan.recommended, plan.request.constants
    setting, client_lr = choice.setting, choice.step_sizes.client_lr
    most = largest_server_lr(constants, setting, client_lr)
    exact = largest_server_lr(constants, replace(setting, server_delta=1.0), client_lr)
    return (
        f"the server sends {choice.server.spec}: its δ_s = {setting.server_delta:.3g} adds to staleness, "
        f"τ² + 12/δ_s² = {setting.max_staleness**2} + {setting.hidden_state_lag:.3g}, "
        f"and allows η_g up to {most:.3g}; unquantized broadcasts would allow {exact:.3g}"
    )


def _of_buffer(plan: BudgetPlan) -> str:
    request, size = plan.request, plan.recommended.setting.buffer_size
    tried = request.searched
    if len(tried) == 1:
        return f"K = {size} as asked for" if request.buffer_sizes else f"K = {size}: no other K is possible"
    at, all_clients = tried.index(size), size >= request.fleet.clients
    smaller = "a buffer cannot be smaller" if size == 1 else "no smaller one was asked for"
    larger = f"no larger one was {'tried, as it holds an update of every client' if all_clients else 'asked for'}"
    below = _with_buffer(plan, tried[at - 1]) if at else smaller
    above = _with_buffer(plan, tried[at + 1]) if at + 1 < len(tried) else larger
    return f"K = {size}, of {tried[0]} to {tried[-1]}: {below}; {above}"


def _with_buffer(plan: BudgetPlan, size: int) -> str:
    """What another K would do, in figures."""
    found = next((it for it in plan.other_buffers if it.setting.buffer_size == size), None)
    if found is None:
        return f"with {size} the budget does not pay for a step"
    setting, total = found.setting, found.bound.total
    more = ", for more bytes" if total < plan.recommended.bound.total else ""
    run = f"{setting.server_steps:,} steps, τ = {setting.max_staleness}{more}"
    return f"with {size} the bound would be {total:.4g} ({run})"


def _of_downlink(plan: BudgetPlan) -> list[str]:
    rate = plan.request.fleet.download_rate
    if not plan.recommended.forecast.limited_by_downlink or not rate:
        return []
    each = plan.recommended.message_sizes.broadcast_bytes / rate
    return [
        f"the downlink limits the pace: every client must receive every broadcast, which takes {each:.3g} s at "
        f"{rate:g} B/s, and K updates come sooner"
    ]


def _of_step_sizes(plan: BudgetPlan) -> str:
    constants, setting, sizes = plan.request.constants, plan.recommended.setting, plan.recommended.step_sizes
    server, *_ = conditions(constants, setting, sizes.client_lr, sizes.server_lr)
    largest = "as large as the theorem allows"
    of_server = largest if server.excess > _BINDING else "where noise and progress balance"
    at_most = sizes.client_lr >= _BINDING * largest_client_lr(constants, setting)
    return f"η_g is {of_server}, η_ℓ is {largest if at_most else 'where drift and progress balance'}"


def _of_gain(plan: BudgetPlan) -> str:
    ours, theirs = plan.recommended, plan.fedbuff
    if not ours.quantized:
        return "no quantizer is worth its error within this budget: the recommendation is FedBuff"
    if not plan.fedbuff_fits:
        return "the budget does not pay for a single server step of unquantized FedBuff: one step is shown to compare"
    within = f"within the budget the bound is {ours.bound.total / theirs.bound.total:.3g} times unquantized FedBuff's"
    if plan.matching is None:
        return f"{within}; reaching FedBuff's bound would take too many steps to count"
    in_bytes = 100 * (plan.matching.traffic_bytes / theirs.forecast.traffic_bytes)
    in_time = 100 * (plan.matching.duration_s / theirs.forecast.duration_s)
    return f"{within}; reaching FedBuff's bound takes {in_bytes:.3g} % of its bytes and {in_time:.3g} % of its time"


def _of_staleness(plan: BudgetPlan) -> str:
    stale, steps = plan.recommended.setting.max_staleness, plan.recommended.setting.server_steps
    if stale == steps - 1:
        return f"τ = {stale}: no update can be staler in {steps} steps"
    if plan.request.max_staleness is not None:
        return f"τ = {stale} steps, from the {plan.request.max_staleness} updates given"
    return f"τ = {stale} steps is what one cycle of the run exceeds on average; a single update can be staler"


def _of_constants(plan: BudgetPlan) -> list[str]:
    said, measured = [], plan.request.measured
    if listed := ", ".join(f"{SYMBOLS[name]} on {count}" for name, count in measured.items() if count is not None):
        said.append(
            f"{listed} of {plan.request.fleet.clients:,} clients were measured, at x⁰ only: these are estimates, from "
            "below for L and B, and the theorem needs the largest of any x"
        )
    if measured and plan.request.batch_size is None:
        said.append("a gradient is over all data of a client (full batch), because no batch size was given")
    return said


def _of_payloads(plan: BudgetPlan) -> list[str]:
    zipped = dict.fromkeys(spec for spec in plan.recommended.pair if spec.endswith("+zstd"))
    said = [f"{spec} is counted with its longest payload; it sends less" for spec in zipped]
    return [*said, "bytes are those of updates and broadcasts; the initial model and the transport add to them"]


def _of_bound(plan: BudgetPlan) -> list[str]:
    trivial, total = trivial_bound(plan.request.constants), plan.recommended.bound.total
    said = [
        "the bound is for the worst case of such constants: real runs do better, with larger step sizes than the "
        "theorem allows"
    ]
    if total >= trivial:
        said.append(
            f"the bound, {total:.3g}, is above 2L(f(x⁰) − f*) = {trivial:.3g}, which holds without any "
            "training: for this budget the theory promises nothing, and only the comparison is of use"
        )
    return said


def plan_json(plan: BudgetPlan) -> dict[str, Any]:
    """A plan as plain values, for files and other programs; `algorithm` is a section of a recipe."""
    request, fleet = plan.request, plan.request.fleet
    return {
        "size": request.size,
        "clients": fleet.clients,
        "inputs": {
            "duration": str(fleet.durations),
            "upload_rate": fleet.upload_rate,
            "download_rate": fleet.download_rate,
            "latency_s": fleet.latency,
            "arrival_rate": fleet.arrival_rate,
            "byte_budget": request.budget_bytes,
            "every_copy": request.every_copy,
            "time_budget_s": request.budget_s,
            "max_staleness_updates": request.max_staleness,
            "batch_size": request.batch_size,
        },
        "constants": asdict(request.constants),
        "measured": list(request.measured),
        "measured_on_clients": {name: clients for name, clients in request.measured.items() if clients is not None},
        "recommended": _choice(plan.recommended, request),
        "fedbuff": _choice(plan.fedbuff, request),
        "fedbuff_fits_the_budget": plan.fedbuff_fits,
        "to_reach_fedbuffs_bound": None if plan.matching is None else _forecast(plan.matching),
        "trivial_bound": trivial_bound(request.constants),
        "why": reasons(plan),
        "alternatives": [_choice(choice, request) for choice in plan.alternatives],
    }


def _choice(choice: Choice, request: PlanRequest) -> dict[str, Any]:
    setting, sizes, batch = choice.setting, choice.message_sizes, request.batch_size
    return {
        "algorithm": {
            "preset": "qafel" if choice.quantized else "fedbuff",
            "client_quantizer": choice.client.spec,
            "server_quantizer": choice.server.spec,
            "buffer_size": setting.buffer_size,
            "local_steps": setting.local_steps,
            **({} if batch is None else {"batch_size": batch}),
            **asdict(choice.step_sizes),
        },
        "client_delta": setting.client_delta,
        "server_delta": setting.server_delta,
        "client_bits_per_coordinate": choice.client.bits_per_coordinate(request.size),
        "server_bits_per_coordinate": choice.server.bits_per_coordinate(request.size),
        "max_staleness": setting.max_staleness,
        "upload_message_bytes": sizes.upload_bytes,
        "broadcast_message_bytes": sizes.broadcast_bytes,
        "forecast": _forecast(choice.forecast),
        "bound": {**asdict(choice.bound), "total": choice.bound.total},
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    totals = {"traffic_bytes": forecast.traffic_bytes, "crossing_bytes": forecast.crossing_bytes}
    return asdict(forecast) | totals
