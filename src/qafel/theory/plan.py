"""Which quantizers, K and step sizes a budget affords, by Theorem 3.1.

For every pair of quantizers and every K: how many server steps T the budget pays for, the step sizes with the least
bound, and that bound. The least bound wins; where bytes are not what is budgeted, the fewest bytes within 5 % of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

from qafel.errors import ConfigError
from qafel.quantizers import parse
from qafel.quantizers.protocol import Quantizer
from qafel.theory.best import best_step_sizes, steps_to_reach
from qafel.theory.candidates import efficient, fit
from qafel.theory.corollary import StepSizes
from qafel.theory.demand import Demand
from qafel.theory.exchange import Exchange
from qafel.theory.forecast import Forecast, affordable_steps, forecast
from qafel.theory.setting import Setting, max_staleness
from qafel.theory.theorem import Bound, bound

NEAR = 1.05
_MOST_ALTERNATIVES = 4


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One way to spend the budget."""

    client: Quantizer
    server: Quantizer
    exchange: Exchange
    setting: Setting
    step_sizes: StepSizes
    bound: Bound
    forecast: Forecast

    @property
    def quantized(self) -> bool:
        return self.setting.client_delta < 1 or self.setting.server_delta < 1

    @property
    def pair(self) -> tuple[str, str]:
        return self.client.spec, self.server.spec


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The recommendation, what it is compared with, and what came close."""

    demand: Demand
    recommended: Choice
    fedbuff: Choice
    """The best of unquantized FedBuff within the same budget; a single step where not even that fits."""
    fedbuff_fits: bool
    matching: Forecast | None
    """What the recommendation needs to reach FedBuff's bound; None: more steps than can be counted."""
    other_buffers: tuple[Choice, ...]
    """The recommended pair with every other K that the budget pays for, ascending."""
    alternatives: tuple[Choice, ...]
    """The best K of other pairs of quantizers, the least bound first."""


def make_plan(demand: Demand) -> Plan:
    """Search all pairs and buffer sizes. Raises where the budget does not pay for a single server step."""
    plain = parse("none")
    unquantized = _choices(demand, [plain], [plain])
    clients = efficient(fit(demand.client_specs, demand.size, "client", demand.layout), demand.size)
    servers = efficient(fit(demand.server_specs, demand.size, "server", demand.layout), demand.size)
    shortest = Exchange.of(clients[0], servers[0], demand.size)
    demand.fleet.require_enough_clients(shortest.upload_bytes, shortest.broadcast_bytes)
    choices = [choice for choice in _choices(demand, clients, servers) if _can_arrive(demand, choice)]
    if not choices:
        remedy = "raise it" if demand.buffer_sizes is None else "raise it, or lower K"
        raise ConfigError(f"the budget does not pay for one server step even with the shortest messages: {remedy}")
    near = NEAR if demand.budget_bytes is None else 1.0
    recommended = _least(choices, near)
    fedbuff = _least(unquantized or [evaluate_choice(demand, plain, plain, demand.searched[0], 1)], near)
    return Plan(
        demand,
        recommended,
        fedbuff,
        bool(unquantized),
        _matching(demand, recommended, fedbuff.bound.total),
        tuple(choice for choice in choices if choice.pair == recommended.pair and choice is not recommended),
        _alternatives(choices, recommended),
    )


def evaluate_choice(
    demand: Demand, client: Quantizer, server: Quantizer, buffer_size: int, server_steps: int
) -> Choice:
    """What Theorem 3.1 and the forecast say of one pair of quantizers, K and T."""
    exchange = Exchange.of(client, server, demand.size)
    setting = Setting(
        local_steps=demand.local_steps,
        buffer_size=buffer_size,
        server_steps=server_steps,
        max_staleness=_staleness(demand, exchange, buffer_size, server_steps),
        client_delta=client.delta(demand.size),
        server_delta=server.delta(demand.size),
    ).of_length(server_steps)
    sizes = best_step_sizes(demand.constants, setting)
    return Choice(
        client,
        server,
        exchange,
        setting,
        sizes,
        bound(demand.constants, setting, sizes.client_lr, sizes.server_lr),
        forecast(exchange, demand.fleet, buffer_size, server_steps),
    )


def _staleness(demand: Demand, exchange: Exchange, buffer_size: int, server_steps: int) -> int:
    """τ_max,K of a run that is long enough for it."""
    updates = demand.max_staleness
    if updates is None:
        uploads = buffer_size * server_steps
        updates = demand.fleet.largest_staleness(exchange.upload_bytes, exchange.broadcast_bytes, uploads)
    return max_staleness(updates, buffer_size)


def _choices(demand: Demand, clients: Iterable[Quantizer], servers: Sequence[Quantizer]) -> list[Choice]:
    found = []
    for client in clients:
        for server in servers:
            exchange = Exchange.of(client, server, demand.size)
            for size in demand.searched:
                steps = affordable_steps(
                    exchange,
                    demand.fleet,
                    size,
                    budget_bytes=demand.budget_bytes,
                    budget_s=demand.budget_s,
                    every_copy=demand.every_copy,
                )
                if steps:
                    found.append(evaluate_choice(demand, client, server, size, steps))
    return found


def _can_arrive(demand: Demand, choice: Choice) -> bool:
    """Messages so long that the arrivals would need more clients than there are cannot be recommended."""
    return demand.fleet.has_enough_clients(choice.exchange.upload_bytes, choice.exchange.broadcast_bytes)


def _matching(demand: Demand, choice: Choice, target: float) -> Forecast | None:
    size, steps = choice.setting.buffer_size, choice.setting.server_steps
    stale = replace(choice.setting, max_staleness=_staleness(demand, choice.exchange, size, steps))
    try:
        needed = steps_to_reach(demand.constants, stale, target)
    except ConfigError:
        return None  # a plan is one without the comparison, too
    return forecast(choice.exchange, demand.fleet, size, needed)


def _least(choices: Sequence[Choice], near: float) -> Choice:
    """The fewest bytes, every copy counted, among those whose bound is at most `near` times the least."""
    enough = near * min(choice.bound.total for choice in choices)
    return min(
        (choice for choice in choices if choice.bound.total <= enough),
        key=lambda choice: choice.forecast.crossing_bytes,
    )


def _alternatives(choices: Sequence[Choice], recommended: Choice) -> tuple[Choice, ...]:
    best: dict[tuple[str, str], Choice] = {}
    for choice in sorted(choices, key=lambda choice: choice.bound.total):
        best.setdefault(choice.pair, choice)
    best.pop(recommended.pair, None)
    return tuple(best.values())[:_MOST_ALTERNATIVES]
