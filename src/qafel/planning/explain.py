"""Why a plan says what it says, in sentences."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from qafel.planning.forecast import Forecast
from qafel.planning.plan import Choice, Demand, Plan
from qafel.theory.theorem import conditions, largest_client_lr, largest_server_lr, trivial_bound

# What to make of a plan: what it rests on, and what it leaves out.


SYMBOLS = {"smoothness": "L", "gradient_noise": "σ_ℓ", "heterogeneity": "B", "initial_gap": "f(x⁰) − f*"}


def caveats(plan: Plan) -> list[str]:
    """In sentences: staleness, measured constants, batches, bytes, and the bound itself."""
    return [_of_staleness(plan), *_of_constants(plan), *_of_payloads(plan), *_of_bound(plan)]


def _of_staleness(plan: Plan) -> str:
    stale, steps = plan.recommended.setting.max_staleness, plan.recommended.setting.server_steps
    if stale == steps - 1:
        return f"τ = {stale}: no update can be staler in {steps} steps"
    if plan.demand.max_staleness is not None:
        return f"τ = {stale} steps, from the {plan.demand.max_staleness} updates given"
    return f"τ = {stale} steps is what one cycle of the run exceeds on average, not the largest there can be"


def _of_constants(plan: Plan) -> list[str]:
    said, measured = [], plan.demand.measured
    sampled = {name: clients for name, clients in measured.items() if clients is not None}
    if sampled:
        listed = ", ".join(f"{SYMBOLS[name]} on {clients}" for name, clients in sampled.items())
        said.append(
            f"{listed} of {plan.demand.fleet.clients:,} clients were measured, at x⁰ alone: estimates, from below for "
            "L and B, where the theorem asks for the largest of any x"
        )
    if measured and plan.demand.batch_size is None:
        said.append("a gradient is that of all of a client's data (full batch), as no batch size was given")
    return said


def _of_payloads(plan: Plan) -> list[str]:
    zipped = [spec for spec in plan.recommended.pair if spec.endswith("+zstd")]
    said = [f"{spec} is counted with its longest payload; it sends less" for spec in dict.fromkeys(zipped)]
    return [*said, "bytes are those of updates and broadcasts: the initial model and the transport's own come on top"]


def _of_bound(plan: Plan) -> list[str]:
    trivial, total = trivial_bound(plan.demand.constants), plan.recommended.bound.total
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


_BINDING = 0.999


def reasons(plan: Plan) -> list[str]:
    """What decided: the quantizers, K, the step sizes; then what it gains, and what to make of it."""
    choice = plan.recommended
    return [
        _of_client(choice),
        _of_server(plan, choice),
        _of_buffer(plan, choice),
        *_of_downlink(plan, choice),
        _of_step_sizes(plan, choice),
        _of_gain(plan),
        *caveats(plan),
    ]


def _of_client(choice: Choice) -> str:
    setting, bound = choice.setting, choice.bound
    share = (bound.noise + bound.staleness) / bound.total
    return (
        f"clients send {choice.client.spec}: in the noise and the staleness term its error multiplies gradient noise "
        f"by 2 − δ_c = {2 - setting.client_delta:.3g}, and both are divided by K = {setting.buffer_size}; "
        f"together they make {100 * share:.2g} % of the bound"
    )


def _of_server(plan: Plan, choice: Choice) -> str:
    setting, constants, client_lr = choice.setting, plan.demand.constants, choice.step_sizes.client_lr
    most = largest_server_lr(constants, setting, client_lr)
    exact = largest_server_lr(constants, replace(setting, server_delta=1.0), client_lr)
    return (
        f"the server sends {choice.server.spec}: δ_s = {setting.server_delta:.3g} enters beside staleness, "
        f"τ² + 8/δ_s² = {setting.max_staleness**2} + {8 / setting.server_delta**2:.3g}, "
        f"and allows η_g up to {most:.3g}; unquantized it would be {exact:.3g}"
    )


def _of_buffer(plan: Plan, choice: Choice) -> str:
    demand, size = plan.demand, choice.setting.buffer_size
    if len(demand.searched) == 1:
        return f"K = {size} as asked for" if demand.buffer_sizes else f"K = {size}: there is no other"
    tried = demand.searched
    at = tried.index(size)
    return (
        f"K = {size}, of {tried[0]} to {tried[-1]}: "
        f"{_smaller(plan, tried[at - 1] if at else None)}; {_larger(plan, (*tried, None)[at + 1])}"
    )


def _smaller(plan: Plan, size: int | None) -> str:
    if size is None:
        least = plan.recommended.setting.buffer_size
        return "a buffer cannot be smaller" if least == 1 else "no smaller one was asked for"
    return _other(plan, size)


def _larger(plan: Plan, size: int | None) -> str:
    if size is None:
        everyone = plan.recommended.setting.buffer_size >= plan.demand.fleet.clients
        return "that is every client, and no larger one was tried" if everyone else "no larger one was asked for"
    return _other(plan, size)


def _other(plan: Plan, size: int) -> str:
    """What the next K would do, in figures."""
    found = next((it for it in plan.other_buffers if it.setting.buffer_size == size), None)
    if found is None:
        return f"with {size} the budget does not pay for a step"
    better = found.bound.total < plan.recommended.bound.total
    return (
        f"with {size} the bound would be {found.bound.total:.4g} ({found.setting.server_steps:,} steps, "
        f"τ = {found.setting.max_staleness}{', for more bytes' if better else ''})"
    )


def _of_downlink(plan: Plan, choice: Choice) -> list[str]:
    fleet, cost = plan.demand.fleet, choice.forecast
    if not cost.limited_by_downlink or not fleet.download_rate:
        return []
    each = choice.exchange.broadcast_bytes / fleet.download_rate
    return [
        f"the downlink is what limits the pace: every client must hear every broadcast, {each:.3g} s each at "
        f"{fleet.download_rate:g} B/s, while K updates come sooner"
    ]


def _of_step_sizes(plan: Plan, choice: Choice) -> str:
    constants, setting, sizes = plan.demand.constants, choice.setting, choice.step_sizes
    held = {it.name: it for it in conditions(constants, setting, sizes.client_lr, sizes.server_lr)}
    server = (
        "as large as the theorem allows" if held["server"].excess > _BINDING else "where noise and progress balance"
    )
    at_most = sizes.client_lr >= _BINDING * largest_client_lr(constants, setting)
    client = "as large as the theorem allows" if at_most else "where drift and progress balance"
    return f"η_g is {server}, η_ℓ {client}"


def _of_gain(plan: Plan) -> str:
    ours, theirs = plan.recommended, plan.fedbuff
    if not ours.quantized:
        return "no quantizer is worth its error within this budget: this is FedBuff"
    if not plan.fedbuff_fits:
        return "the budget does not pay for a single server step of unquantized FedBuff: one step is shown to compare"
    within = f"within the budget the bound is {ours.bound.total / theirs.bound.total:.3g} times unquantized FedBuff's"
    if plan.matching is None:
        return f"{within}; it would take too many steps to count to reach FedBuff's"
    bytes_share = plan.matching.traffic_bytes / theirs.forecast.traffic_bytes
    time_share = plan.matching.duration_s / theirs.forecast.duration_s
    return (
        f"{within}; to reach FedBuff's takes {100 * bytes_share:.3g} % of its bytes and {100 * time_share:.3g} % "
        "of its time"
    )


# A plan as plain values, for files and other programs.


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything that the plan says; `algorithm` is a recipe's section."""
    demand = plan.demand
    return {
        "size": demand.size,
        "clients": demand.fleet.clients,
        "inputs": _inputs(demand),
        "constants": asdict(demand.constants),
        "measured": list(demand.measured),
        "measured_on_clients": {name: clients for name, clients in demand.measured.items() if clients is not None},
        "recommended": _choice(plan.recommended, demand),
        "fedbuff": _choice(plan.fedbuff, demand),
        "fedbuff_fits_the_budget": plan.fedbuff_fits,
        "to_reach_fedbuffs_bound": None if plan.matching is None else _forecast(plan.matching),
        "trivial_bound": trivial_bound(demand.constants),
        "why": reasons(plan),
        "alternatives": [_choice(choice, demand) for choice in plan.alternatives],
    }


def _inputs(demand: Demand) -> dict[str, Any]:
    """What was asked for, as it was understood."""
    fleet = demand.fleet
    return {
        "duration": str(fleet.durations),
        "upload_rate": fleet.upload_rate,
        "download_rate": fleet.download_rate,
        "latency_s": fleet.latency,
        "arrival_rate": fleet.arrival_rate,
        "byte_budget": demand.budget_bytes,
        "every_copy": demand.every_copy,
        "time_budget_s": demand.budget_s,
        "max_staleness_updates": demand.max_staleness,
        "batch_size": demand.batch_size,
    }


def _choice(choice: Choice, demand: Demand) -> dict[str, Any]:
    setting, size = choice.setting, demand.size
    return {
        "algorithm": _algorithm(choice, demand),
        "client_delta": setting.client_delta,
        "server_delta": setting.server_delta,
        "client_bits_per_coordinate": choice.client.bits_per_coordinate(size),
        "server_bits_per_coordinate": choice.server.bits_per_coordinate(size),
        "max_staleness": setting.max_staleness,
        "upload_message_bytes": choice.exchange.upload_bytes,
        "broadcast_message_bytes": choice.exchange.broadcast_bytes,
        "forecast": _forecast(choice.forecast),
        "bound": {**asdict(choice.bound), "total": choice.bound.total},
    }


def _algorithm(choice: Choice, demand: Demand) -> dict[str, Any]:
    batch = {} if demand.batch_size is None else {"batch_size": demand.batch_size}
    return {
        "preset": "qafel" if choice.quantized else "fedbuff",
        "client_quantizer": choice.client.spec,
        "server_quantizer": choice.server.spec,
        "buffer_size": choice.setting.buffer_size,
        "local_steps": choice.setting.local_steps,
        **batch,
        "client_lr": choice.step_sizes.client_lr,
        "server_lr": choice.step_sizes.server_lr,
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    return {
        **asdict(forecast),
        "traffic_bytes": forecast.traffic_bytes,
        "crossing_bytes": forecast.crossing_bytes,
    }
