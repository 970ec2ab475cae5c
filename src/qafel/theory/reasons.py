"""Why a plan says what it says, in sentences."""

from __future__ import annotations

from dataclasses import replace

from qafel.theory.caveats import caveats
from qafel.theory.conditions import conditions, largest_client_lr, largest_server_lr
from qafel.theory.plan import Choice, Plan

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
