"""The paper's neural networks: uploads and bytes to the target accuracy against concurrency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from qafel.config import recipes
from qafel.errors import ConfigError
from qafel.experiments.entry import Claim, Entry, Verdict
from qafel.experiments.measured import Measured, diverged
from qafel.experiments.panels import Axis, Panel
from qafel.experiments.plan import QUICK, Planned, Scale, configuration
from qafel.experiments.tables import Cell, Heading, Table, bytes_heading, count_heading, ratio_heading
from qafel.experiments.targets import accuracy_panel, best_accuracy, reached, reduction, target_panels, to_target
from qafel.results.runs import Run

CONCURRENCIES = (10, 100, 500, 1000)
"""The published ones, and that of the small recipes; a family has what it has."""
FEDBUFF, QAFEL, DIRECT = "FedBuff", "QAFeL, 4 bits", "FedBuff, direct 4 bits"
FEDASYNC, FEDASYNC_DIRECT = "FedAsync", "FedAsync, direct 4 bits"
METHODS = {
    FEDBUFF: "fedbuff-{c}",
    QAFEL: "qafel-{c}",
    DIRECT: "fedbuff-direct-{c}",
    FEDASYNC: "fedasync-{c}",
    FEDASYNC_DIRECT: "fedasync-direct-{c}",
    "QAFeL, QSGD 4 bits": "qafel-{c}-qsgd",
    "FedBuff, direct QSGD 4 bits": "fedbuff-direct-{c}-qsgd",
    "FedAsync, direct QSGD 4 bits": "fedasync-direct-{c}-qsgd",
}
"""Every method that has recipes; those of the published runs' quantizer first."""
PUBLISHED_CLIENTS = {"cifar10": 5000, "celeba": 9343, "shakespeare": 1129}
PUBLISHED_TARGETS = {"cifar10": 0.6, "celeba": 0.9, "shakespeare": 0.54}
SIMILAR = 1.25


class _Task(NamedTuple):
    name: str
    title: str
    methods: tuple[str, ...]
    """Those of the paper's figure."""


def plan(task: _Task, scale: Scale, concurrencies: Sequence[int] = CONCURRENCIES) -> list[Planned]:
    """Every method at every concurrency, as far as the family of recipes has them."""
    known, family = recipes(), scale.family or task.name
    quick = (QUICK[task.name],) if scale.quick else ()
    methods = tuple(METHODS) if scale.all_methods else task.methods
    runs = [
        Planned(method, configuration(recipe, seed, *quick), {"concurrency": concurrency})
        for method in methods
        for concurrency in concurrencies
        if (recipe := f"{family}-{METHODS[method].format(c=f'c{concurrency}')}") in known
        for seed in scale.seeds
    ]
    if not runs:
        raise ConfigError(f"no recipe is called {family}-fedbuff-c…: `qafel recipes` lists what there is")
    if any(run.config.task.name != task.name for run in runs):
        raise ConfigError(f"the family {family} is of another task than {task.name}")
    return runs


def table(measured: Measured) -> Table:
    """One row per method and concurrency."""
    headings = (
        Heading("method"),
        Heading("concurrency", lambda value: f"{value:g}"),
        count_heading("uploads to target"),
        bytes_heading("sent up"),
        bytes_heading("broadcast"),
        ratio_heading("fewer bytes up"),
        Heading("seeds that met it", str),
        Heading("best accuracy", lambda value: f"{value:.3f}"),
    )
    rows = []
    for method in measured.methods:
        for place in measured.places("concurrency"):
            if measured.has(method, concurrency=place):
                runs = measured.runs(method, concurrency=place)
                rows.append((method, place, *_cells(measured, method, place, runs)))
    return Table(headings, tuple(rows))


def _cells(measured: Measured, method: str, place: float, runs: Sequence[Run]) -> tuple[Cell, ...]:
    return (
        measured.spread(to_target("uploads"), method, concurrency=place),
        measured.spread(to_target("upload_bytes_total"), method, concurrency=place),
        measured.spread(to_target("broadcast_bytes_total"), method, concurrency=place),
        reduction(measured, "upload_bytes_total", method, FEDBUFF, concurrency=place),
        f"{sum(map(reached, runs)):.0f} of {len(runs)}",
        measured.spread(best_accuracy, method, concurrency=place),
    )


def panels(measured: Measured) -> list[Panel]:
    places = measured.places("concurrency")
    across = Axis(
        "concurrency", ticks=tuple(places), limits=(0, 1.08 * max(places) if len(places) > 1 else 2 * places[0])
    )
    curves = [
        accuracy_panel(measured, f"accuracy-{'abcdef'[index]}", f"concurrency {place:g}", concurrency=place)
        for index, place in enumerate(places)
    ]
    return [*target_panels(measured, "concurrency", across), *curves]


def notes(measured: Measured) -> list[str]:
    """What differs from the published runs, and what an infinite figure means."""
    planned, run = measured.pairs[0]
    task, target = planned.config.task, planned.config.evaluation.target
    found = [f"The target is an accuracy of {target:g}; ∞: not met by every seed within the run's limits."]
    differing = {
        "clients": (run.number("clients"), PUBLISHED_CLIENTS[task.name]),
        "target": (target, PUBLISHED_TARGETS[task.name]),
        "most samples of a client": (getattr(task, "max_samples", None), None),
    }
    return found + [
        f"{name}: {ours:,g} here, {'no limit' if theirs is None else format(theirs, ',g')} in the published runs."
        for name, (ours, theirs) in differing.items()
        if ours is not None and ours != theirs
    ]


def _each(
    measured: Measured, column: str, method: str = QAFEL, reference: str = FEDBUFF
) -> dict[float, float] | Verdict:
    """The reduction at each concurrency, or why there is none to speak of."""
    found = {
        place: reduction(measured, column, method, reference, concurrency=place)
        for place in measured.places("concurrency")
        if measured.has(method, concurrency=place) and measured.has(reference, concurrency=place)
    }
    if not found:
        return Verdict.none(f"{method} or {reference} was not run")
    if unmet := [f"{place:g}" for place, value in found.items() if math.isnan(value)]:
        return Verdict.none(f"not every seed met the target at concurrency {', '.join(unmet)}")
    return found


def _listed(found: dict[float, float]) -> str:
    return ", ".join(f"{value:.2f} (concurrency {place:g})" for place, value in found.items())


def fewer_bytes(measured: Measured, least: float) -> Verdict:
    found = _each(measured, "upload_bytes_total")
    if isinstance(found, Verdict):
        return found
    return Verdict.of(min(found.values()) >= least, f"times fewer bytes uploaded: {_listed(found)}")


def similar_broadcast(measured: Measured) -> Verdict:
    up, down = _each(measured, "upload_bytes_total"), _each(measured, "broadcast_bytes_total")
    if isinstance(up, Verdict) or isinstance(down, Verdict):
        return up if isinstance(up, Verdict) else Verdict.none("nothing was broadcast")
    alike = all(1 / SIMILAR <= down[place] / up[place] <= SIMILAR for place in up)
    return Verdict.of(alike, f"times fewer bytes broadcast: {_listed(down)}")


def similar_uploads(measured: Measured, most: float) -> Verdict:
    """Uploads over FedBuff's: at most so many times, or with ranges over seeds that overlap."""
    found = _each(measured, "uploads")
    if isinstance(found, Verdict):
        return found
    more = {place: 1 / value for place, value in found.items()}
    holds = [value <= most or _overlap(measured, place) for place, value in more.items()]
    return Verdict.of(all(holds), f"uploads over FedBuff's: {_listed(more)}")


def _overlap(measured: Measured, place: float) -> bool:
    ours, theirs = (measured.spread(to_target("uploads"), method, concurrency=place) for method in (QAFEL, FEDBUFF))
    return ours.low <= theirs.high and theirs.low <= ours.high


def _direct_fails_somewhere(measured: Measured) -> Verdict:
    """At 500 and 1000, FedBuff with direct quantization fails with at least one seed, where QAFeL does not."""
    outcomes = {
        place: [bool(reached(run)) and not diverged(run) for run in measured.runs(DIRECT, concurrency=place)]
        for place in measured.places("concurrency")
        if place >= 500 and measured.has(DIRECT, concurrency=place)
    }
    if not outcomes:
        return Verdict.none("FedBuff with direct quantization was not run at concurrency 500 or 1000")
    if not all(reached(run) for place in outcomes for run in measured.runs(QAFEL, concurrency=place)):
        return Verdict.none("QAFeL did not meet the target with every seed, so that failing to says nothing")
    listed = "; ".join(f"{sum(met)} of {len(met)} seeds met the target at {place:g}" for place, met in outcomes.items())
    return Verdict.of(all(not all(met) for met in outcomes.values()), listed)


def _ten_times_as_often(measured: Measured) -> Verdict:
    """Broadcasts per upload: one of FedAsync's for a tenth of FedBuff's."""
    asynchronous, buffered = (
        [run.number("server_steps") / run.number("uploads") for run in measured.runs(method)]
        for method in (FEDASYNC, FEDBUFF)
    )
    ratio = (sum(asynchronous) / len(asynchronous)) / (sum(buffered) / len(buffered))
    return Verdict.of(9 <= ratio <= 11, f"{ratio:.3g} times the broadcasts per upload")


def _entry(task: _Task, paper: str, time: str, claims: tuple[Claim, ...]) -> Entry:
    return Entry(
        task.name, f"{task.title}: to the target accuracy, by concurrency", paper, time, partial(plan, task), table,
        panels, claims, notes,
    )  # fmt: skip


SHAKESPEARE_TASK = _Task("shakespeare", "Shakespeare", (FEDBUFF, QAFEL, FEDASYNC, DIRECT, FEDASYNC_DIRECT))
CIFAR10 = _entry(
    _Task("cifar10", "CIFAR-10", (FEDBUFF, QAFEL)),
    "Fig. 7",
    "hours",
    (
        Claim("Section IV-B", "The number of uploads remains similar", partial(similar_uploads, most=1.1)),
        Claim("Section IV-B", "6 to 7.7 times fewer bytes are uploaded", partial(fewer_bytes, least=6.0)),
        Claim("Section IV-B", "The reduction of broadcast bytes is similar", similar_broadcast),
    ),
)
CELEBA = _entry(
    _Task("celeba", "CelebA", (FEDBUFF, QAFEL)),
    "Fig. 8",
    "hours",
    (
        Claim("Section IV-B", "Uploads increase by about 1.5 times at most", partial(similar_uploads, most=1.5)),
        Claim("Section IV-B", "5.2 to 8 times fewer bytes are uploaded", partial(fewer_bytes, least=5.2)),
        Claim("Section IV-B", "The reduction of broadcast bytes is similar", similar_broadcast),
    ),
)
SHAKESPEARE = _entry(
    SHAKESPEARE_TASK,
    "Fig. 9",
    "days",
    (
        Claim(
            "Section IV-B", "The number of uploads remains approximately the same", partial(similar_uploads, most=1.5)
        ),
        Claim("Section IV-B", "Markedly fewer bytes are uploaded", partial(fewer_bytes, least=5.0)),
        Claim("Section IV-B", "The reduction of broadcast bytes is similar", similar_broadcast),
        Claim("Fig. 9", "Direct FedBuff diverges for some seed at concurrency 500 and 1000", _direct_fails_somewhere),
        Claim("Section IV-B", "FedAsync broadcasts ten times as often", _ten_times_as_often, quick_suffices=True),
    ),
)
