"""The paper's neural networks: uploads and bytes to the target accuracy against concurrency, and seed by seed.

The claims are about all three concurrencies, the whole datasets and their targets. Where runs are missing or differ in
that, a claim is not comparable, rather than passed by a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from types import MappingProxyType
from typing import Literal, TypeAlias

from qafel.drawing.chart import Axis, Panel
from qafel.errors import ConfigError
from qafel.search import RunSpec
from qafel.text import counted, human_bytes, human_count
from reproduction.comparison import (
    EntryRuns,
    NotComparable,
    best_accuracy,
    diverges,
    if_comparable,
    learned,
    met_target,
    received,
    settled,
    target_ratio,
    to_target,
)
from reproduction.display import Table, TableColumn, accuracy_panel, target_panels, three_digits
from reproduction.entry import Change, Claim, Entry, Extent, Verdict, repeated, uploads_limit
from reproduction.published import PUBLISHED
from reproduction.statistics import Interval, jointly, power, unseen

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

PUBLISHED_PLACES = (100, 500, 1000)
CONCURRENCIES = (10, *PUBLISHED_PLACES)
"""The published ones, and that of the small recipes; a family has what it has."""

PUBLISHED_CLIENTS = {"cifar10": 5000, "celeba": 9343, "shakespeare": 1129}
PUBLISHED_TARGETS = {"cifar10": 0.6, "celeba": 0.9, "shakespeare": 0.54}
PUBLISHED_SEEDS = 3
PUBLISHED_LENGTH = 50_000
"""Uploads of a run on Shakespeare."""

HELD_OUT = 0.89
"""Where users themselves are held out for the test, a tenth of them does not train."""

SIMILAR = 1.25
"""The margin of what counts as similar: a quarter more, or a fifth less."""
MORE_AT_MOST = {"celeba": 1.5}
"""Where the paper speaks of an increase of uploads and its size, and not of a similar number."""
FEWER = {"cifar10": 6.0, "celeba": 5.2, "shakespeare": 5.0}
"""The least of the published reductions of bytes; of Shakespeare the paper has a curve and the word "markedly"."""
MUCH = 7.0
"""From here on a figure counts as an order of magnitude more."""

Way: TypeAlias = Literal["upload", "broadcast"]
Comparisons: TypeAlias = Mapping[float, tuple[EntryRuns, EntryRuns]]
"""A method and its reference at each concurrency."""


MORE_SEEDS = {("cifar10", FEDBUFF, 100): 2, ("cifar10", QAFEL, 100): 2}
"""Seeds beyond those of the extent, where runs are cheap and most rests on them: by family, method and concurrency."""


def plan(
    task: str,
    methods: Sequence[str],
    extent: Extent,
    concurrencies: Sequence[int] = CONCURRENCIES,
    limits: Mapping[str, Change] = MappingProxyType({}),
) -> list[RunSpec]:
    """The figure's `methods`, or all, at every concurrency, as far as the family of recipes has them.

    Methods in `limits` end by that change, if they have not met their target before.
    """
    family = extent.family or task
    runs = [
        run
        for method in (METHODS if extent.all_methods else methods)
        for concurrency in concurrencies
        if (recipe := f"{family}-{METHODS[method].format(c=f'c{concurrency}')}") in PUBLISHED
        for run in repeated(
            extent.more_seeds(MORE_SEEDS.get((family, method, concurrency), 0)),
            task,
            method,
            recipe,
            *([limits[method]] if method in limits else ()),
            concurrency=concurrency,
        )
    ]
    if not runs:
        raise ConfigError(f"There is no family {family!r}.")
    if any(run.config.task.name != task for run in runs):
        raise ConfigError(f"the family {family} is of another task than {task}")
    return runs


def differences(measured: EntryRuns) -> list[str]:
    """In what the runs are not the published ones: the part of the data that was at hand, and the target."""
    planned, run = measured.pairs[0]
    task, target = planned.config.task, planned.config.evaluation.target
    clients, published = run.number("clients"), PUBLISHED_CLIENTS[task.name]
    found = {
        "clients": (published if HELD_OUT * published <= clients <= published else clients, published),
        "target": (target, PUBLISHED_TARGETS[task.name]),
        "most samples of a client": (getattr(task, "max_samples", None), None),
    }
    listed = [
        f"{name}: {ours:,g} here, {'no limit' if theirs is None else format(theirs, ',g')} in the published runs"
        for name, (ours, theirs) in found.items()
        if ours is not None and ours != theirs
    ]
    others = [f"{place:g}" for place in measured.places("concurrency") if place not in PUBLISHED_PLACES]
    return listed + ([f"concurrency: {', '.join(others)} here, 100 to 1000 in the published runs"] if others else [])


def require_published(measured: EntryRuns) -> None:
    """Raise NotComparable unless the runs are on the published data and to the published target."""
    if found := differences(measured):
        raise NotComparable("; ".join(found))


def by_place(measured: EntryRuns, method: str, reference: str, places: Iterable[float]) -> Comparisons:
    """Both methods at each concurrency; NotComparable if they were not run there."""
    names = (method, reference)
    absent = [f"{at:g}" for at in places if not all(measured.has(name, concurrency=at) for name in names)]
    if absent:
        raise NotComparable(f"{method} or {reference} was not run at concurrency {', '.join(absent)}")
    return {at: (measured.of(method, concurrency=at), measured.of(reference, concurrency=at)) for at in places}


def _compared(measured: EntryRuns, method: str = QAFEL, reference: str = FEDBUFF) -> Comparisons:
    """At each of the published concurrencies, on the published data and to the published target."""
    require_published(measured)
    return by_place(measured, method, reference, PUBLISHED_PLACES)


def at_the_target(found: Comparisons, column: str) -> dict[float, Interval]:
    """The method's figure at the target over the reference's, at each concurrency."""
    return {at: target_ratio(column, ours, theirs) for at, (ours, theirs) in found.items()}


def listed(found: Mapping[float, Interval]) -> str:
    """Each ratio with its interval, concurrency and seeds, and what difference could have been seen."""
    each = (f"{one} (concurrency {at:g}, {counted(one.count, 'seed')})" for at, one in found.items())
    return f"{', '.join(each)}; {power(found.values())}"


def _estimates(found: Mapping[float, Interval]) -> str:
    return ", ".join(f"{one.estimate:.2f}" for one in found.values())


def fewer_bytes(found: Comparisons, task: str, way: Way = "upload") -> Verdict:
    """At least the published number of times fewer; more than that is no failure."""
    fewer = {at: one.inverse for at, one in at_the_target(found, f"{way}_bytes_total").items()}
    holds = jointly((one, lambda it: it.at_least(FEWER[task])) for one in fewer.values())
    done = "uploaded" if way == "upload" else "broadcast"
    said = f"times fewer bytes {done}, {FEWER[task]:g} at least: {listed(fewer)}"
    return Verdict.of(holds, said, f"{_estimates(fewer)} times fewer bytes")


def similar_uploads(found: Comparisons, at_most: float | None = None) -> Verdict:
    """Uploads over the reference's are similar or, where the claim only speaks of an increase, `at_most` so many."""
    more = at_the_target(found, "uploads")
    holds = jointly((one, lambda it: it.at_most(at_most) if at_most else it.similar(SIMILAR)) for one in more.values())
    reference = next(iter(found.values()))[1].methods[0]
    bound = f"{at_most:g} times at most" if at_most else f"margin {SIMILAR:g}"
    apart = {at: one.excess("uploads") for at, one in more.items()}
    stated = "".join(f"; {text} (concurrency {at:g})" for at, text in apart.items() if text)
    said = f"uploads over those of {reference}, {bound}: {listed(more)}{stated}"
    return Verdict.of(holds, said, f"{_estimates(more)} times the uploads{stated}")


def _fewer(measured: EntryRuns, way: Way = "upload") -> Verdict:
    return fewer_bytes(_compared(measured), measured.task, way)


def _uploads_alike(measured: EntryRuns, method: str = QAFEL, reference: str = FEDBUFF) -> Verdict:
    return similar_uploads(_compared(measured, method, reference), MORE_AT_MOST.get(measured.task))


def _similar_broadcast(measured: EntryRuns) -> Verdict:
    """Both follow from the uploads: K updates to a broadcast, and as many bits either way."""
    found = _compared(measured)
    up, down = (at_the_target(found, f"{way}_bytes_total") for way in ("upload", "broadcast"))
    alike = all(1 / SIMILAR <= down[at].estimate / up[at].estimate <= SIMILAR for at in found)
    fewer = ", ".join(f"{one.inverse.estimate:.2f}" for one in down.values())
    return Verdict.of(alike, f"times fewer bytes broadcast, as K and the message sizes have it: {fewer}")


def _direct_fails_somewhere(measured: EntryRuns) -> Verdict:
    """At 500 and 1000, FedBuff with direct quantization fails to learn with at least one of three seeds, where QAFeL
    learns with all of them.
    """
    require_published(measured)
    kept = {}
    for place in (500.0, 1000.0):
        fair = EntryRuns.on_common_seeds(*(measured.of(name, concurrency=place) for name in (DIRECT, QAFEL)))
        if len(fair.seeds) < PUBLISHED_SEEDS:
            return Verdict.none(f"the claim is about {PUBLISHED_SEEDS} seeds, and there are {len(fair.seeds)}")
        good = fair.spread(settled, QAFEL).mean
        if not all(learned(run, good) and met_target(run) for run in fair.runs(QAFEL)):
            return Verdict.none(f"QAFeL did not meet the target with every seed at concurrency {place:g}")
        kept[place] = [learned(run, good) for run in fair.runs(DIRECT)]
    said = "; ".join(f"{sum(seeds)} of {len(seeds)} seeds learned at {place:g}" for place, seeds in kept.items())
    if any(all(seeds) for seeds in kept.values()):
        return Verdict.of(None, f"{said}; {unseen(min(map(len, kept.values())))}")
    return Verdict.of(True, said)


def ten_times_as_often(measured: EntryRuns) -> Verdict:
    """Broadcasts per upload: one of FedAsync's for a tenth of FedBuff's."""
    asynchronous, buffered = (
        measured.spread(lambda run: run.number("server_steps") / run.number("uploads"), method).mean
        for method in (FEDASYNC, FEDBUFF)
    )
    ratio = asynchronous / buffered
    return Verdict.of(9 <= ratio <= 11, f"{ratio:.3g} times the broadcasts per upload, as K = 1 and K = 10 have it")


def more_broadcast_bytes(of: Mapping[str, Comparisons]) -> Verdict:
    """Quantized FedAsync broadcasts more bytes to the target than FedBuff does unquantized, and than QAFeL by far.

    What a run broadcasts that learns nothing is what its limit allows it.
    """
    ours = [run for found in of.values() for runs, _ in found.values() for run in runs.runs()]
    if not all(learned(run, run.number("target")) for run in ours):
        raise NotComparable("quantized FedAsync did not learn with every seed")
    more = {reference: at_the_target(found, "broadcast_bytes_total") for reference, found in of.items()}
    least = {FEDBUFF: 1.0, QAFEL: MUCH}
    holds = jointly(
        (one, partial(Interval.at_least, bound=least[reference]))
        for reference, found in more.items()
        for one in found.values()
    )
    said = "; ".join(
        f"over those of {reference}, {least[reference]:g} at least: {listed(found)}"
        for reference, found in more.items()
    )
    return Verdict.of(holds, f"bytes broadcast {said}")


RECEIVED_NOTE = (
    "Received by starts: what starting clients download, the broadcasts since their last start or x̂ whole, whichever "
    "is shorter. By all: every broadcast, by every client."
)
RECEIVED = tuple(
    TableColumn.mean(f"received by {who}", received(f"received{key}_bytes_total"), human_bytes)
    for who, key in (("starts", ""), ("all", "_by_all"))
)


def target_met(runs: EntryRuns) -> str:
    """How many seeds met the target, as a cell of a table."""
    return f"{sum(map(met_target, runs.runs()))} of {len(runs.pairs)}"


def table(measured: EntryRuns) -> Table:
    """One row per method and concurrency."""

    def place(runs: EntryRuns) -> float:
        return runs.places("concurrency")[0]

    def fewer_bytes(runs: EntryRuns) -> float:
        def reduction() -> float:
            found = target_ratio("upload_bytes_total", runs, measured.of(FEDBUFF, concurrency=place(runs)))
            return found.inverse.estimate if all(map(met_target, runs.runs())) else nan

        return if_comparable(reduction, nan)

    sent_up = to_target("upload_bytes_total")
    return Table.of(
        "method",
        [group.of(concurrency=at) for group in measured.by_method() for at in group.places("concurrency")],
        TableColumn("concurrency", place, lambda value: f"{value:g}"),
        TableColumn.spread("uploads to target", to_target("uploads"), human_count),
        TableColumn.spread("sent up", sent_up, human_bytes),
        TableColumn.spread("broadcast", to_target("broadcast_bytes_total"), human_bytes),
        *RECEIVED,
        TableColumn("fewer bytes up", fewer_bytes, lambda value: f"{value:.3g}×"),
        TableColumn("seeds that met it", target_met),
        TableColumn.spread("best accuracy", best_accuracy, three_digits),
    )


def panels(measured: EntryRuns) -> list[Panel]:
    places = measured.places("concurrency")
    limits = (0, 1.08 * max(places) if len(places) > 1 else 2 * places[0])
    curves = [
        accuracy_panel(measured, f"accuracy-{'abcdef'[index]}", f"concurrency {place:g}", concurrency=place)
        for index, place in enumerate(places)
    ]
    return [*target_panels(measured, "concurrency", Axis("concurrency", ticks=tuple(places), limits=limits)), *curves]


def notes(measured: EntryRuns, traffic: bool = True) -> list[str]:
    """What differs from the published runs, and what figures mean, those of `traffic` if the table has them."""
    target = measured.pairs[0][0].config.evaluation.target
    return [
        f"The target is an accuracy of {target:g}; ∞: not met by every seed within the run's limits.",
        "A run ends where it meets the target; beyond that, a curve is the mean of the other seeds.",
        *([f"{RECEIVED_NOTE} Times fewer: a geometric mean over common seeds."] if traffic else []),
        *(f"{difference}." for difference in differences(measured)),
    ]


def _entry(task: str, title: str, paper: str, time: str, methods: Sequence[str], *claims: Claim) -> Entry:
    title = f"{title}: to the target accuracy, by concurrency"
    return Entry(task, title, paper, time, partial(plan, task, methods), table, panels, claims, notes)


_claim = partial(Claim, "Section IV-B")
SIMILAR_BROADCAST = _claim("The reduction of broadcast bytes is similar", _similar_broadcast, by_construction=True)
TEN_TIMES = _claim(
    "FedAsync broadcasts ten times as often", ten_times_as_often, quick_suffices=True, by_construction=True
)
CIFAR10 = _entry(
    "cifar10",
    "CIFAR-10",
    "Fig. 7",
    "hours",
    (FEDBUFF, QAFEL),
    _claim("The number of uploads remains similar", _uploads_alike, key=True),
    _claim("At least 6 times fewer bytes are uploaded (6 to 7.7)", _fewer, key=True),
    SIMILAR_BROADCAST,
)
CELEBA = _entry(
    "celeba",
    "CelebA",
    "Fig. 8",
    "hours",
    (FEDBUFF, QAFEL),
    _claim("Uploads increase by about 1.5 times at most", _uploads_alike),
    _claim("At least 5.2 times fewer bytes are uploaded (5.2 to 8)", _fewer),
    SIMILAR_BROADCAST,
)
SHAKESPEARE = _entry(
    "shakespeare",
    "Shakespeare",
    "Fig. 9",
    "days",
    (FEDBUFF, QAFEL, FEDASYNC, DIRECT, FEDASYNC_DIRECT),
    _claim("The number of uploads remains approximately the same", _uploads_alike),
    _claim("Markedly fewer bytes are uploaded", _fewer),
    _claim("Markedly fewer bytes are broadcast", partial(_fewer, way="broadcast")),
    Claim("Fig. 9", "Direct FedBuff diverges for some seed at concurrency 500 and 1000", _direct_fails_somewhere),
    TEN_TIMES,
    _claim(
        "Direct FedAsync is close to the unquantized one in uploads",
        partial(_uploads_alike, method=FEDASYNC_DIRECT, reference=FEDASYNC),
    ),
    _claim(
        "Quantized FedAsync broadcasts more bytes than FedBuff, and an order of magnitude more than QAFeL",
        lambda measured: more_broadcast_bytes(
            {reference: _compared(measured, FEDASYNC_DIRECT, reference) for reference in (FEDBUFF, QAFEL)}
        ),
    ),
)


def _seeds_plan(extent: Extent) -> list[RunSpec]:
    """A run that is cut short is evaluated eight times all the same."""
    cut = extent.uploads
    limits = {DIRECT: uploads_limit(cut, f"evaluation.every={max(1, cut // 8)}")} if cut else {}
    runs = plan("shakespeare", [DIRECT], replace(extent, all_methods=False, uploads=None), (500,), limits)
    return [RunSpec(f"seed {run.config.seed}", run.config, run.at) for run in runs]


def _seeds_table(measured: EntryRuns) -> Table:
    return Table.of(
        "seed",
        measured.by_method(),
        TableColumn.mean("accuracy in the end", settled, three_digits),
        TableColumn.mean("best accuracy", best_accuracy, three_digits),
        TableColumn.mean("uploads to target", to_target("uploads"), human_count),
        TableColumn("status", lambda runs: str(runs.runs()[0].summary["status"])),
    )


def _some_seed_fails(measured: EntryRuns) -> Verdict:
    """One ends far below the best. In runs that were cut short that may be slowness: there only divergence counts."""
    most = max(planned.config.stop.uploads or 0 for planned, _ in measured.pairs)
    if most < PUBLISHED_LENGTH:
        gone, runs = sum(map(diverges, measured.runs())), len(measured.pairs)
        said = f"{gone} of {runs} diverged within {most:,} of {PUBLISHED_LENGTH:,} uploads"
        return Verdict.of(True, said) if runs >= PUBLISHED_SEEDS and 0 < gone < runs else Verdict.none(said)
    ends = {planned.method: settled(run) for planned, run in measured.pairs}
    if len(ends) < 2:
        return Verdict.none("one seed cannot differ from others")
    failed = [run for run in measured.runs() if not learned(run, max(ends.values()))]
    if len(failed) == len(ends):
        return Verdict.none("no seed learned anything here")
    said = f"accuracies in the end: {', '.join(f'{end:.3f} ({method})' for method, end in ends.items())}"
    return Verdict.of(True, said) if failed else Verdict.of(None, f"{said}; {unseen(len(ends))}")


SEEDS = Entry(
    "seeds",
    "Shakespeare: direct 4-bit quantization at concurrency 500, seed by seed",
    "Fig. 10",
    "days",
    _seeds_plan,
    _seeds_table,
    lambda measured: (accuracy_panel(measured, "accuracy", "accuracy by uploads"),),
    (Claim("Fig. 10", "One of three runs diverges", _some_seed_fails, cut_suffices=True),),
    partial(notes, traffic=False),
)
