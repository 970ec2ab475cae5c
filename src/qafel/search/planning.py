"""`qafel plan`: quantizers and buffer size K for a budget or a target, by a race of short simulations.

Every pair of quantizers with every K runs for a short time on a common seed. The better quarter runs four times as
long, and so on. The finalists, and FedBuff beside them, run for the whole pilot with several seeds. Candidates are
compared by the bytes (or time) that they spend to reach a level that all acceptable ones reached. `caveats`, `reasons`,
`column` and `plan_json` present a plan.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np

from qafel.config import Config
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.quantizers import fitness, make_quantizer
from qafel.rng import Stream
from qafel.runs.directory import has_summary, state_of
from qafel.runs.reading import Run
from qafel.search.courses import Course, Interval, Scale
from qafel.search.runner import RunSpec
from qafel.tasks.protocol import Task
from qafel.text import human_bytes, human_count, human_metric, human_seconds
from qafel.theory import Setting, estimate_constants, largest_client_lr, largest_server_lr, max_staleness

RATES = (4.0, 2.0, 1.0, 0.5, 0.25)
"""Bits per coordinate of the default candidates."""
SMALLEST_TRELLIS = 1024
"""With fewer coordinates `trellis` sends the same as `rotated`."""
SMALL_CLIENTS = ("rotated:4", "rotated:3", "rotated:2", "rotated:1")
SMALL_SERVERS = ("rotated:4", "rotated:3", "sign")
FACTOR = 4
"""Each round keeps one candidate in four, and is four times as long as the round before."""
FINALISTS = 3
_LISTED = 5
_FIRST_ROUND = 16
"""The first round is at least the pilot's length divided by this."""
_SLACK = 1.1
"""A candidate may be slower than acceptable by this factor at an early level."""
_FEWEST, _MOST = 160, 400
"""Evaluations of a pilot."""

Counted: TypeAlias = Literal["total", "sent", "received"]
"""The bytes that count: uploads, each broadcast once and downloads of starting clients; or only one of the last two."""
MakeRuns: TypeAlias = Callable[[Sequence[RunSpec]], None]


class Pair(NamedTuple):
    """A client quantizer, a server quantizer and a buffer size K."""

    client: str
    server: str
    buffer_size: int

    def __str__(self) -> str:
        return f"{self.client} up, {self.server} down, K = {self.buffer_size}"


@final
@dataclass(frozen=True)
class Candidates:
    """The choices of a plan: every pair of quantizers with every K."""

    clients: Sequence[str]
    servers: Sequence[str]
    buffers: Sequence[int]

    def pairs(self) -> list[Pair]:
        """All pairs, each once."""
        return list(dict.fromkeys(itertools.starmap(Pair, itertools.product(self.clients, self.servers, self.buffers))))

    def require_fit(self, layout: Layout) -> None:
        """Raise a ConfigError for a quantizer that does not suit its role."""
        for role, specs in (("client", self.clients), ("server", self.servers)):
            for spec in specs:
                if unfit := fitness(make_quantizer(spec, layout), layout.size, role):  # type: ignore[arg-type]
                    raise ConfigError(unfit[0])


def default_candidates(config: Config, layout: Layout) -> Candidates:
    """Quantizers of several rates, and the recipe's K, its double and its fourfold where there are enough clients."""
    if layout.size < SMALLEST_TRELLIS:
        up, down = list(SMALL_CLIENTS), list(SMALL_SERVERS)
    else:
        up, down = [f"trellis:{rate:g}" for rate in RATES], [f"trellis:{rate:g},scale=least" for rate in RATES]
    size, clients = config.algorithm.buffer_size, config.value("task.clients")
    scaled = config.algorithm.accumulator in ("mean", "sum")
    sizes = [times * size for times in (1, 2, 4) if times == 1 or (scaled and times * size <= (clients or size))]
    return Candidates(up, down, sizes)


def with_catch_up(config: Config, counted: Counted, layout: Layout) -> Config:
    """The recipe with the shortest downloads if they count and its parts allow, unless it states its `catch_up`."""
    if counted == "sent" or "catch_up" in config.algorithm.model_fields_set:
        return config
    shortest = config.algorithm.model_copy(update={"catch_up": "auto"})
    try:
        shortest.compose(layout)
    except ConfigError:
        return config
    return config.model_copy(update={"algorithm": shortest})


@final
@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The question of a plan.

    config          The recipe.
    candidates      The quantizers and K to choose from.
    target          The metric to reach.
    budget_bytes    The largest number of bytes, as `counted` defines them.
    budget_s        The longest time, in units of the recipe's clock.
    most_uploads    The acceptable number of uploads, as a multiple of FedBuff's to the same level.
    pilot_uploads   Uploads of each run in the last round.
    seeds           The number of runs of each finalist.
    seed            The first of their seeds.
    """

    config: Config
    candidates: Candidates
    target: float | None = None
    budget_bytes: float | None = None
    budget_s: float | None = None
    counted: Counted = "total"
    most_uploads: float = 2.0
    pilot_uploads: int = 20_000
    seeds: int = 3
    seed: int = 100

    def __post_init__(self) -> None:
        method, name = self.config.algorithm.method, self.config.name
        if method not in ("qafel", "fedbuff"):
            raise ConfigError(f"A plan needs a recipe of qafel or fedbuff. The method of {name} is {method}.")
        if self.target is None and self.budget_bytes is None and self.budget_s is None:
            raise ConfigError("A plan needs a byte budget, a time budget or a `target`. Give one of them.")
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigError(f"The target must be a finite number; got {self.target}.")
        if self.budget_bytes is not None and not 1 <= self.budget_bytes < math.inf:
            raise ConfigError(f"The byte budget must be at least 1 byte and finite; got {self.budget_bytes:g}.")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise ConfigError(f"The time budget must be positive and finite; got {self.budget_s:g}.")
        if self.seeds < 2:
            raise ConfigError(f"A plan needs at least 2 seeds to estimate their difference; got {self.seeds}.")


class Spent(NamedTuple):
    """What one upload costs, measured over a run."""

    upload_bytes: float
    broadcast_bytes: float
    received_bytes: float
    time: float

    def bytes_of(self, counted: Counted) -> float:
        broadcast = self.broadcast_bytes if counted != "received" else 0.0
        return self.upload_bytes + broadcast + (self.received_bytes if counted != "sent" else 0.0)

    def times(self, uploads: float) -> Spent:
        return Spent(*(uploads * value for value in self))


@final
@dataclass(frozen=True)
class Entrant:
    """A candidate after a round of the race."""

    pair: Pair
    course: Course
    each: Spent
    every: int
    """Uploads between two evaluations of a full run."""
    cost: float = math.nan
    """Bytes, or time, to the level of the round."""
    slowdown: float = math.nan
    """Uploads to that level over those of FedBuff."""


@final
@dataclass(frozen=True)
class Round:
    """A round of the race: its length in uploads, its level of comparison, and its entrants, best first."""

    uploads: int
    level: float
    ranked: tuple[Entrant, ...]


@final
@dataclass(frozen=True)
class Prediction:
    """The prediction for one pair.

    uploads      Uploads to the target; without a target, those that the budget allows.
    slowdown     Uploads to a level that was reached, as a multiple of FedBuff's.
    run_uploads  The uploads of the run: those to the target, or fewer if the budget ends before.
    spent        Bytes and time of that run.
    metric       The metric at its end.
    within       Whether it reaches the target within the budget and the allowed uploads.
    measured     Whether every seed of the pilot reached the target.
    """

    pair: Pair
    uploads: Interval
    slowdown: float
    run_uploads: float
    spent: Spent
    metric: Interval
    within: bool
    measured: bool


@final
@dataclass(frozen=True)
class BudgetPlan:
    """The recommendation, its alternatives, and the race."""

    request: PlanRequest
    recommended: Prediction
    fedbuff: Prediction
    others: tuple[Prediction, ...]
    """The other finalists, best first."""
    rounds: tuple[Round, ...]
    reference: Course
    """The course of FedBuff."""

    def recipe(self) -> Config:
        """The recommended pair as a recipe, which ends at the budget or at the target."""
        request, config = self.request, self.request.config
        stop: dict[str, Any] = {} if request.budget_s is None else {"virtual_time": request.budget_s}
        if request.budget_bytes is not None and request.counted == "total":
            stop["total_bytes"] = int(request.budget_bytes)
        elif request.budget_bytes is not None:
            stop["uploads"] = max(1, math.floor(self.recommended.run_uploads))
        stop = stop or config.stop.model_dump(exclude_none=True)
        stop["at_target"] = request.target is not None
        evaluation = config.evaluation.model_copy(update={"target": request.target})
        aimed = config.model_copy(update={"evaluation": evaluation})
        made = with_pair(aimed, self.recommended.pair, f"{config.name}-plan", stop=stop)
        return made.model_copy(update={"description": f"planned: {self.recommended.pair}"})


def with_pair(config: Config, pair: Pair, name: str, **sections: Any) -> Config:
    """The recipe with other quantizers and K, and with other `sections`. The step per upload stays the same.

    Without quantizers it is FedBuff, whose starts are exact.
    """
    table = config.model_dump(exclude_none=True)
    algorithm = table["algorithm"]
    grown = pair.buffer_size / algorithm["buffer_size"] if algorithm["accumulator"] == "mean" else 1.0
    algorithm |= {
        "method": "qafel",
        "client_quantizer": pair.client,
        "server_quantizer": pair.server,
        "buffer_size": pair.buffer_size,
        "server_lr": algorithm["server_lr"] * grown,
    }
    if pair.client == pair.server == "none":
        algorithm["catch_up"] = "exact"
    return Config.from_dict(table | sections | {"name": name}, name)


def evaluation_interval(config: Config) -> int:
    """Uploads between two evaluations of a recipe."""
    every = config.evaluation.every
    return every if config.evaluation.unit == "uploads" else every * config.algorithm.buffer_size


def make_plan(request: PlanRequest, folder: Path, make: MakeRuns) -> BudgetPlan:
    """Race the candidates, predict the finalists and recommend one.

    folder   holds the run directories; finished runs are used again
    make     makes runs in the folder; raises if one fails
    """
    race = _Race(request, folder, make)
    rounds = race.run()
    last, fedbuff = rounds[-1], race.fedbuff
    predict = partial(_predict, request, fedbuff.course.scale)
    finalists = [predict(it) for it in last.ranked[:_LISTED]]
    best = next((it for it in finalists if it.within), finalists[0])
    others = tuple(it for it in finalists if it is not best)
    return BudgetPlan(request, best, predict(fedbuff), others, tuple(rounds), fedbuff.course)


def round_lengths(candidates: int, pilot_uploads: int, largest_buffer: int) -> list[int]:
    """The uploads of each round. A round has at least 10 server steps, and the last one is the whole pilot."""
    shortest = max(pilot_uploads / _FIRST_ROUND, 10 * largest_buffer)
    lengths, left = [pilot_uploads], FINALISTS
    while left < candidates and lengths[0] / FACTOR >= shortest:
        lengths.insert(0, lengths[0] // FACTOR)
        left *= FACTOR
    return lengths


class _Race:
    """The race of a request."""

    def __init__(self, request: PlanRequest, folder: Path, make: MakeRuns) -> None:
        self.request, self._folder, self._make = request, folder, make
        self._reference = Pair("none", "none", request.config.algorithm.buffer_size)
        self.fedbuff: Entrant
        """FedBuff in the last round so far."""

    def run(self) -> list[Round]:
        """Run all rounds."""
        request = self.request
        pairs = request.candidates.pairs()
        lengths = round_lengths(len(pairs), request.pilot_uploads, max(pair.buffer_size for pair in pairs))
        rounds: list[Round] = []
        for number, uploads in enumerate(lengths):
            is_last = number == len(lengths) - 1
            rounds.append(self._round(pairs, uploads, request.seeds if is_last else 1))
            keep = max(FINALISTS, math.ceil(len(pairs) / FACTOR)) if number < len(lengths) - 2 else FINALISTS
            pairs = [entrant.pair for entrant in rounds[-1].ranked[:keep]]
        return rounds

    def _round(self, pairs: Sequence[Pair], uploads: int, seeds: int) -> Round:
        """Run these pairs and FedBuff up to `uploads`, and rank them."""
        runs = {
            pair: [self._spec(pair, uploads, self.request.seed + seed) for seed in range(seeds)]
            for pair in dict.fromkeys([self._reference, *pairs])
        }
        todo = [run for several in runs.values() for run in several if not self._covers(run)]
        if todo:
            self._make(todo)
        loaded = {pair: [Run.load(self._folder / run.folder) for run in several] for pair, several in runs.items()}
        for run in loaded[self._reference]:
            if not run.diverged and (reached := run.number("uploads")) < 0.9 * uploads:
                raise ConfigError(f"The pilot ended after {human_count(reached)} uploads. Set fewer `pilot_uploads`.")
        scale = Scale.of(loaded[self._reference], self.request.target)
        entrants = {pair: self._entrant(pair, found, scale, uploads) for pair, found in loaded.items()}
        self.fedbuff = entrants[self._reference]
        self.fedbuff.course.require_progress()
        return self._ranked([entrants[pair] for pair in pairs], uploads)

    def _spec(self, pair: Pair, uploads: int, seed: int) -> RunSpec:
        config, pilot = self.request.config, self.request.pilot_uploads
        every = min(max(evaluation_interval(config), pilot // _MOST), max(1, pilot // _FEWEST))
        evaluation = config.evaluation.model_dump(exclude_none=True) | {"unit": "uploads", "every": every}
        evaluation.pop("target", None)
        made = with_pair(config, pair, config.name, stop={"uploads": uploads}, evaluation=evaluation, seed=seed)
        tag = f"{pair.client}-{pair.server}-{made.algorithm.catch_up}-k{pair.buffer_size}-every{every}"
        name = re.sub(r"[^\w.]+", "-", tag)
        return RunSpec(str(pair), made.model_copy(update={"name": f"{config.name}-{name}"}))

    def _covers(self, run: RunSpec) -> bool:
        """Whether the folder holds the run, or a longer one, or one that diverged."""
        path = self._folder / run.folder
        state = state_of(path, run.config)
        if state != "other limits" or not has_summary(path):
            return state == "finished"
        found = Run.load(path)
        return found.diverged or found.number("uploads") >= (run.config.stop.uploads or 0)

    def _entrant(self, pair: Pair, runs: Sequence[Run], scale: Scale, uploads: int) -> Entrant:
        names = ("upload_bytes_total", "broadcast_bytes_total", "received_bytes_total", "virtual_time")
        spent = []
        for run in runs:
            row = max(1, int(np.searchsorted(run.column("uploads"), uploads, side="right")) - 1)
            spent.append([run.column(name)[row] / run.column("uploads")[row] for name in names])
        every = evaluation_interval(with_pair(self.request.config, pair, "plan"))
        return Entrant(pair, Course.of(runs, scale, uploads), Spent(*np.mean(spent, axis=0).tolist()), every)

    def _ranked(self, entrants: Sequence[Entrant], uploads: int) -> Round:
        """Rank by what an entrant spends to a level that every acceptable one reached."""
        request, course, scale = self.request, self.fedbuff.course, self.fedbuff.course.scale
        horizon = min(float(uploads), max(affordable(request, it.each) for it in entrants))
        level = course.height_at(horizon / (_SLACK * request.most_uploads))
        ends = [-math.inf if it.course.diverged else it.course.height_at(horizon) for it in entrants]
        level = max(level, min((end for end in ends if end >= level), default=level))
        if request.target is not None:
            level = min(level, float(scale.height(np.array(request.target))))
        plain = course.uploads_to(min(level, course.height_at(uploads)))
        found = []
        for it in entrants:
            needed = it.course.uploads_to(level)
            by_time = request.budget_bytes is None and request.target is None
            each = it.each.time if by_time else it.each.bytes_of(request.counted)
            found.append(replace(it, cost=each * needed, slowdown=needed / plain))
        order = sorted(
            range(len(found)), key=lambda at: (found[at].slowdown > request.most_uploads, found[at].cost, -ends[at])
        )
        return Round(uploads, scale.metric(level), tuple(found[at] for at in order))


def affordable(request: PlanRequest, each: Spent) -> float:
    """The uploads within both budgets; infinite without any."""
    by_bytes = math.inf if request.budget_bytes is None else request.budget_bytes / each.bytes_of(request.counted)
    by_time = math.inf if request.budget_s is None or not each.time else request.budget_s / each.time
    return min(by_bytes, by_time)


def _predict(request: PlanRequest, scale: Scale, it: Entrant) -> Prediction:
    """The prediction for a finalist, or for FedBuff."""
    most = affordable(request, it.each)
    measured, uploads = False, Interval(most, most, most)
    if request.target is not None:
        height = float(scale.height(np.array(request.target)))
        measured = not it.course.diverged and it.course.reaches(height)
        uploads = it.course.uploads_until(
            height, it.every, Stream.named(request.seed, "plan", number=it.pair.buffer_size)
        )
    used = min(uploads.middle, most)
    used = used if math.isfinite(used) else float(request.pilot_uploads)
    used = max(float(it.pair.buffer_size), used)
    low, middle, high = (math.nan,) * 3 if it.course.diverged else it.course.height_after(used)
    metric = Interval(scale.metric(low), scale.metric(middle), scale.metric(high))
    slowdown = 1.0 if math.isnan(it.slowdown) else it.slowdown
    within = math.isfinite(uploads.middle) and uploads.middle <= most * 1.0000001 and slowdown <= request.most_uploads
    return Prediction(it.pair, uploads, slowdown, used, it.each.times(used), metric, within, measured)


def caveats(plan: BudgetPlan) -> list[str]:
    """The limits of the plan."""
    request, best, reference = plan.request, plan.recommended, plan.reference
    said = []
    if _budget_is_tiny(plan):
        said.append(
            f"The budget ends before the first server step of {best.pair.buffer_size} uploads. The figures are for one "
            "step."
        )
    if request.target is not None and not best.measured:
        reached = human_metric(reference.scale.metric(reference.height_at(reference.end)))
        text = f"The pilot did not reach the target {request.target:g}. FedBuff came to {reached} in "
        text += f"{human_count(reference.end)} uploads."
        if math.isfinite(best.uploads.middle):
            laws = " and ".join(law.name for law in _course(plan, best).laws)
            times = best.uploads.middle / request.pilot_uploads
            text += f" The prediction extrapolates {times:.2g} times as far; its range spans the laws {laws}."
        else:
            text += " The pilot is too short, so there is no prediction of uploads."
        said.append(text + " Increase `pilot_uploads` to measure more.")
    elif request.target is None and best.run_uploads > 1.5 * request.pilot_uploads:
        times = best.run_uploads / request.pilot_uploads
        said.append(f"The budget lasts {times:.2g} times as long as the pilot. The metric at its end is extrapolated.")
    if not best.within and (request.target is None or math.isfinite(best.uploads.middle)):
        aim = "the allowed uploads" if request.target is None else f"{request.target:g} within the limits"
        said.append(f"No finalist is expected to reach {aim}. The recommended one comes nearest.")
    uploads, total, time = best.run_uploads, best.spent.bytes_of("total"), best.spent.time
    share = plan.recipe().stop.share_done(int(uploads / best.pair.buffer_size), int(uploads), int(total), time)
    if request.target is not None and best.within and share > 1.01:
        said.append(
            f"The recipe's limits end the run after {human_count(round(uploads / share))} uploads, before the target. "
            "Set larger limits in [stop]."
        )
    return said


def _budget_is_tiny(plan: BudgetPlan) -> bool:
    request, best = plan.request, plan.recommended
    spent = best.spent.bytes_of(request.counted), best.spent.time
    limits = (request.budget_bytes or math.inf, request.budget_s or math.inf)
    one_step = best.run_uploads <= best.pair.buffer_size
    return one_step and any(it > 1.000001 * most for it, most in zip(spent, limits, strict=True))


def _course(plan: BudgetPlan, prediction: Prediction) -> Course:
    return next(it.course for it in plan.rounds[-1].ranked if it.pair == prediction.pair)


def reasons(plan: BudgetPlan) -> list[str]:
    """The measurements behind the plan."""
    request, best, last = plan.request, plan.recommended, plan.rounds[-1]
    said = [
        f"{len(it.ranked)} candidates ran for {human_count(it.uploads)} uploads and were compared at the metric "
        f"{human_metric(it.level)}"
        for it in plan.rounds
    ]
    said[-1] += f", with {request.seeds} seeds each"
    said.append(
        f"to {human_metric(last.level)} the recommended pair takes {best.slowdown:.2f} times the uploads of FedBuff"
    )
    config, pair = request.config, best.pair
    scaled = config.algorithm.accumulator == "mean" and pair.buffer_size != config.algorithm.buffer_size
    how = f", η_g times {pair.buffer_size / config.algorithm.buffer_size:g} as K is" if scaled else ""
    said.append(f"step sizes are those of {config.name}{how}; `qafel tune` searches for better ones")
    return said


def theory(config: Config, task: Task, prediction: Prediction) -> str:
    """The step sizes that Theorem 3.1 admits for a pair. They hold for the worst problem, so they are far lower."""
    constants = estimate_constants(task, seed=config.seed, initial_gap=1.0, batch_size=config.algorithm.batch_size)
    algorithm, pair, size = config.algorithm, prediction.pair, task.layout.size
    wired = algorithm.model_copy(update={"client_quantizer": pair.client, "server_quantizer": pair.server}).compose(
        task.layout
    )
    steps = max(1, round(prediction.run_uploads / pair.buffer_size))
    setting = Setting(
        local_steps=algorithm.local_steps or 1,
        buffer_size=pair.buffer_size,
        server_steps=steps,
        max_staleness=max_staleness(task.clients, pair.buffer_size),
        client_delta=wired.client_quantizer.delta(size),
        server_delta=wired.server_quantizer.delta(size),
    ).of_length(steps)
    client = largest_client_lr(constants, setting)
    server = largest_server_lr(constants, setting, client)
    return (
        f"theory: with L ≈ {constants.smoothness:.3g}, σ_ℓ ≈ {constants.gradient_noise:.3g} and B ≈ "
        f"{constants.heterogeneity:.3g} at x⁰, Theorem 3.1 admits η_ℓ up to {client:.3g} and η_g up to {server:.3g}. "
        f"The recipe has {algorithm.client_lr:.3g} and {algorithm.server_lr:.3g}. The plan does not use the theorem."
    )


def plan_json(plan: BudgetPlan) -> dict[str, Any]:
    """A plan as plain values."""
    request = plan.request
    aims = {"target": request.target, "byte_budget": request.budget_bytes, "time_budget": request.budget_s}
    words = {"recipe": request.config.name, "caveats": caveats(plan), "why": reasons(plan)}
    found = {"recommended": plan.recommended, "fedbuff": plan.fedbuff, "others": plan.others, "rounds": plan.rounds}
    return {**words, **aims, "counted": request.counted, "back_test": plan.reference.back_test, **_plain(found)}


def _plain(value: Any) -> Any:
    """A value without tuples and dataclasses, and with None in place of infinity and NaN."""
    if isinstance(value, Course):
        return {"uploads": _plain(value.end), "diverged": value.diverged}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def column(it: Prediction, clients: int) -> dict[str, str]:
    """A prediction's figures for people. A client's bytes are the mean over `clients`."""
    low, middle, high = map(human_count, it.uploads)
    worst, metric, best = map(human_metric, it.metric)
    aimed = {}
    if not math.isfinite(it.uploads.middle):
        aimed = {"uploads to the target": "no prediction"}
    elif it.uploads.low != it.uploads.high:
        aimed = {"uploads to the target": f"{middle} ({low} to {high})"}
    return {
        "clients send": it.pair.client,
        "the server sends": it.pair.server,
        "buffer size K": f"{it.pair.buffer_size:,}",
        **aimed,
        "times FedBuff's uploads": f"{it.slowdown:.2f}" if math.isfinite(it.slowdown) else "∞",
        "uploads of the run": human_count(it.run_uploads),
        "total bytes": human_bytes(it.spent.bytes_of("total")),
        "up": human_bytes(it.spent.upload_bytes),
        "broadcast": human_bytes(it.spent.broadcast_bytes),
        "received": human_bytes(it.spent.received_bytes),
        "up and received per client": human_bytes(it.spent.bytes_of("received") / clients),
        "time": human_seconds(it.spent.time),
        "metric at the end": metric if worst == best else f"{metric} ({worst} to {best})",
    }
