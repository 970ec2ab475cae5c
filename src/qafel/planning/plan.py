"""Which quantizers, K and step sizes a budget affords, by Theorem 3.1.

For every pair of quantizers and every K: how many server steps T the budget pays for, the step sizes with the least
bound, and that bound. The least bound wins; where bytes are not what is budgeted, the fewest bytes within 5 % of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import final

from qafel.config.parts import make_quantizer
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.planning.forecast import Fleet, Forecast, MessageSizes, affordable_steps, forecast
from qafel.quantizers import fitness, parse
from qafel.quantizers.measure import Role
from qafel.quantizers.payloads import check_size
from qafel.quantizers.protocol import Quantizer
from qafel.tasks.convex.synthetic import Constants
from qafel.theory.corollary import StepSizes, best_step_sizes, steps_to_reach
from qafel.theory.theorem import Bound, Setting, bound, max_staleness, require_positive

CLIENT_SPECS = (
    *("none", "qsgd:8", "qsgd:6", "qsgd:4,bucket=128", "dithered:8", "dithered:6", "dithered:4"),
    *("rotated:6", "rotated:5", "rotated:4", "rotated:3"),
)
SERVER_SPECS = (*CLIENT_SPECS, "scaled:rotated:2", "top_k:0.1", "top_k:0.01", "sign")

NEAR = 1.05
"""Where bytes are not budgeted, bounds up to 5 % above the least count as equal, and the fewest bytes win."""

_MOST_ALTERNATIVES = 4


def _buffer_sizes_up_to(clients: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, … and the number of clients."""
    sizes = (factor * 10**power for power in range(len(str(clients))) for factor in (1, 2, 5))
    return tuple(sorted({clients, *(size for size in sizes if size <= clients)}))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is to be planned for: a model, a fleet, the problem's constants, a budget, and what may be chosen."""

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
            raise ConfigError(f"a model has at least one parameter; got {self.size}")
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
        """The buffer sizes to try, ascending; one above the number of clients only if no smaller one was asked for."""
        if self.buffer_sizes is None:
            return _buffer_sizes_up_to(self.fleet.clients)
        asked = tuple(sorted(set(self.buffer_sizes)))
        return tuple(size for size in asked if size <= self.fleet.clients) or asked[:1]

    def messages(self, client: Quantizer, server: Quantizer, buffer_size: int) -> MessageSizes:
        """The bytes of what two quantizers send: between two starts of a client all others send an update."""
        return MessageSizes.of(client, server, self.size, self.fleet.clients / buffer_size)


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One way to spend the budget."""

    client: Quantizer
    server: Quantizer
    message_sizes: MessageSizes
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
class BudgetPlan:
    """The recommendation, what it is compared with, and what came close."""

    request: PlanRequest
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


def make_plan(request: PlanRequest) -> BudgetPlan:
    """Search all pairs of quantizers and buffer sizes for the least bound within the budget of `request`.

    Raises a ConfigError if the budget does not pay for a single server step.
    """
    plain = parse("none")
    unquantized = _choices(request, [plain], [plain])
    clients = _suitable(request.client_specs, request, "client")
    servers = _suitable(request.server_specs, request, "server")
    fleet = request.fleet
    fleet.require_enough_clients(request.messages(clients[0], servers[0], request.searched[-1]))
    # Messages so long that the arrivals would need more clients than there are cannot be recommended.
    choices = [it for it in _choices(request, clients, servers) if fleet.has_enough_clients(it.message_sizes)]
    if not choices:
        remedy = "raise it" if request.buffer_sizes is None else "raise it, or lower K"
        raise ConfigError(f"the budget does not pay for one server step even with the shortest messages: {remedy}")
    near = NEAR if request.budget_bytes is None else 1.0
    recommended = _least(choices, near)
    fedbuff = _least(unquantized or [evaluate_choice(request, plain, plain, request.searched[0], 1)], near)
    matching = _matching(request, recommended, fedbuff.bound.total)
    others = tuple(choice for choice in choices if choice.pair == recommended.pair and choice is not recommended)
    alternatives = _alternatives(choices, recommended)
    return BudgetPlan(request, recommended, fedbuff, bool(unquantized), matching, others, alternatives)


def evaluate_choice(
    request: PlanRequest, client: Quantizer, server: Quantizer, buffer_size: int, server_steps: int
) -> Choice:
    """What Theorem 3.1 and the forecast say of one pair of quantizers, `buffer_size` K and `server_steps` T."""
    messages = request.messages(client, server, buffer_size)
    setting = Setting(
        local_steps=request.local_steps,
        buffer_size=buffer_size,
        server_steps=server_steps,
        max_staleness=_staleness(request, messages, buffer_size, server_steps),
        client_delta=client.delta(request.size),
        server_delta=server.delta(request.size),
    ).of_length(server_steps)
    steps = best_step_sizes(request.constants, setting)
    found = bound(request.constants, setting, steps.client_lr, steps.server_lr)
    costs = forecast(messages, request.fleet, buffer_size, server_steps)
    return Choice(client, server, messages, setting, steps, found, costs)


def _suitable(specs: Sequence[str], request: PlanRequest, role: Role) -> list[Quantizer]:
    """The quantizers of `specs` that suit the `role`, without those that another one beats in bytes and δ.

    A default spec that does not suit is left out; one that the user asked for is an error. The bound falls with δ and
    with every byte saved.
    """
    found, size = [], request.size
    for spec in specs:
        quantizer = make_quantizer(spec, request.layout)
        unfit = fitness(quantizer, size, role)
        if not unfit and math.isinf(quantizer.omega(size)):
            unfit = [f"{role} quantizer {spec!r} has no bound on its error: the theorem does not hold for it"]
        if not unfit:
            found.append(quantizer)
        elif specs not in (CLIENT_SPECS, SERVER_SPECS):
            raise ConfigError(unfit[0])
    kept: list[Quantizer] = []
    for it in sorted(found, key=lambda it: (it.max_payload_bytes(size), -it.delta(size))):
        if not kept or it.delta(size) > kept[-1].delta(size):
            kept.append(it)
    return kept


def _staleness(request: PlanRequest, sizes: MessageSizes, buffer_size: int, server_steps: int) -> int:
    """τ_max,K of a run that is long enough for it."""
    updates = request.max_staleness
    if updates is None:
        updates = request.fleet.largest_staleness(sizes, buffer_size * server_steps)
    return max_staleness(updates, buffer_size)


def _choices(request: PlanRequest, clients: Iterable[Quantizer], servers: Sequence[Quantizer]) -> list[Choice]:
    """All pairs of quantizers with every K that the budget pays for, at the most steps that it pays for."""
    budget = {name: getattr(request, name) for name in ("budget_bytes", "budget_s", "every_copy")}
    found = []
    for client, server, size in product(clients, servers, request.searched):
        sizes = request.messages(client, server, size)
        if steps := affordable_steps(sizes, request.fleet, size, **budget):
            found.append(evaluate_choice(request, client, server, size, steps))
    return found


def _matching(request: PlanRequest, choice: Choice, target: float) -> Forecast | None:
    size, steps = choice.setting.buffer_size, choice.setting.server_steps
    stale = replace(choice.setting, max_staleness=_staleness(request, choice.message_sizes, size, steps))
    try:
        needed = steps_to_reach(request.constants, stale, target)
    except ConfigError:
        return None  # a plan is of use without the comparison, too
    return forecast(choice.message_sizes, request.fleet, size, needed)


def _least(choices: Sequence[Choice], near: float) -> Choice:
    """The choice with the fewest bytes, every copy counted, of those whose bound is at most `near` times the least."""
    enough = near * min(choice.bound.total for choice in choices)
    good = (choice for choice in choices if choice.bound.total <= enough)
    return min(good, key=lambda choice: choice.forecast.crossing_bytes)


def _alternatives(choices: Sequence[Choice], recommended: Choice) -> tuple[Choice, ...]:
    best: dict[tuple[str, str], Choice] = {}
    for choice in sorted(choices, key=lambda choice: choice.bound.total):
        best.setdefault(choice.pair, choice)
    best.pop(recommended.pair, None)
    return tuple(best.values())[:_MOST_ALTERNATIVES]
