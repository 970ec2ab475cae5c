"""Why a plan says what it says, in sentences."""

from __future__ import annotations

from dataclasses import replace

from qafel.theory.conditions import conditions, largest_client_lr, largest_server_lr
from qafel.theory.plan import Choice, Plan
from qafel.theory.theorem import trivial_bound

_BINDING = 0.999


def reasons(plan: Plan) -> list[str]:
    """What decided: the quantizers, K, the step sizes; then what it gains, and what to make of the bound."""
    choice = plan.recommended
    return [
        _of_client(choice),
        _of_server(plan, choice),
        _of_buffer(plan, choice),
        _of_step_sizes(plan, choice),
        _of_gain(plan),
        *_of_bound(plan, choice),
    ]


def _of_client(choice: Choice) -> str:
    setting = choice.setting
    share = choice.bound.noise / choice.bound.total
    return (
        f"clients send {choice.client.spec}: its error multiplies gradient noise by 2 − δ_c = "
        f"{2 - setting.client_delta:.3g} and is divided by K = {setting.buffer_size}; "
        f"all noise makes {100 * share:.2g} % of the bound"
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
    setting = choice.setting
    if len(plan.demand.buffer_sizes) == 1:
        return f"K = {setting.buffer_size} as asked for: updates are at most about {setting.max_staleness} steps stale"
    return (
        f"K = {setting.buffer_size}: more would mean fewer steps for the budget, less would mean staler updates "
        f"(τ is at most about {setting.max_staleness} steps here) and a smaller η_g"
    )


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
    bytes_share = plan.matching.traffic_bytes / theirs.forecast.traffic_bytes
    time_share = plan.matching.duration_s / theirs.forecast.duration_s
    return (
        f"within the budget the bound is {ours.bound.total / theirs.bound.total:.3g} times unquantized FedBuff's; "
        f"to reach FedBuff's takes {100 * bytes_share:.3g} % of its bytes and {100 * time_share:.3g} % of its time"
    )


def _of_bound(plan: Plan, choice: Choice) -> list[str]:
    trivial = trivial_bound(plan.demand.constants)
    said = ["the bound is for the worst case: real runs do better, with larger step sizes than the theorem allows"]
    if choice.bound.total >= trivial:
        said.append(
            f"the bound, {choice.bound.total:.3g}, is above 2L(f(x⁰) − f*) = {trivial:.3g}, which holds without any "
            "training: for this budget the theory promises nothing, and only the comparison is of use"
        )
    return said
