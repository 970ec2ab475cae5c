"""Which quantizers and K a budget is best spent on, predicted from a pilot and checked by short runs.

For every pair of quantizers and every K: how many uploads the target takes (or how far the budget goes), from the
pilot's course and what its runs say each cause of slowness costs; then bytes and time. The best are run for as long as
the pilot was, which corrects their predictions, and the best of those is recommended. Step sizes are the recipe's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, final

import numpy as np

from qafel.algorithm.messages import HEADER_BYTES
from qafel.config import Config
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.quantizers import fitness, make_quantizer
from qafel.quantizers.measure import Role, gaussian, measured
from qafel.rng import Stream
from qafel.runs.reading import Run
from qafel.search.planning.curves import Curve, Slowed, correction, first_hit, slowed
from qafel.search.planning.forecast import Fleet, Forecast, MessageSizes, forecast
from qafel.search.planning.pilot import (
    Candidates,
    Errors,
    Pair,
    Pilot,
    measured_errors,
    pilot_runs,
    read_pilot,
    require_converging,
    require_plannable,
    short_run,
    uploads_between_evaluations,
    with_pair,
)
from qafel.search.planning.updates import DurationLaw
from qafel.search.runner import RunSpec

RATES = (4.0, 3.0, 2.0, 1.5, 1.0, 0.75, 0.5, 0.35, 0.25)
"""Bits a coordinate of the default candidates."""
SMALLEST_TRELLIS = 1024
"""Below so many coordinates `trellis` sends what `rotated` does."""
SMALL_CLIENTS = ("rotated:4", "rotated:3", "rotated:2", "rotated:1")
SMALL_SERVERS = ("rotated:4", "rotated:3", "sign")
"""The server's fit (δ > 0) at every such size."""
SNAPSHOT = "trellis:4"
"""How precise the snapshots of a plan are that counts received bytes."""
NEAR = 1.02
"""Predictions up to 2 % above the fewest bytes count as equal, and the fewest uploads win."""

Counted: TypeAlias = Literal["sent", "received"]
"""Which bytes: uploaded and broadcast once; or uploaded and downloaded by clients that start."""
MakeRuns: TypeAlias = Callable[[Sequence[RunSpec]], None]

_LISTED = 5
_SEEDS_APART = 0.12
"""Standard deviation of log(uploads to a target) between seeds, which a pilot does not show: on CIFAR-10 0.10 and 0.17
of five runs of FedBuff and of QAFeL, on convex problems less."""
_QUANTILE = 1.2816
"""Of a normal law: four in five lie within so many standard deviations."""


@final
@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What is to be planned: a recipe, a target or a budget or both, and what may be chosen."""

    config: Config
    candidates: Candidates
    target: float | None = None
    budget_bytes: float | None = None
    budget_s: float | None = None
    """In the units of the recipe's clock."""
    counted: Counted = "sent"
    most_uploads: float = 2.0
    """How many times FedBuff's uploads a plan may take."""
    pilot_uploads: int = 20_000
    checks: int = 2
    seed: int = 100

    def __post_init__(self) -> None:
        require_plannable(self.config)
        if self.target is None and self.budget_bytes is None and self.budget_s is None:
            raise ConfigError("a plan needs an aim: a budget of bytes or time, or a `target`, which the recipe lacks")
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigError(f"the target is a finite number; got {self.target}")
        if self.budget_bytes is not None and not 1 <= self.budget_bytes < math.inf:
            raise ConfigError(f"the byte budget is a positive number, at least 1; got {self.budget_bytes:g}")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise ConfigError(f"the time budget is a positive number; got {self.budget_s:g}")


@final
@dataclass(frozen=True)
class Range:
    """A figure and where four in five such figures should lie."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(factor * self.low, factor * self.middle, factor * self.high)


@final
@dataclass(frozen=True)
class Prediction:
    """What is expected of one pair."""

    pair: Pair
    uploads: Range
    """To the target; or without one, what the budget pays for."""
    slowdown: float
    """Uploads to the same level over those without quantizers."""
    sizes: MessageSizes
    forecast: Forecast
    """Bytes each way and time of these uploads."""
    metric: float
    """What is reached with these uploads, or with what the budget pays for if that is fewer."""
    within: bool
    """Whether it meets the target, if there is one, within the budget and the allowed uploads."""
    corrected: float | None = None
    """How many times the uploads that were foretold its check took; None: it was not checked."""

    def bytes_of(self, counted: Counted) -> float:
        """What the budget counts."""
        if counted == "sent":
            return self.forecast.traffic_bytes
        return self.forecast.upload_bytes + self.received_bytes

    @property
    def received_bytes(self) -> float:
        """What clients that start download."""
        return self.forecast.uploads * self.sizes.download_bytes


@final
@dataclass(frozen=True)
class Plan:
    """The recommendation, what it is compared with, and how it came about."""

    request: PlanRequest
    pilot: Pilot
    recommended: Prediction
    fedbuff: Prediction
    others: tuple[Prediction, ...]
    """The next best pairs, best first."""
    checked: tuple[Prediction, ...]

    def recipe(self) -> Config:
        """The recommended pair as a recipe: the one that was asked about, with other quantizers, K and limits."""
        request, config = self.request, self.request.config
        stop = config.stop.model_dump(exclude_none=True)
        if request.budget_bytes is not None and request.counted == "sent":
            stop = {"traffic_bytes": int(request.budget_bytes)}
        elif request.budget_bytes is not None:
            stop = {"uploads": max(1, self.recommended.forecast.uploads)}
        if request.budget_s is not None:
            stop["virtual_time"] = request.budget_s
        stop["at_target"] = request.target is not None
        evaluation = config.evaluation.model_copy(update={"target": request.target})
        aimed = config.model_copy(update={"evaluation": evaluation})
        made = with_pair(aimed, self.recommended.pair, f"{config.name}-plan", **stop)
        return made.model_copy(update={"description": f"planned: {self.recommended.pair}"})


def default_specs(size: int) -> tuple[Sequence[str], Sequence[str]]:
    """Quantizers of many rates, for clients and for the server: trellis, for which small models are too short."""
    if size < SMALLEST_TRELLIS:
        return SMALL_CLIENTS, SMALL_SERVERS
    return [f"trellis:{rate:g}" for rate in RATES], [f"trellis:{rate:g},scale=least" for rate in RATES]


def default_candidates(config: Config, layout: Layout) -> Candidates:
    """Quantizers of many rates, and the recipe's K with its double and fourfold where clients are as many."""
    up, down = default_specs(layout.size)
    own, clients = config.algorithm.buffer_size, config.value("task.clients")
    scaled = config.algorithm.accumulator in ("mean", "sum")
    sizes = [size for size in (own, 2 * own, 4 * own) if size == own or (scaled and size <= (clients or own))]
    return Candidates(up, down, sizes)


def for_thin_downlinks(config: Config, layout: Layout) -> Config:
    """The recipe with snapshots of 4 bits a coordinate, unless it says how precise they are or the model is small."""
    algorithm = config.algorithm
    if algorithm.snapshot_quantizer is not None or layout.size < SMALLEST_TRELLIS:
        return config
    return config.model_copy(update={"algorithm": algorithm.model_copy(update={"snapshot_quantizer": SNAPSHOT})})


def checked_candidates(candidates: Candidates, layout: Layout, *, strict: bool = True) -> Candidates:
    """The candidates with the roughest quantizers last. If `strict`, one that does not suit its role is an error."""

    def sorted_by_error(specs: Sequence[str], role: Role) -> list[str]:
        rough = {}
        for spec in dict.fromkeys(specs):
            quantizer = make_quantizer(spec, layout)
            if strict and (unfit := fitness(quantizer, layout.size, role)):
                raise ConfigError(unfit[0])
            rough[spec] = measured(quantizer, [gaussian(layout.size)], 1, Stream.named(0, "plan-order")).nmse
        return sorted(rough, key=rough.__getitem__)

    clients, servers = sorted_by_error(candidates.clients, "client"), sorted_by_error(candidates.servers, "server")
    return Candidates(clients, servers, sorted(set(candidates.buffers)))


def make_plan(request: PlanRequest, folder: Path, make: MakeRuns) -> Plan:
    """Make the pilot's runs in `folder` (with `make`, which leaves finished ones alone), predict, check, recommend."""
    config, candidates = request.config, request.candidates
    planned = pilot_runs(config, candidates, request.pilot_uploads, request.seed)
    make(planned)
    require_converging(planned, folder)
    models = [folder / planned[0].folder / "model.safetensors"]
    errors = measured_errors(config, candidates, models, request.seed)
    predictor = Predictor(request, read_pilot(planned, folder, errors))
    every = predictor.ranked([predictor.predict(pair) for pair in candidates.pairs()])
    checked = predictor.checked(every[: request.checks], folder, make)
    seen = {it.pair for it in checked}
    final = predictor.ranked(checked) or every[:1]
    recommended = final[0]
    others = (*final[1:], *(it for it in every if it.pair != recommended.pair and it.pair not in seen))
    return Plan(request, predictor.pilot, recommended, predictor.fedbuff, others[:_LISTED], tuple(checked))


@final
class Predictor:
    """Predictions from one pilot."""

    def __init__(self, request: PlanRequest, pilot: Pilot) -> None:
        self.request = request
        self.pilot = pilot
        config = request.config
        clients = config.value("task.clients")
        self._clients = int(clients) if clients is not None else config.task.make().clients
        self._fleet = fleet_of(config, self._clients)
        base = pilot.base
        self.level, self._hit = math.inf, Range(math.inf, math.inf, math.inf)
        if request.target is not None:
            every = uploads_between_evaluations(config)
            self._hit = Range(*first_hit(base, request.target, every, Stream.named(request.seed, "plan-hits")))
            if math.isfinite(self._hit.middle):
                self.level = float(base.smooth(np.array([self._hit.middle]))[0])
        self._plain = slowed(base, pilot.costs, {})
        self.fedbuff = self.predict(Pair("none", "none", config.algorithm.buffer_size))

    @property
    def extrapolated(self) -> float:
        """How many times the pilot's length the target takes without quantizers; 0 without a target."""
        return 0.0 if self.request.target is None else self._hit.middle / self.pilot.base.end

    def predict(self, pair: Pair, corrected: float | None = None) -> Prediction:
        """What is expected of a pair; `corrected` is by how much a check has shown more uploads than foretold."""
        course = self.course(pair, self.pilot.base)
        factor = 1.0 if corrected is None else corrected
        sizes, request = self._sizes(pair), self.request
        affordable = self._affordable(pair, sizes)
        if request.target is None:
            middle = affordable
            uploads = Range(middle, middle, middle)
        else:
            middle = factor * course.at(self.level)
            uploads = self._range(middle, corrected)
        used = min(middle, affordable) if math.isfinite(min(middle, affordable)) else self.pilot.base.end
        height = course.height_after(used / factor)
        slowdown = self._slowdown(course, factor, height)
        metric = float(self.pilot.base.level(np.array([height]))[0])
        meets = request.target is None or math.isfinite(middle)
        within = meets and middle <= affordable * 1.0000001 and slowdown <= request.most_uploads
        rounded = math.floor if used == affordable else math.ceil
        steps = max(1, rounded(used / pair.buffer_size))
        return Prediction(pair, uploads, slowdown, sizes, self._forecast(sizes, pair, steps), metric, within, corrected)

    def course(self, pair: Pair, base: Curve) -> Slowed:
        """The course of the pilot, or of one of its runs, as slow as this pair makes it."""
        return slowed(base, self.pilot.costs, self.pilot.errors.strengths(pair))

    def checked(self, predictions: Sequence[Prediction], folder: Path, make: MakeRuns) -> list[Prediction]:
        """The predictions, corrected by a run of each that is as long as the pilot."""
        request, found = self.request, []
        runs = {
            it.pair: short_run(request.config, "check", it.pair, request.pilot_uploads, request.seed)
            for it in predictions
        }
        make(list(runs.values()))
        for pair, run in runs.items():
            try:
                measured_course = Curve.of(Run.load(folder / run.folder))
                first = self.pilot.first
                factor = correction(self.course(pair, first), first, measured_course)
            except ConfigError:  # it diverged
                factor = math.inf
            found.append(self.predict(pair, factor))
        return found

    def ranked(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """The best first: those within the limits by bytes to the target, or by how far the budget goes."""
        height = self.pilot.base.height

        def cost(it: Prediction) -> float:
            return it.bytes_of(self.request.counted)

        def key(it: Prediction) -> tuple[float, ...]:
            if self.request.target is None or not it.within:
                slow = it.slowdown > self.request.most_uploads
                return (not it.within, slow, -float(height(np.array([it.metric]))[0]), cost(it))
            return (False, cost(it), it.uploads.middle)

        ordered = sorted(predictions, key=key)
        if self.request.target is None or not ordered or not ordered[0].within:
            return ordered
        least = cost(ordered[0])
        near = [it for it in ordered if it.within and cost(it) <= NEAR * least]
        near.sort(key=lambda it: it.uploads.middle)
        return [*near, *(it for it in ordered if it not in near)]

    def _range(self, middle: float, corrected: float | None) -> Range:
        """Around a prediction: chance of the first hit, of another law beyond the pilot, of seeds, of the model."""
        if not math.isfinite(middle):
            return Range(math.inf, math.inf, math.inf)
        low, high = (math.log(it / self._hit.middle) / _QUANTILE for it in (self._hit.low, self._hit.high))
        beyond = 0.25 * max(0.0, math.log(max(1.0, self.extrapolated)))
        model = 0.1 if corrected is None else max(0.05, abs(math.log(corrected)) / 2)
        rest = math.hypot(_SEEDS_APART, beyond, model)
        return Range(
            middle * math.exp(-_QUANTILE * math.hypot(low, rest)),
            middle,
            middle * math.exp(_QUANTILE * math.hypot(high, rest)),
        )

    def _slowdown(self, course: Slowed, factor: float, height: float) -> float:
        """Uploads to a level over those without quantizers."""
        at = self.level if math.isfinite(self.level) else height
        plain = self._plain.at(at)
        return factor * course.at(at) / plain if plain else math.inf

    def _sizes(self, pair: Pair) -> MessageSizes:
        errors: Errors = self.pilot.errors
        up, down = errors.clients[pair.client].payload_bytes, errors.servers[pair.server].payload_bytes
        whole = errors.snapshot_bytes
        return _sizes(up, down, whole, self._clients / pair.buffer_size)

    def _affordable(self, pair: Pair, sizes: MessageSizes) -> float:
        """Uploads within both budgets; infinite without any."""
        request, size = self.request, pair.buffer_size
        each = float(sizes.upload_bytes)
        each += sizes.broadcast_bytes / size if request.counted == "sent" else sizes.download_bytes
        most = math.inf if request.budget_bytes is None else request.budget_bytes / each
        if request.budget_s is not None:
            most = min(most, request.budget_s / self._forecast(sizes, pair, 1000).duration_s * 1000 * size)
        return most

    def _forecast(self, sizes: MessageSizes, pair: Pair, steps: int) -> Forecast:
        """Bytes and time; the time by the fleet's laws, or at the pilot's pace where they are the user's own."""
        fleet = self._fleet or Fleet(clients=self._clients, durations=DurationLaw("constant", 1.0))
        found = forecast(sizes, fleet, pair.buffer_size, steps)
        return found if self._fleet else replace(found, duration_s=found.uploads * self.pilot.time_per_upload)


def predict_from_figures(
    size: int,
    fleet: Fleet,
    candidates: Candidates,
    uploads: float,
    costs: Mapping[str, float],
    most_uploads: float = 2.0,
) -> list[Prediction]:
    """Predictions where there is no task to run: from the uploads that FedBuff takes, and what each cause costs.

    `costs` are shares of the progress that a unit of a cause takes ("client": ω, "server": q/(1 − q)), as an earlier
    plan's JSON states them; what is missing counts as nothing. Errors are those on Gaussian data. FedBuff is the
    first, then the pairs with the fewest bytes sent.
    """
    data = [gaussian(size)]
    stream = Stream.named(0, "plan-figures")
    made = {spec: make_quantizer(spec, None) for spec in ("none", *candidates.clients, *candidates.servers)}
    found = {spec: measured(quantizer, data, 2, stream) for spec, quantizer in made.items()}
    errors = Errors(found, found, candidates.buffers[0], found["none"].payload_bytes)

    def predict(pair: Pair) -> Prediction:
        strengths = errors.strengths(pair)
        left = 1 - sum(costs.get(name, 0.0) * strength for name, strength in strengths.items())
        slowdown = 1 / left if left > 0 else math.inf
        up, down, whole = (found[spec].payload_bytes for spec in (pair.client, pair.server, "none"))
        sizes = _sizes(up, down, whole, fleet.clients / pair.buffer_size)
        needed = uploads * slowdown
        steps = math.ceil((needed if math.isfinite(needed) else uploads) / pair.buffer_size)
        costs_of = forecast(sizes, fleet, pair.buffer_size, max(1, steps))
        within = slowdown <= most_uploads
        return Prediction(pair, Range(needed, needed, needed), slowdown, sizes, costs_of, math.nan, within)

    predicted = sorted(map(predict, candidates.pairs()), key=lambda it: (not it.within, it.forecast.traffic_bytes))
    return [predict(Pair("none", "none", candidates.buffers[0])), *predicted]


def _sizes(up: float, down: float, whole: float, missed: float) -> MessageSizes:
    """Messages of these payloads, in their frames."""
    upload, broadcast, snapshot = (HEADER_BYTES + math.ceil(payload) for payload in (up, down, whole))
    return MessageSizes(upload, broadcast, snapshot, missed)


def fleet_of(config: Config, clients: int) -> Fleet | None:
    """The fleet that a recipe's [timing] describes; None if its laws are of another kind than a forecast knows."""
    timing, network = config.timing, config.timing.network
    known = ("half-normal", "log-normal", "uniform", "constant")
    differ = (timing.speed_spread, timing.duration_factors, timing.per_example, network.spread, network.rate_factors)
    plain = not (any(differ) or timing.max_concurrency) and isinstance(timing.dropout, float)
    if timing.arrivals not in ("always-training", "constant", "poisson") or timing.duration not in known or not plain:
        return None
    law = DurationLaw(timing.duration, timing.scale, timing.spread)  # one of `known`
    return Fleet(
        clients=clients,
        durations=law,
        upload_rate=network.upload_rate,
        download_rate=network.download_rate,
        latency=network.latency,
        arrival_rate=None if timing.arrivals == "always-training" else timing.rate * (1 - timing.dropout),
    )
