"""Which quantizers, K and step sizes a budget affords, by Theorem 3.1.

For every pair of quantizers and every K: how many server steps T the budget pays for, the step sizes with the least
bound, and that bound. The least bound wins; where bytes are not what is budgeted, the fewest bytes within 5 % of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.planning.fleet import Fleet
from qafel.planning.forecast import Exchange, Forecast, affordable_steps, forecast
from qafel.quantizers import fitness, parse
from qafel.quantizers.measure import Role
from qafel.quantizers.payloads import check_size
from qafel.quantizers.protocol import Quantizer
from qafel.tasks.convex.synthetic import Constants
from qafel.theory.corollary import StepSizes, best_step_sizes, steps_to_reach
from qafel.theory.theorem import Bound, Setting, bound, max_staleness, require_positive

# What a plan chooses from: quantizers that suit their role, and buffer sizes.


CLIENT_SPECS = (
    *("none", "qsgd:8", "qsgd:6", "qsgd:4,bucket=128", "dithered:8", "dithered:6", "dithered:4"),
    *("rotated:6", "rotated:5", "rotated:4", "rotated:3"),
)


SERVER_SPECS = (*CLIENT_SPECS, "scaled:rotated:2", "top_k:0.1", "top_k:0.01", "sign")


def buffer_sizes_up_to(clients: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, … and the number of clients."""
    sizes, power = [], 1
    while power <= clients:
        sizes += [factor * power for factor in (1, 2, 5) if factor * power <= clients]
        power *= 10
    return tuple(sorted({*sizes, clients}))


def fit(specs: Sequence[str], size: int, role: Role, layout: Layout | None) -> list[Quantizer]:
    """The quantizers that suit the role at this size; one that was asked for and does not is an error."""
    suitable = []
    for spec in specs:
        quantizer = parse(spec, layout)
        unfit = fitness(quantizer, size, role)
        if not unfit and math.isinf(quantizer.omega(size)):
            unfit = [f"{role} quantizer {spec!r} has no bound on its error: the theorem cannot take it"]
        if not unfit:
            suitable.append(quantizer)
        elif specs not in (CLIENT_SPECS, SERVER_SPECS):
            raise ConfigError(unfit[0])
    return suitable


def efficient(quantizers: Sequence[Quantizer], size: int) -> list[Quantizer]:
    """Those that no other one beats in bytes and δ: the bound falls with δ and with every byte saved."""
    ordered = sorted(quantizers, key=lambda it: (it.max_payload_bytes(size), -it.delta(size)))
    kept: list[Quantizer] = []
    for it in ordered:
        if not kept or it.delta(size) > kept[-1].delta(size):
            kept.append(it)
    return kept


# What is to be planned for.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A model, a fleet, the problem's constants, a budget, and what may be chosen."""

    size: int
    """Parameters of the model."""
    fleet: Fleet
    constants: Constants
    local_steps: int = 10
    batch_size: int | None = None
    """Of a local step; None: all that a client has."""
    budget_bytes: float | None = None
    """Uploaded, and broadcast once; or received, with every copy."""
    every_copy: bool = False
    budget_s: float | None = None
    max_staleness: int | None = None
    """τ_max,1, in updates; None: as the durations say."""
    client_specs: Sequence[str] = CLIENT_SPECS
    server_specs: Sequence[str] = SERVER_SPECS
    buffer_sizes: Sequence[int] | None = None
    """None: 1, 2, 5, 10, … up to the number of clients."""
    layout: Layout | None = None
    measured: Mapping[str, int | None] = field(default_factory=dict)
    """The constants that were measured rather than given, each with how many clients were sampled (None: none were)."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a model has at least one parameter, got {self.size}")
        try:
            check_size(self.size)
        except ValueError as error:
            raise ConfigError(f"no quantizer takes a model of this size: {error}") from None
        if self.budget_bytes is None and self.budget_s is None:
            raise ConfigError("a plan needs a budget: of bytes, of time, or both")
        for name, value in (("byte budget", self.budget_bytes), ("time budget", self.budget_s)):
            if value is not None:
                require_positive(name, value)

    @property
    def searched(self) -> tuple[int, ...]:
        """The buffer sizes to try, ascending. One that more than all clients must fill has to be asked for."""
        if self.buffer_sizes is None:
            return buffer_sizes_up_to(self.fleet.clients)
        asked = tuple(sorted(set(self.buffer_sizes)))
        return tuple(size for size in asked if size <= self.fleet.clients) or asked[:1]


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
