"""Which quantizers, K and step sizes a budget affords, by Theorem 3.1.

For every pair of quantizers and every K: how many server steps T the budget pays for, the step sizes with the least
bound, and that bound. The least bound wins; where bytes are not what is budgeted, the fewest bytes within 5 % of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.quantizers import fitness, parse
from qafel.quantizers.fitness import Role
from qafel.quantizers.protocol import Quantizer
from qafel.tasks.synthetic import Constants
from qafel.theory.best import best_step_sizes, steps_to_reach
from qafel.theory.corollary import StepSizes
from qafel.theory.fleet import Fleet
from qafel.theory.forecast import Exchange, Forecast, affordable_steps, forecast
from qafel.theory.setting import Setting, max_staleness
from qafel.theory.theorem import Bound, bound

CLIENT_SPECS = (
    *("none", "qsgd:8", "qsgd:6", "qsgd:4,bucket=128", "dithered:8", "dithered:6", "dithered:4"),
    *("rotated:6", "rotated:5", "rotated:4", "rotated:3"),
)
SERVER_SPECS = (*CLIENT_SPECS, "scaled:rotated:2", "top_k:0.1", "top_k:0.01", "sign")
BUFFER_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
NEAR = 1.05
_MOST_ALTERNATIVES = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is to be planned for."""

    size: int
    """Parameters of the model."""
    fleet: Fleet
    constants: Constants
    local_steps: int = 10
    budget_bytes: float | None = None
    """Uploaded, and broadcast once; or received, with every copy."""
    every_copy: bool = False
    budget_s: float | None = None
    max_staleness: int | None = None
    """τ_max,1, in updates; None: as the durations say."""
    client_specs: Sequence[str] = CLIENT_SPECS
    server_specs: Sequence[str] = SERVER_SPECS
    buffer_sizes: Sequence[int] = BUFFER_SIZES
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a model has at least one parameter, got {self.size}")
        if self.budget_bytes is None and self.budget_s is None:
            raise ConfigError("a plan needs a budget: of bytes, of time, or both")
        for name, value in (("byte", self.budget_bytes), ("time", self.budget_s)):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"the {name} budget is positive, got {value}")


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


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The recommendation, what it is compared with, and what came close."""

    demand: Demand
    recommended: Choice
    fedbuff: Choice
    """The best of unquantized FedBuff within the same budget; a single step where not even that fits."""
    fedbuff_fits: bool
    matching: Forecast
    """What the recommendation needs to reach FedBuff's bound."""
    alternatives: tuple[Choice, ...]
    """The best K of other pairs of quantizers, the least bound first."""


def make_plan(demand: Demand) -> Plan:
    """Search all pairs and buffer sizes. Raises where the budget does not pay for a single server step."""
    plain = parse("none")
    unquantized = _choices(demand, [plain], [plain])
    clients, servers = _fit(demand, demand.client_specs, "client"), _fit(demand, demand.server_specs, "server")
    choices = _choices(demand, _efficient(clients, demand.size), _efficient(servers, demand.size))
    if not choices:
        raise ConfigError(
            "the budget does not pay for one server step even with the shortest messages: raise it, or lower K"
        )
    near = NEAR if demand.budget_bytes is None else 1.0
    recommended = _least(choices, near)
    fedbuff = _least(unquantized or [_single_step(demand, plain)], near)
    matching = steps_to_reach(demand.constants, recommended.setting, fedbuff.bound.total)
    return Plan(
        demand,
        recommended,
        fedbuff,
        bool(unquantized),
        forecast(recommended.exchange, demand.fleet, recommended.setting.buffer_size, matching),
        _alternatives(choices, recommended),
    )


def evaluate_choice(
    demand: Demand, client: Quantizer, server: Quantizer, buffer_size: int, server_steps: int
) -> Choice:
    """What Theorem 3.1 and the forecast say of one pair of quantizers, K and T."""
    exchange = Exchange.of(client, server, demand.size)
    stale = demand.max_staleness
    if stale is None:
        uploads = buffer_size * server_steps
        stale = demand.fleet.largest_staleness(exchange.upload_bytes, exchange.broadcast_bytes, uploads)
    setting = Setting(
        local_steps=demand.local_steps,
        buffer_size=buffer_size,
        server_steps=server_steps,
        max_staleness=max_staleness(stale, buffer_size),
        client_delta=client.delta(demand.size),
        server_delta=server.delta(demand.size),
    )
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


def _choices(demand: Demand, clients: Iterable[Quantizer], servers: Sequence[Quantizer]) -> list[Choice]:
    found = []
    for client in clients:
        for server in servers:
            exchange = Exchange.of(client, server, demand.size)
            for size in demand.buffer_sizes:
                steps = affordable_steps(
                    exchange,
                    demand.fleet,
                    size,
                    budget_bytes=demand.budget_bytes,
                    budget_s=demand.budget_s,
                    every_copy=demand.every_copy,
                )
                # A buffer that more than all clients must fill makes every one of them wait for itself.
                if steps and (size <= demand.fleet.clients or len(demand.buffer_sizes) == 1):
                    found.append(evaluate_choice(demand, client, server, size, steps))
    return found


def _single_step(demand: Demand, plain: Quantizer) -> Choice:
    """FedBuff where the budget does not pay for it: one step, to compare with nevertheless."""
    return evaluate_choice(demand, plain, plain, min(demand.buffer_sizes), 1)


def _fit(demand: Demand, specs: Sequence[str], role: Role) -> list[Quantizer]:
    """The quantizers that suit the role at this size; one that was asked for and does not is an error."""
    fit = []
    for spec in specs:
        quantizer = parse(spec, demand.layout)
        unfit = fitness(quantizer, demand.size, role)
        if not unfit and math.isinf(quantizer.omega(demand.size)):
            unfit = [f"{role} quantizer {spec!r} has no bound on its error: the theorem cannot take it"]
        if not unfit:
            fit.append(quantizer)
        elif specs not in (CLIENT_SPECS, SERVER_SPECS):
            raise ConfigError(unfit[0])
    return fit


def _efficient(quantizers: Sequence[Quantizer], size: int) -> list[Quantizer]:
    """Those that no other one beats in bytes and δ: the bound falls with δ and with every byte saved."""
    ordered = sorted(quantizers, key=lambda it: (it.max_payload_bytes(size), -it.delta(size)))
    kept: list[Quantizer] = []
    for it in ordered:
        if not kept or it.delta(size) > kept[-1].delta(size):
            kept.append(it)
    return kept


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
        best.setdefault((choice.client.spec, choice.server.spec), choice)
    best.pop((recommended.client.spec, recommended.server.spec), None)
    return tuple(best.values())[:_MOST_ALTERNATIVES]
