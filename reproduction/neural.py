"""The paper's neural networks: uploads and bytes to the target accuracy by concurrency.

The claims are about three concurrencies, whole datasets and the published targets. If runs are missing or differ, a
claim is not comparable.
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
from reproduction.published import FAMILIES, PUBLISHED
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
"""All methods. Those with the published quantizer come first."""

PUBLISHED_PLACES = (100, 500, 1000)
CONCURRENCIES = (10, *PUBLISHED_PLACES)
"""The published ones, and that of the small Shakespeare."""

PUBLISHED_CLIENTS = {"cifar10": 5000, "celeba": 9343, "shakespeare": 1129}
PUBLISHED_TARGETS = {"cifar10": 0.6, "celeba": 0.9, "shakespeare": 0.54}
PUBLISHED_SEEDS = 3
PUBLISHED_LENGTH = 50_000
"""The uploads of a published run on Shakespeare."""

HELD_OUT = 0.89
"""The least share of clients: a tenth of the users may be held out for the test."""

SIMILAR = 1.25
"""The factor that counts as similar."""
MORE_AT_MOST = {"celeba": 1.5}
"""The claimed limit where the paper states an increase of uploads."""
FEWER = {"cifar10": 6.0, "celeba": 5.2, "shakespeare": 5.0}
"""The smallest published reduction of bytes. For Shakespeare the paper says "markedly" and shows a curve."""
MUCH = 7.0
"""The factor that counts as an order of magnitude."""

Way: TypeAlias = Literal["upload", "broadcast"]
Comparisons: TypeAlias = Mapping[float, tuple[EntryRuns, EntryRuns]]
"""A method and its reference at each concurrency."""


MORE_SEEDS = {("cifar10", FEDBUFF, 100): 2, ("cifar10", QAFEL, 100): 2}
"""Additional seeds by family, method and concurrency, for the most important runs."""


def plan(
    task: str,
    methods: Sequence[str],
    extent: Extent,
    concurrencies: Sequence[int] = CONCURRENCIES,
    limits: Mapping[str, Change] = MappingProxyType({}),
) -> list[RunSpec]:
    """The `methods` of the figure, or all, at every concurrency of the family.

    `limits` has a change per method that ends its runs earlier.
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
        raise ConfigError(f"Unknown family {family!r}. Choose one of {', '.join(FAMILIES)}.")
    if any(run.config.task.name != task for run in runs):
        raise ConfigError(f"The family {family} has another task than {task}.")
    return runs


def differences(measured: EntryRuns) -> list[str]:
    """The differences to the published runs: data, target and concurrency."""
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
    """Raise NotComparable unless data and target are the published ones."""
    if found := differences(measured):
        raise NotComparable("; ".join(found))


def by_place(measured: EntryRuns, method: str, reference: str, places: Iterable[float]) -> Comparisons:
    """Both methods at each concurrency; NotComparable if a run is missing."""
    names = (method, reference)
    absent = [f"{at:g}" for at in places if not all(measured.has(name, concurrency=at) for name in names)]
    if absent:
        raise NotComparable(f"{method} or {reference} was not run at concurrency {', '.join(absent)}")
    return {at: (measured.of(method, concurrency=at), measured.of(reference, concurrency=at)) for at in places}


def _compared(measured: EntryRuns, method: str = QAFEL, reference: str = FEDBUFF) -> Comparisons:
    """Both methods at the published concurrencies, with the published data and target."""
    require_published(measured)
    return by_place(measured, method, reference, PUBLISHED_PLACES)


def at_the_target(found: Comparisons, column: str) -> dict[float, Interval]:
    """The figure at the target, method over reference, at each concurrency."""
    return {at: target_ratio(column, ours, theirs) for at, (ours, theirs) in found.items()}


def listed(found: Mapping[float, Interval]) -> str:
    """Each ratio with its interval, concurrency and seeds, and the detectable factor."""
    each = (f"{one} (concurrency {at:g}, {counted(one.count, 'seed')})" for at, one in found.items())
    return f"{', '.join(each)}; {power(found.values())}"


def _estimates(found: Mapping[float, Interval]) -> str:
    return ", ".join(f"{one.estimate:.2f}" for one in found.values())


def fewer_bytes(found: Comparisons, task: str, way: Way = "upload") -> Verdict:
    """At least as many times fewer bytes as published."""
    fewer = {at: one.inverse for at, one in at_the_target(found, f"{way}_bytes_total").items()}
    holds = jointly((one, lambda it: it.at_least(FEWER[task])) for one in fewer.values())
    done = "uploaded" if way == "upload" else "broadcast"
    said = f"times fewer bytes {done}, {FEWER[task]:g} at least: {listed(fewer)}"
    return Verdict.of(holds, said, f"{_estimates(fewer)} times fewer bytes")


def similar_uploads(found: Comparisons, at_most: float | None = None) -> Verdict:
    """Uploads similar to the reference's or, if the claim states an increase, `at_most` times as many."""
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
    """Follows from the uploads: K updates per broadcast, and equal bits in both directions."""
    found = _compared(measured)
    up, down = (at_the_target(found, f"{way}_bytes_total") for way in ("upload", "broadcast"))
    alike = all(1 / SIMILAR <= down[at].estimate / up[at].estimate <= SIMILAR for at in found)
    fewer = ", ".join(f"{one.inverse.estimate:.2f}" for one in down.values())
    return Verdict.of(alike, f"times fewer bytes broadcast, as K and the message sizes imply: {fewer}")


def _direct_fails_somewhere(measured: EntryRuns) -> Verdict:
    """At 500 and 1000, direct FedBuff fails to learn with at least one of three seeds, and QAFeL with none."""
    require_published(measured)
    kept = {}
    for place in (500.0, 1000.0):
        fair = EntryRuns.on_common_seeds(*(measured.of(name, concurrency=place) for name in (DIRECT, QAFEL)))
        if len(fair.seeds) < PUBLISHED_SEEDS:
            return Verdict.none(f"the claim is about {PUBLISHED_SEEDS} seeds, these are {len(fair.seeds)}")
        good = fair.spread(settled, QAFEL).mean
        if not all(learned(run, good) and met_target(run) for run in fair.runs(QAFEL)):
            return Verdict.none(f"a seed of QAFeL missed the target at concurrency {place:g}")
        kept[place] = [learned(run, good) for run in fair.runs(DIRECT)]
    said = "; ".join(f"{sum(seeds)} of {len(seeds)} seeds learned at {place:g}" for place, seeds in kept.items())
    if any(all(seeds) for seeds in kept.values()):
        return Verdict.of(None, f"{said}; {unseen(min(map(len, kept.values())))}")
    return Verdict.of(True, said)


def ten_times_as_often(measured: EntryRuns) -> Verdict:
    """FedAsync makes ten times as many broadcasts per upload as FedBuff."""
    asynchronous, buffered = (
        measured.spread(lambda run: run.number("server_steps") / run.number("uploads"), method).mean
        for method in (FEDASYNC, FEDBUFF)
    )
    ratio = asynchronous / buffered
    return Verdict.of(9 <= ratio <= 11, f"{ratio:.3g} times the broadcasts per upload, as K = 1 and K = 10 imply")


def more_broadcast_bytes(of: Mapping[str, Comparisons]) -> Verdict:
    """Quantized FedAsync broadcasts more bytes to the target than FedBuff, and far more than QAFeL.

    Runs that do not learn are not comparable: their limits decide their traffic.
    """
    ours = [run for found in of.values() for runs, _ in found.values() for run in runs.runs()]
    if not all(learned(run, run.number("target")) for run in ours):
        raise NotComparable("a seed of quantized FedAsync did not learn")
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
    "Received by starts: the downloads of starting clients, either the broadcasts since their last start or x̂ whole, "
    "whichever is shorter. Received by all: every broadcast, by every client."
)
RECEIVED = tuple(
    TableColumn.mean(f"received by {who}", received(f"received{key}_bytes_total"), human_bytes)
    for who, key in (("starts", ""), ("all", "_by_all"))
)


def target_met(runs: EntryRuns) -> str:
    """The number of seeds that met the target, as a cell of a table."""
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
        TableColumn.spread("uploaded", sent_up, human_bytes),
        TableColumn.spread("broadcast", to_target("broadcast_bytes_total"), human_bytes),
        *RECEIVED,
        TableColumn("fewer bytes uploaded", fewer_bytes, lambda value: f"{value:.3g}×"),
        TableColumn("seeds at target", target_met),
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
    """The differences to the published runs, and explanations; `traffic`: the table has columns of traffic."""
    target = measured.pairs[0][0].config.evaluation.target
    return [
        f"The target is an accuracy of {target:g}. ∞: a seed did not meet it within the limits.",
        "A run ends at the target. Beyond it, a curve is the mean of the remaining seeds.",
        *([f"{RECEIVED_NOTE} Times fewer: the geometric mean over common seeds."] if traffic else []),
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
    """Direct FedBuff at concurrency 500. A shortened run is evaluated eight times."""
    cut = extent.uploads
    limits = {DIRECT: uploads_limit(cut, f"evaluation.every={max(1, cut // 8)}")} if cut else {}
    runs = plan("shakespeare", [DIRECT], replace(extent, all_methods=False, uploads=None), (500,), limits)
    return [RunSpec(f"seed {run.config.seed}", run.config, run.at) for run in runs]


def _seeds_table(measured: EntryRuns) -> Table:
    return Table.of(
        "seed",
        measured.by_method(),
        TableColumn.mean("final accuracy", settled, three_digits),
        TableColumn.mean("best accuracy", best_accuracy, three_digits),
        TableColumn.mean("uploads to target", to_target("uploads"), human_count),
        TableColumn("status", lambda runs: str(runs.runs()[0].summary["status"])),
    )


def _some_seed_fails(measured: EntryRuns) -> Verdict:
    """A seed ends far below the best. In shortened runs only divergence counts: a low end may be slowness."""
    most = max(planned.config.stop.uploads or 0 for planned, _ in measured.pairs)
    if most < PUBLISHED_LENGTH:
        gone, runs = sum(map(diverges, measured.runs())), len(measured.pairs)
        said = f"{gone} of {runs} diverged within {most:,} of {PUBLISHED_LENGTH:,} uploads"
        return Verdict.of(True, said) if runs >= PUBLISHED_SEEDS and 0 < gone < runs else Verdict.none(said)
    ends = {planned.method: settled(run) for planned, run in measured.pairs}
    if len(ends) < 2:
        return Verdict.none("one seed alone cannot differ")
    failed = [run for run in measured.runs() if not learned(run, max(ends.values()))]
    if len(failed) == len(ends):
        return Verdict.none("no seed learned")
    said = f"final accuracies: {', '.join(f'{end:.3f} ({method})' for method, end in ends.items())}"
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
