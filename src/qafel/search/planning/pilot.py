"""The pilot: a few short runs of the user's own task, and what quantizers do to its updates.

Two runs go without quantizers, as all rests on their course, and one with each thing that may slow it down: the
roughest client quantizer, the roughest server quantizer, the largest buffer, all with the first one's seed. Everything
in between is interpolated by how strong its causes are:

client    ω: the relative error of the client quantizer on the task's updates
server    q/(1 − q): how many steps the hidden state lags behind, q being the server quantizer's relative error
buffer    K/K₀ − 1: the step per upload stays, so a mean over more updates has a larger η_g
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from qafel.config import Config
from qafel.config.start import start_of
from qafel.errors import ConfigError
from qafel.params import Vector
from qafel.quantizers import make_quantizer
from qafel.quantizers.measure import MeasuredError, measured
from qafel.rng import Stream
from qafel.runs.reading import Run
from qafel.search.planning.curves import LAG, NOISE, Cost, Curve, fitted_cost
from qafel.search.runner import RunSpec
from qafel.tasks.protocol import Task, train_from

BASE, AGAIN, CLIENT, SERVER, BUFFER = "pilot", "again", "client", "server", "buffer"
FEWEST, MOST = 25, 400
"""How many evaluations a pilot has."""
_SAMPLED = 8
"""Clients whose updates are quantized to see the error."""


class Pair(NamedTuple):
    """A client quantizer, a server quantizer, and a buffer size K."""

    client: str
    server: str
    buffer_size: int

    def __str__(self) -> str:
        return f"{self.client} up, {self.server} down, K = {self.buffer_size}"


@final
@dataclass(frozen=True)
class Candidates:
    """What may be chosen for a recipe: every pair of quantizers with every K."""

    clients: Sequence[str]
    servers: Sequence[str]
    buffers: Sequence[int]

    def pairs(self) -> list[Pair]:
        return [Pair(up, down, size) for up in self.clients for down in self.servers for size in self.buffers]


@final
@dataclass(frozen=True)
class Errors:
    """What each candidate does to the task's updates: measured error and bytes, by spec."""

    clients: Mapping[str, MeasuredError]
    servers: Mapping[str, MeasuredError]
    buffer_size: int
    """The recipe's own K."""
    snapshot_bytes: float
    """What a client downloads that cannot follow the broadcasts."""

    def strengths(self, pair: Pair) -> dict[str, float]:
        """How strong each cause of slowness is."""
        lag = min(self.servers[pair.server].nmse, 0.99)
        buffer = pair.buffer_size / self.buffer_size - 1
        return {CLIENT: self.clients[pair.client].nmse, SERVER: lag / (1 - lag), BUFFER: buffer}


@final
@dataclass(frozen=True)
class Pilot:
    """What the pilot's runs say: the course without quantizers, what each cause costs, and how far it all goes."""

    base: Curve
    """Of both runs without quantizers: what predictions start from."""
    first: Curve
    """Of the one with the seed of all others: what these are held against."""
    costs: Mapping[str, Cost]
    errors: Errors
    runs: Sequence[Run]
    time_per_upload: float
    """Of the run's clock."""


def with_pair(config: Config, pair: Pair, name: str, **stop: Any) -> Config:
    """A recipe with other quantizers and K, as QAFeL; the step of an upload stays as it is.

    `stop` replaces its section [stop], if there is any.
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
    return Config.from_dict(table | {"name": name} | ({"stop": stop} if stop else {}), name)


def require_plannable(config: Config) -> None:
    """Raise a ConfigError if quantizers of this recipe cannot be chosen by a pilot."""
    algorithm = config.algorithm
    if algorithm.method not in ("qafel", "fedbuff"):
        raise ConfigError(
            f"a plan chooses the quantizers of a shared hidden state: it needs a recipe of qafel or fedbuff, and "
            f"{config.name} is one of {algorithm.method}"
        )


def pilot_runs(config: Config, candidates: Candidates, uploads: int, seed: int) -> list[RunSpec]:
    """The runs of a pilot of so many uploads: each candidate list has its gentlest first and its roughest last."""
    size = config.algorithm.buffer_size
    pairs = {BASE: Pair("none", "none", size), AGAIN: Pair("none", "none", size)}
    if any(spec != "none" for spec in candidates.clients):
        pairs[CLIENT] = Pair(candidates.clients[-1], "none", size)
    if any(spec != "none" for spec in candidates.servers):
        pairs[SERVER] = Pair("none", candidates.servers[-1], size)
    if candidates.buffers[-1] != size:
        pairs[BUFFER] = Pair("none", "none", candidates.buffers[-1])
    return [short_run(config, name, pair, uploads, seed) for name, pair in pairs.items()]


def short_run(config: Config, name: str, pair: Pair, uploads: int, seed: int) -> RunSpec:
    """A run of so many uploads, evaluated often enough to tell its course."""
    shown, tag = "pilot", ""
    if name == AGAIN:
        seed += 1
    elif name != BASE:
        shown, tag = f"pilot-{name}", "-" + re.sub(r"[^\w.]", "-", "-".join(pair[:2]))
    # It goes on beyond the target: how fast it is there is what a prediction rests on.
    run = with_pair(config, pair, f"{config.name}-{shown}{tag}-k{pair.buffer_size}-u{uploads}", uploads=uploads)
    evaluation = run.evaluation.model_copy(update=_often_enough(config, uploads))
    return RunSpec(name, run.model_copy(update={"evaluation": evaluation, "seed": seed}))


def uploads_between_evaluations(config: Config) -> int:
    """What a recipe's section [evaluation] says, in uploads."""
    every = config.evaluation.every
    return every if config.evaluation.unit == "uploads" else every * config.algorithm.buffer_size


def _often_enough(config: Config, uploads: int) -> dict[str, Any]:
    every = uploads_between_evaluations(config)
    wanted = min(max(every, uploads // MOST), max(1, uploads // FEWEST))
    return {} if wanted == every else {"unit": "uploads", "every": wanted}


def require_converging(planned: Sequence[RunSpec], folder: Path) -> None:
    """Raise a ConfigError if a finished run of the pilot that goes without quantizers diverged."""
    for run in planned:
        if run.method in (BASE, AGAIN) and Run.load(folder / run.folder).diverged:
            raise ConfigError(
                f"nothing can be said: the pilot diverged without quantizers ({folder / run.folder}); lower the step "
                "sizes (`qafel tune` finds some)"
            )


def read_pilot(planned: Sequence[RunSpec], folder: Path, errors: Errors) -> Pilot:
    """What the finished runs of a pilot say; a ConfigError if the one without quantizers says nothing."""
    runs = {run.method: Run.load(folder / run.folder) for run in planned}
    first = Curve.of(runs[BASE])
    if len(first.knots[0]) < 3:
        raise ConfigError(
            f"nothing can be said: without quantizers the pilot made no progress in {first.end:,.0f} uploads; give it "
            "more `pilot_uploads`, or other step sizes (`qafel tune` finds some)"
        )
    costs = dict.fromkeys((CLIENT, SERVER, BUFFER), Cost())
    for run in planned:
        if run.method in costs:
            algorithm = run.config.algorithm
            pair = Pair(str(algorithm.client_quantizer), str(algorithm.server_quantizer), algorithm.buffer_size)
            power = NOISE if run.method == CLIENT else LAG
            costs[run.method] = cost_of(first, runs[run.method], errors.strengths(pair)[run.method], power)
    last = runs[BASE].column("virtual_time")[-1] / runs[BASE].column("uploads")[-1]
    return Pilot(first.beside(Curve.of(runs[AGAIN])), first, costs, errors, list(runs.values()), float(last))


def cost_of(base: Curve, run: Run, strength: float, power: int) -> Cost:
    """What a cause costs; where its run soon diverged, all progress; a quantizer without error costs nothing."""
    if not strength:
        return Cost()
    try:
        return fitted_cost(base, Curve.of(run), strength, power)
    except ConfigError:
        return Cost(1 / strength)


def measured_errors(config: Config, candidates: Candidates, models: Sequence[Path], seed: int) -> Errors:
    """What the candidates do to updates of sampled clients, from the initial model and from these finished ones."""
    task = config.task.make()
    local = config.algorithm.compose(task.layout).local
    starts = [config.initial_model(task), *(start_of(model, task.layout)[1]() for model in models)]
    sampled = Stream.named(seed, "plan-clients").generator().choice(task.clients, min(_SAMPLED, task.clients), False)
    updates = [
        [_update(task, int(client), start, local, Stream.named(seed, "plan-update", int(client), number))
         for client in sampled]
        for number, start in enumerate(starts)
    ]  # fmt: skip
    means: list[Vector] = [np.stack(of_start).mean(axis=0, dtype=np.float32) for of_start in updates]
    alone = [update for of_start in updates for update in of_start if np.any(update)]
    if not alone:
        raise ConfigError("nothing can be said: the sampled clients' updates are all zero")

    def of(specs: Sequence[str], vectors: Sequence[Vector]) -> dict[str, MeasuredError]:
        made = {spec: make_quantizer(spec, task.layout) for spec in ("none", *specs)}
        stream = Stream.named(seed, "plan-errors")
        return {spec: measured(quantizer, vectors, 2, stream) for spec, quantizer in made.items()}

    snapshot = str(config.algorithm.snapshot_quantizer or "none")
    return Errors(
        of(candidates.clients, alone),
        of(candidates.servers, means),
        config.algorithm.buffer_size,
        of([snapshot], starts[-1:])[snapshot].payload_bytes,
    )


def _update(task: Task, client: int, start: Vector, local: Any, stream: Stream) -> Vector:
    update: Vector = start - train_from(task, client, start, local, stream)
    return update
