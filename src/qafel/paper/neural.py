"""The paper's neural networks: uploads and bytes to the target accuracy against concurrency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

from qafel.config import recipes
from qafel.drawing.chart import Axis, Panel
from qafel.errors import ConfigError
from qafel.paper.entry import QUICK, Claim, Entry, Scale, Verdict, configuration
from qafel.paper.measured import Measured, Spread, settled
from qafel.paper.tables import Cell, Heading, Table, bytes_heading, count_heading, ratio_heading
from qafel.paper.targets import accuracy_panel, best_accuracy, learned, reached, reduction, target_panels, to_target
from qafel.runs.reading import Run
from qafel.sweeps.run import Planned

# The methods of the paper's neural figures, by the names that tables and figures use.


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


# The claims about the paper's neural networks. They are about all three concurrencies, the whole datasets and their
# targets: where runs are missing or differ in that, a claim is not comparable rather than passed by a part.


PUBLISHED_CONCURRENCIES = (100.0, 500.0, 1000.0)


PUBLISHED_CLIENTS = {"cifar10": 5000, "celeba": 9343, "shakespeare": 1129}


HELD_OUT = 0.89
"""Where users themselves are held out for the test, a tenth of them does not train."""


PUBLISHED_TARGETS = {"cifar10": 0.6, "celeba": 0.9, "shakespeare": 0.54}


PUBLISHED_SEEDS = 3


SIMILAR = 1.25


def differences(measured: Measured) -> list[str]:
    """In what the runs are not the published ones: the part of the data that was at hand, and the target."""
    planned, run = measured.pairs[0]
    task, target = planned.config.task, planned.config.evaluation.target
    clients, published = run.number("clients"), PUBLISHED_CLIENTS[task.name]
    found = {
        "clients": (published if HELD_OUT * published <= clients <= published else clients, published),
        "target": (target, PUBLISHED_TARGETS[task.name]),
        "most samples of a client": (getattr(task, "max_samples", None), None),
    }
    return [
        f"{name}: {ours:,g} here, {'no limit' if theirs is None else format(theirs, ',g')} in the published runs"
        for name, (ours, theirs) in found.items()
        if ours is not None and ours != theirs
    ]


@final
@dataclass(frozen=True)
class _Comparison:
    """A method and its reference at one concurrency, with the seeds that both have."""

    place: float
    method: str
    reference: str
    fair: Measured

    def ratio(self, column: str) -> float:
        """The reference's figure at the target over the method's."""
        ours, theirs = (self._spread(column, name).mean for name in (self.method, self.reference))
        return theirs / ours

    def overlap(self, column: str) -> bool:
        """Whether the ranges over seeds overlap."""
        ours, theirs = (self._spread(column, name) for name in (self.method, self.reference))
        return ours.overlaps(theirs)

    def _spread(self, column: str, name: str) -> Spread:
        return self.fair.spread(to_target(column), name)

    def says(self, value: float) -> str:
        seeds = len(self.fair.seeds)
        return f"{value:.2f} (concurrency {self.place:g}, {seeds} seed{'s' if seeds > 1 else ''})"


def _compared(measured: Measured, method: str = QAFEL, reference: str = FEDBUFF) -> list[_Comparison] | Verdict:
    """Both methods at each of the published concurrencies, or why they cannot be compared."""
    if found := differences(measured):
        return Verdict.none("; ".join(found))
    absent = [
        f"{place:g}"
        for place in PUBLISHED_CONCURRENCIES
        if not (measured.has(method, concurrency=place) and measured.has(reference, concurrency=place))
    ]
    if absent:
        return Verdict.none(f"{method} or {reference} was not run at concurrency {', '.join(absent)}")
    groups = {
        place: [measured.planned(name, concurrency=place) for name in (method, reference)]
        for place in PUBLISHED_CONCURRENCIES
    }
    unmet = [
        f"{place:g}" for place, both in groups.items() if not all(reached(run) for group in both for _, run in group)
    ]
    if unmet:
        return Verdict.none(f"not every seed met the target at concurrency {', '.join(unmet)}")
    return [_Comparison(place, method, reference, measured.fair(*both)) for place, both in groups.items()]


def fewer_bytes(measured: Measured, least: float) -> Verdict:
    """At least so many times fewer; more than was published is no failure."""
    found = _compared(measured)
    if isinstance(found, Verdict):
        return found
    ratios = [one.ratio("upload_bytes_total") for one in found]
    return Verdict.of(min(ratios) >= least, f"times fewer bytes uploaded: {_listed(found, ratios)}")


def similar_broadcast(measured: Measured) -> Verdict:
    found = _compared(measured)
    if isinstance(found, Verdict):
        return found
    up, down = ([one.ratio(f"{way}_bytes_total") for one in found] for way in ("upload", "broadcast"))
    alike = all(1 / SIMILAR <= below / above <= SIMILAR for above, below in zip(up, down, strict=True))
    return Verdict.of(alike, f"times fewer bytes broadcast: {_listed(found, down)}")


def similar_uploads(
    measured: Measured, most: float, method: str = QAFEL, reference: str = FEDBUFF, fewer: bool = False
) -> Verdict:
    """Uploads over the reference's: between 1/most and most, or with ranges over seeds that overlap. Where the claim
    only speaks of an increase, any number that is `fewer` will do.
    """
    found = _compared(measured, method, reference)
    if isinstance(found, Verdict):
        return found
    more = [1 / one.ratio("uploads") for one in found]
    least = 0.0 if fewer else 1 / most
    holds = [least <= value <= most or one.overlap("uploads") for one, value in zip(found, more, strict=True)]
    return Verdict.of(all(holds), f"uploads over {reference}'s: {_listed(found, more)}")


def _listed(found: Iterable[_Comparison], values: Iterable[float]) -> str:
    return ", ".join(one.says(value) for one, value in zip(found, values, strict=True))


def direct_fails_somewhere(measured: Measured) -> Verdict:
    """At 500 and 1000, FedBuff with direct quantization fails to learn with at least one of three seeds, where QAFeL
    learns with all of them.
    """
    if found := differences(measured):
        return Verdict.none("; ".join(found))
    outcomes = {}
    for place in (500.0, 1000.0):
        fair = measured.fair(*(measured.planned(name, concurrency=place) for name in (DIRECT, QAFEL)))
        if len(fair.seeds) < PUBLISHED_SEEDS:
            return Verdict.none(f"the claim is about {PUBLISHED_SEEDS} seeds, and there are {len(fair.seeds)}")
        good = fair.spread(settled, QAFEL).mean
        if not all(learned(run, good) and reached(run) for run in fair.runs(QAFEL)):
            return Verdict.none(f"QAFeL did not meet the target with every seed at concurrency {place:g}")
        outcomes[place] = [learned(run, good) for run in fair.runs(DIRECT)]
    listed = "; ".join(f"{sum(kept)} of {len(kept)} seeds learned at {place:g}" for place, kept in outcomes.items())
    return Verdict.of(all(not all(kept) for kept in outcomes.values()), listed)


def ten_times_as_often(measured: Measured) -> Verdict:
    """Broadcasts per upload: one of FedAsync's for a tenth of FedBuff's."""
    asynchronous, buffered = (
        measured.spread(lambda run: run.number("server_steps") / run.number("uploads"), method).mean
        for method in (FEDASYNC, FEDBUFF)
    )
    ratio = asynchronous / buffered
    return Verdict.of(9 <= ratio <= 11, f"{ratio:.3g} times the broadcasts per upload")


def more_broadcast_bytes(measured: Measured) -> Verdict:
    """Quantized FedAsync broadcasts more bytes to the target than FedBuff does unquantized, and than QAFeL by far."""
    against = {}
    for reference, least in ((FEDBUFF, 1.0), (QAFEL, 7.0)):
        found = _compared(measured, FEDASYNC_DIRECT, reference)
        if isinstance(found, Verdict):
            return found
        against[reference] = least, [1 / one.ratio("broadcast_bytes_total") for one in found]
    listed = "; ".join(
        f"{min(ratios):.2f} to {max(ratios):.2f} times {reference}'s" for reference, (_, ratios) in against.items()
    )
    return Verdict.of(all(min(ratios) > least for least, ratios in against.values()), f"bytes broadcast: {listed}")


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
