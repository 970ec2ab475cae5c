"""The paper's neural networks: uploads and bytes to the target accuracy against concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from qafel.config import recipes
from qafel.errors import ConfigError
from qafel.experiments.entry import Claim, Entry
from qafel.experiments.measured import Measured
from qafel.experiments.neural_claims import (
    differences,
    direct_fails_somewhere,
    fewer_bytes,
    more_broadcast_bytes,
    similar_broadcast,
    similar_uploads,
    ten_times_as_often,
)
from qafel.experiments.neural_methods import DIRECT, FEDASYNC, FEDASYNC_DIRECT, FEDBUFF, METHODS, QAFEL
from qafel.experiments.panels import Axis, Panel
from qafel.experiments.plan import QUICK, Planned, Scale, configuration
from qafel.experiments.tables import Cell, Heading, Table, bytes_heading, count_heading, ratio_heading
from qafel.experiments.targets import accuracy_panel, best_accuracy, reached, reduction, target_panels, to_target
from qafel.results.runs import Run

CONCURRENCIES = (10, 100, 500, 1000)
"""The published ones, and that of the small recipes; a family has what it has."""


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
    target = measured.pairs[0][0].config.evaluation.target
    return [
        f"The target is an accuracy of {target:g}; ∞: not met by every seed within the run's limits.",
        "A run ends where it meets the target; beyond that, a curve is the mean of the other seeds.",
        *(f"{difference}." for difference in differences(measured)),
    ]


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
        Claim("Section IV-B", "At least 6 times fewer bytes are uploaded (6 to 7.7)", partial(fewer_bytes, least=6.0)),
        Claim("Section IV-B", "The reduction of broadcast bytes is similar", similar_broadcast),
    ),
)
CELEBA = _entry(
    _Task("celeba", "CelebA", (FEDBUFF, QAFEL)),
    "Fig. 8",
    "hours",
    (
        Claim(
            "Section IV-B",
            "Uploads increase by about 1.5 times at most",
            partial(similar_uploads, most=1.5, fewer=True),
        ),
        Claim(
            "Section IV-B", "At least 5.2 times fewer bytes are uploaded (5.2 to 8)", partial(fewer_bytes, least=5.2)
        ),
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
        Claim("Fig. 9", "Direct FedBuff diverges for some seed at concurrency 500 and 1000", direct_fails_somewhere),
        Claim("Section IV-B", "FedAsync broadcasts ten times as often", ten_times_as_often, quick_suffices=True),
        Claim(
            "Section IV-B",
            "Direct FedAsync is close to the unquantized one in uploads",
            partial(similar_uploads, most=1.5, method=FEDASYNC_DIRECT, reference=FEDASYNC),
        ),
        Claim(
            "Section IV-B",
            "Quantized FedAsync broadcasts more bytes than FedBuff, and an order of magnitude more than QAFeL",
            more_broadcast_bytes,
        ),
    ),
)
