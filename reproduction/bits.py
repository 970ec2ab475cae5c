"""Table III: uploads to the target for nine pairs of client and server bits, and for FedBuff."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

from qafel.drawing.chart import Axis, Panel
from qafel.errors import ConfigError
from qafel.search import RunSpec
from qafel.text import human_bytes, human_count
from reproduction.comparison import EntryRuns, NotComparable, Quantity, best_accuracy, target_ratio, to_target, traffic
from reproduction.display import Table, TableColumn, accuracy_panel, not_empty, points, three_digits
from reproduction.entry import (
    Change,
    Claim,
    Entry,
    Extent,
    Verdict,
    configuration,
    repeated,
    uploads_limit,
)
from reproduction.neural import FEDBUFF, PUBLISHED_SEEDS, RECEIVED, SIMILAR, notes, require_published, target_met
from reproduction.statistics import Interval, every, jointly, over_published, power

HEADER_BYTES = 64
"""A message without its payload (docs/wire-format.md)."""

Bits: TypeAlias = tuple[int, int]
"""The client's bits and the server's."""

BITS = (8, 4, 2)
ALL: tuple[Bits, ...] = tuple((client, server) for client in BITS for server in BITS)
UNQUANTIZED: Bits = (32, 32)

PUBLISHED_KB = {8: 29.924, 4: 15.380, 2: 8.108, 32: 117.128}
"""The payload of an upload and of a broadcast."""

PUBLISHED_UPLOADS: dict[Bits, tuple[float, float]] = {
    (8, 8): (27.6, 4.82), (8, 4): (29.8, 2.76), (8, 2): (35.7, 14.5),
    (4, 8): (39.7, 3.32), (4, 4): (27.8, 10.4), (4, 2): (37.7, 9.10),
    (2, 8): (58.6, 7.16), (2, 4): (74.6, 35.7), (2, 2): (91.9, 34.4), UNQUANTIZED: (26.1, 6.7),
}  # fmt: skip
"""Mean and standard deviation of three seeds on CelebA, in thousands."""

EIGHT = 8.0
"""The approximate saving of 4 bits in place of 32."""
TABLE_ALIKE = 2.0
"""The margin of the published uploads, whose standard deviations are up to half of the mean."""
BYTES_ALIKE = 1.5
"""The margin of similar upload bytes. In the published table, 2 over 4 client bits gives 0.78, 1.41 and 1.29."""

UPLOADS, UP, DOWN = (to_target(name) for name in ("uploads", "upload_bytes_total", "broadcast_bytes_total"))
TOTAL = to_target(traffic)

_PUBLISHED = Change("r100", ("timing.rate=100.0", "algorithm.staleness_exponent=0.0", "algorithm.server_lr=1000.0"))
"""The table's setting on CelebA: a constant arrival rate of 100, without staleness scaling."""

_SOME = {"celeba-part": ((8, 8), (4, 4), (2, 2))}
"""The pairs to run for a family, unless --all-methods asks for all nine."""

MOST_UPLOADS = {"cifar10": 120_000}
"""The latest end of a run: three times the uploads that FedBuff needs to the target."""


def latest_end(family: str, extent: Extent) -> list[Change]:
    """The latest end of a family's runs; empty if the configuration or --uploads ends them."""
    return [uploads_limit(MOST_UPLOADS[family])] if family in MOST_UPLOADS and not extent.uploads else []


def _plan(extent: Extent) -> list[RunSpec]:
    """On CelebA as published. CIFAR-10 has no published table: there only the bits differ.

    Other entries share the runs of FedBuff and of 4 bits in both directions on CIFAR-10.
    """
    family = extent.family or ("cifar10" if configuration("celeba-fedbuff-c100", 0).task.missing() else "celeba")
    task = configuration(f"{family}-fedbuff-c100", 0).task.name
    if task not in ("celeba", "cifar10"):
        raise ConfigError(f"The family {family} has the task {task}. Choose a family of celeba or cifar10.")
    base = [_PUBLISHED] if task == "celeba" else []
    end = latest_end(family, extent)
    planned = []
    for client, server in ALL if extent.all_methods else _SOME.get(family, ALL):
        changes = [*base, _bits(client, server), *end] if base or (client, server) != (4, 4) else []
        at = {"client": client, "server": server}
        planned += repeated(extent, task, f"QAFeL ({client}, {server})", f"{family}-qafel-c100", *changes, **at)
    return planned + repeated(extent, task, FEDBUFF, f"{family}-fedbuff-c100", *base, client=32, server=32)


def _bits(client: int, server: int) -> Change:
    quantizers = f"algorithm.client_quantizer=affine:{client}", f"algorithm.server_quantizer=affine:{server}"
    return Change(f"bits{client}{server}", quantizers)


def _at(measured: EntryRuns, bits: Bits) -> EntryRuns:
    return measured.of(client=bits[0], server=bits[1])


def _require_met(measured: EntryRuns, pairs: Iterable[Bits]) -> None:
    """Raise NotComparable unless all seeds met the target with these pairs of bits."""
    never = [bits for bits in pairs if not _met(measured, bits)]
    if never:
        raise NotComparable(f"not every seed met the target with bits {', '.join(map(str, never))}")


def _require_celeba(measured: EntryRuns) -> None:
    if measured.task != "celeba":
        raise NotComparable("the claim is about CelebA; CIFAR-10 has another model")


def _sizes(measured: EntryRuns) -> Verdict:
    """All four sizes in every run, in both directions."""
    _require_celeba(measured)
    found = {bits: _kilobytes(measured, bits) for bits in PUBLISHED_KB}
    listed = ", ".join(
        f"{' to '.join(dict.fromkeys(f'{size:.3f}' for size in (min(sizes), max(sizes))))} kB at {bits} bits"
        for bits, sizes in found.items()
    )
    holds = all(math.isclose(size, PUBLISHED_KB[bits]) for bits, sizes in found.items() for size in sizes)
    return Verdict.of(holds, f"payloads: {listed}")


def _kilobytes(measured: EntryRuns, bits: int) -> set[float]:
    """The payload sizes of all uploads and broadcasts with these bits."""
    up = [run.number("upload_bytes_mean") for run in measured.runs(client=bits)]
    down = [run.number("broadcast_bytes_mean") for run in measured.runs(server=bits)]
    return {(size - HEADER_BYTES) / 1000 for size in (*up, *down)}


def _as_in_the_table(measured: EntryRuns) -> Verdict:
    """The published uploads within a margin, by both spreads over seeds; only on the whole of CelebA."""
    _require_celeba(measured)
    require_published(measured)
    if len(measured.seeds) < PUBLISHED_SEEDS:
        raise NotComparable(f"the published means have {PUBLISHED_SEEDS} seeds")
    _require_met(measured, (*ALL, UNQUANTIZED))
    found = {
        bits: over_published([UPLOADS(run) / 1000 for run in _at(measured, bits).runs()], mean, std, PUBLISHED_SEEDS)
        for bits, (mean, std) in PUBLISHED_UPLOADS.items()
    }
    listed = ", ".join(f"{one} {bits}" for bits, one in found.items())
    said = f"uploads over the published ones, margin {TABLE_ALIKE:g}: {listed}; {power(found.values())}"
    return Verdict.of(jointly((one, lambda it: it.similar(TABLE_ALIKE)) for one in found.values()), said)


def _ratios(measured: EntryRuns, column: Quantity, *pairs: tuple[Bits, Bits]) -> list[Interval]:
    """A figure at the target with one pair of bits over the same with another."""
    return [target_ratio(column, _at(measured, ours), _at(measured, theirs)) for ours, theirs in pairs]


def _four_bits_suffice(measured: EntryRuns) -> Verdict:
    (found,) = _ratios(measured, "uploads", ((4, 4), UNQUANTIZED))
    stated = f"; {text}" if (text := found.excess("uploads")) else ""
    said = (
        f"{found} times FedBuff's uploads with 4 bits in both directions, margin {SIMILAR:g}; {power([found])}{stated}"
    )
    return Verdict.of(found.similar(SIMILAR), said, f"{found.estimate:.2f} times the uploads{stated}")


def _eight_fold(measured: EntryRuns) -> Verdict:
    """Uploads and broadcasts together, with 4 bits in both directions."""
    (found,) = (one.inverse for one in _ratios(measured, traffic, ((4, 4), UNQUANTIZED)))
    said = f"{found} times fewer bytes with 4 bits in both directions, claimed 8, margin {SIMILAR:g}; {power([found])}"
    return Verdict.of(found.within(EIGHT / SIMILAR, EIGHT * SIMILAR), said)


def _fewer_server_bits(measured: EntryRuns) -> Verdict:
    """Each reduction of server bits, for each number of client bits that met the target."""
    steps = {client: [((client, fewer), (client, more)) for more, fewer in pairwise(BITS)] for client in BITS}
    unmet = [client for client in BITS if not all(_met(measured, pair) for step in steps[client] for pair in step)]
    if len(unmet) == len(BITS):
        raise NotComparable("the target was not met with every seed")
    judged = [step for client in BITS if client not in unmet for step in steps[client]]
    found = _ratios(measured, "broadcast_bytes_total", *judged)
    each = ", ".join(f"{one} {ours} over {theirs}" for one, (ours, theirs) in zip(found, judged, strict=True))
    not_met = f"; some seed missed the target with {' and '.join(map(str, unmet))} client bits" if unmet else ""
    holds = every((None if unmet else True, jointly((one, lambda it: it.below(1.0)) for one in found)))
    return Verdict.of(holds, f"bytes broadcast: {each}; {power(found)}{not_met}")


def _met(measured: EntryRuns, bits: Bits) -> bool:
    """Whether all seeds met the target with these bits."""
    return math.isfinite(_at(measured, bits).spread(UPLOADS).mean)


def _two_client_bits_cost(measured: EntryRuns) -> Verdict:
    """For each number of server bits with runs of both."""
    found, said = _two_over_four(measured, "uploads")
    return Verdict.of(jointly((one, lambda it: it.above(1.0)) for one in found), f"uploads with {said}")


def _similar_upload_bytes(measured: EntryRuns) -> Verdict:
    found, said = _two_over_four(measured, "upload_bytes_total")
    holds = jointly((one, lambda it: it.similar(BYTES_ALIKE)) for one in found)
    return Verdict.of(holds, f"bytes uploaded with {said}, margin {BYTES_ALIKE:g}")


def _two_over_four(measured: EntryRuns, column: Quantity) -> tuple[list[Interval], str]:
    """A figure with 2 client bits over the same with 4, for each number of server bits with runs of both.

    NotComparable if the server's bits change as well in all runs.
    """
    servers = [bits for bits in BITS if all(measured.has(client=client, server=bits) for client in (4, 2))]
    if not servers:
        (found,) = _ratios(measured, column, ((2, 2), (4, 4)))
        raise NotComparable(
            f"the server's bits change as well in these runs: {found} with 2 over 4 bits in both directions"
        )
    all_of_them = _ratios(measured, column, *(((2, bits), (4, bits)) for bits in servers))
    each = ", ".join(f"{one} (server {bits} bits)" for one, bits in zip(all_of_them, servers, strict=True))
    return all_of_them, f"2 over 4 client bits: {each}; {power(all_of_them)}"


def _client_matters_more(measured: EntryRuns) -> Verdict:
    """Uploads with 2 client and 8 server bits over those with 8 and 2."""
    (found,) = _ratios(measured, "uploads", ((2, 8), (8, 2)))
    said = f"2 client bits and 8 server bits need {found} times the uploads of 8 and 2; {power([found])}"
    return Verdict.of(found.above(1.0), said, f"{found.estimate:.2f} times the uploads")


def _fewer_bytes_than_fedbuff(measured: EntryRuns) -> Verdict:
    """Uploads and broadcasts together, with every pair of bits."""
    pairs = [bits for bits in ALL if measured.has(client=bits[0], server=bits[1])]
    met = [bits for bits in pairs if _met(measured, bits)]
    if not met:
        raise NotComparable("no pair of bits met the target with every seed")

    def fewer(of: Iterable[Bits]) -> list[Interval]:
        return [one.inverse for one in _ratios(measured, traffic, *((bits, UNQUANTIZED) for bits in of))]

    found = sorted(fewer(met), key=lambda one: one.estimate)
    ends = " to ".join(map(str, (found[0], found[-1])))
    said = f"times fewer bytes uploaded and broadcast, {len(met)} pairs of bits: {ends}; {power(found)}"
    unmet = ", ".join(str(bits) for bits in pairs if bits not in met)
    said += f"; some seed missed the target with {unmet}" if unmet else ""
    return Verdict.of(jointly((one, lambda it: it.above(1.0)) for one in fewer(pairs)), said)


def _table(measured: EntryRuns) -> Table:
    return Table.of(
        "(client, server) bits",
        measured.by_method(),
        TableColumn.spread("uploads to target", UPLOADS, human_count),
        TableColumn("published, thousands", _published),
        TableColumn.mean("per upload", "upload_bytes_mean", human_bytes),
        TableColumn.mean("per broadcast", "broadcast_bytes_mean", human_bytes),
        TableColumn.spread("uploaded", UP, human_bytes),
        TableColumn.spread("broadcast", DOWN, human_bytes),
        *RECEIVED,
        TableColumn("seeds at target", target_met),
        TableColumn.spread("best accuracy", best_accuracy, three_digits),
    )


def _published(runs: EntryRuns) -> str:
    bits = int(runs.places("client")[0]), int(runs.places("server")[0])
    return "{} ± {}".format(*PUBLISHED_UPLOADS[bits]) if runs.task == "celeba" else "–"


def _panels(measured: EntryRuns) -> list[Panel]:
    """Accuracy by uploads; uploads and bytes to the target by server bits, with a line per client bits."""
    panels, across = [accuracy_panel(measured, "accuracy", "accuracy by uploads")], BITS[::-1]
    clients = [client for client in BITS if all(measured.has(client=client, server=bits) for bits in across)]
    x = Axis("server bits", ticks=across)
    for key, title, figure, y in (
        ("uploads", "uploads", UPLOADS, Axis("uploads to the target", unit="count")),
        ("total", "all bytes", TOTAL, Axis("all bytes to the target", unit="B")),
    ):
        spreads = {client: [_at(measured, (client, bits)).spread(figure) for bits in across] for client in clients}
        series = [points(f"client {client} bits", across, found) for client, found in spreads.items()]
        panels.append(Panel(key, title, x, y, tuple(series)))
    return not_empty(panels)


def _notes(measured: EntryRuns) -> list[str]:
    """The notes of all neural runs, and a remark if the task is not CelebA."""
    other = (
        "The published table is about CelebA, with an arrival rate of 100 and without staleness scaling. These runs "
        f"are about {measured.task} at concurrency 100. Their figures do not compare with it."
    )
    return notes(measured) + ([other] if measured.task != "celeba" else [])


ENTRY = Entry(
    "bits",
    "Bits of the clients' and the server's quantizer",
    "Table III",
    "hours",
    _plan,
    _table,
    _panels,
    (
        Claim(
            "Table III",
            "kB per message, both ways: 29.924, 15.380 and 8.108 at 8, 4 and 2 bits, 117.128 unquantized",
            _sizes,
            quick_suffices=True,
            by_construction=True,
        ),
        Claim("Table III", "Uploads to 90 %, for nine pairs of bits and FedBuff", _as_in_the_table),
        Claim(
            "Section IV-B",
            "4 bits both ways do not significantly alter the number of uploads",
            _four_bits_suffice,
            key=True,
        ),
        Claim("Section IV-B", "… and approximately provide an eight-fold reduction of communicated bits", _eight_fold),
        Claim("Section IV-B", "Fewer bits at the server always mean fewer bytes broadcast", _fewer_server_bits),
        Claim("Section IV-B", "From 4 to 2 bits at the client the number of uploads rises", _two_client_bits_cost),
        Claim("Section IV-B", "… resulting in similar total upload bytes", _similar_upload_bytes),
        Claim("Section V", "The client's quantization matters more than the server's", _client_matters_more, key=True),
        Claim(
            "Section IV-B",
            "QAFeL generally uses fewer bytes than FedBuff (here: every pair of bits that was run)",
            _fewer_bytes_than_fedbuff,
        ),
    ),
    _notes,
)
