"""Table III: uploads to the target for nine pairs of client and server bits, and for FedBuff.

Every comparison is between means over the same seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from qafel.algorithm.messages import HEADER_BYTES
from qafel.drawing.chart import Axis, Panel
from qafel.errors import ConfigError, NotComparable
from qafel.paper.display import Table, TableColumn, accuracy_panel, not_empty, points, three_digits
from qafel.paper.entry import Change, Claim, Entry, Extent, Verdict, celeba_is_there, configuration, repeated
from qafel.paper.measured import EntryRuns, best_accuracy, to_target
from qafel.paper.neural import FEDBUFF, SIMILAR, notes, require_published, target_met
from qafel.runs.reading import Run
from qafel.runs.seeds import Figure
from qafel.sweeps.making import Planned
from qafel.text import human_bytes, human_count

Bits: TypeAlias = tuple[int, int]
"""The client's bits and the server's."""

BITS = (8, 4, 2)
ALL: tuple[Bits, ...] = tuple((client, server) for client in BITS for server in BITS)
UNQUANTIZED: Bits = (32, 32)

PUBLISHED_KB = {8: 29.924, 4: 15.380, 2: 8.108, 32: 117.128}
"""Payloads, of an upload and of a broadcast alike."""

PUBLISHED_UPLOADS: dict[Bits, tuple[float, float]] = {
    (8, 8): (27.6, 4.82), (8, 4): (29.8, 2.76), (8, 2): (35.7, 14.5),
    (4, 8): (39.7, 3.32), (4, 4): (27.8, 10.4), (4, 2): (37.7, 9.10),
    (2, 8): (58.6, 7.16), (2, 4): (74.6, 35.7), (2, 2): (91.9, 34.4), UNQUANTIZED: (26.1, 6.7),
}  # fmt: skip
"""In thousands, on CelebA: mean and standard deviation of three seeds."""

UPLOADS, UP, DOWN = (to_target(name) for name in ("uploads", "upload_bytes_total", "broadcast_bytes_total"))

_UNSCALED_LR = {"celeba": 1000.0, "cifar10": 40.9}
"""Without staleness scaling, by task."""

_SOME = {"celeba-part": ((8, 8), (4, 4), (2, 2))}
"""The pairs of a family of which not all are run, unless every one is asked for."""

MOST_UPLOADS = {"cifar10": 120_000}
"""Where a run ends that has not met the target, if not where its recipe ends it: after three times as many uploads as
FedBuff needs.
"""


def total(run: Run) -> float:
    """All bytes to the target, a broadcast counted once."""
    return UP(run) + DOWN(run)


def _plan(extent: Extent) -> list[Planned]:
    """A constant arrival rate of 100 and no staleness scaling; on CIFAR-10 where CelebA is missing."""
    family = extent.family or ("celeba" if celeba_is_there() else "cifar10")
    task = configuration(f"{family}-fedbuff-c100", 0).task.name
    if task not in _UNSCALED_LR:
        raise ConfigError(f"the family {family} is of the task {task}; bits are varied on {' or '.join(_UNSCALED_LR)}")
    lr = _UNSCALED_LR[task]
    end = [f"stop.uploads={MOST_UPLOADS[family]}"] if family in MOST_UPLOADS else []
    base = Change("r100", ("timing.rate=100.0", "algorithm.staleness_exponent=0.0", f"algorithm.server_lr={lr}", *end))
    planned = []
    for client, server in ALL if extent.all_methods else _SOME.get(family, ALL):
        quantizers = f"algorithm.client_quantizer=affine:{client}", f"algorithm.server_quantizer=affine:{server}"
        change, at = Change(f"bits{client}{server}", quantizers), {"client": client, "server": server}
        planned += repeated(extent, task, f"QAFeL ({client}, {server})", f"{family}-qafel-c100", base, change, **at)
    return planned + repeated(extent, task, FEDBUFF, f"{family}-fedbuff-c100", base, client=32, server=32)


def _at(measured: EntryRuns, bits: Bits) -> EntryRuns:
    return measured.of(client=bits[0], server=bits[1])


def _means(measured: EntryRuns, figure: Figure, pairs: Sequence[Bits]) -> dict[Bits, float]:
    """A figure of some pairs of bits, over the seeds that all of them have."""
    fair = EntryRuns.on_common_seeds(*(_at(measured, bits) for bits in pairs))
    return {bits: _at(fair, bits).spread(figure).mean for bits in pairs}


def _require_met(measured: EntryRuns, pairs: Iterable[Bits]) -> None:
    """Raise NotComparable unless every seed met the target with these pairs of bits."""
    never = [bits for bits in pairs if not math.isfinite(_at(measured, bits).spread(UPLOADS).mean)]
    if never:
        raise NotComparable(f"not every seed met the target with bits {', '.join(map(str, never))}")


def _require_celeba(measured: EntryRuns) -> None:
    if measured.task != "celeba":
        raise NotComparable("CelebA is not there, and CIFAR-10 is another task with a model of another size")


def _sizes(measured: EntryRuns) -> Verdict:
    """All four sizes, in every run and both ways; not comparable where a width was not run."""
    _require_celeba(measured)
    found = {bits: _kilobytes(measured, bits) for bits in PUBLISHED_KB}
    listed = ", ".join(
        f"{' to '.join(dict.fromkeys(f'{size:.3f}' for size in (min(sizes), max(sizes))))} kB at {bits} bits"
        for bits, sizes in found.items()
    )
    holds = all(math.isclose(size, PUBLISHED_KB[bits]) for bits, sizes in found.items() for size in sizes)
    return Verdict.of(holds, f"payloads: {listed}")


def _kilobytes(measured: EntryRuns, bits: int) -> set[float]:
    """The payloads of every run's uploads, or of its broadcasts, with so many bits."""
    up = [run.number("upload_bytes_mean") for run in measured.runs(client=bits)]
    down = [run.number("broadcast_bytes_mean") for run in measured.runs(server=bits)]
    return {(size - HEADER_BYTES) / 1000 for size in (*up, *down)}


def _as_in_the_table(measured: EntryRuns) -> Verdict:
    """Within two standard deviations of the published means; on the whole of CelebA only."""
    _require_celeba(measured)
    require_published(measured)
    _require_met(measured, (*ALL, UNQUANTIZED))
    means = {bits: _at(measured, bits).spread(UPLOADS).mean / 1000 for bits in (*ALL, UNQUANTIZED)}
    far = {bits for bits, (mean, std) in PUBLISHED_UPLOADS.items() if abs(means[bits] - mean) > 2 * std}
    listed = ", ".join(f"{mean:.1f} {bits}{' (apart)' if bits in far else ''}" for bits, mean in means.items())
    return Verdict.of(not far, f"thousands of uploads: {listed}")


def _four_bits_suffice(measured: EntryRuns) -> Verdict:
    _require_met(measured, ((4, 4), UNQUANTIZED))
    fair = EntryRuns.on_common_seeds(_at(measured, (4, 4)), _at(measured, UNQUANTIZED))
    ours, theirs = fair.spread(UPLOADS, client=4), fair.spread(UPLOADS, client=32)
    ratio = ours.mean / theirs.mean
    similar = 1 / SIMILAR <= ratio <= SIMILAR or ours.overlaps(theirs)
    return Verdict.of(similar, f"{ratio:.2f} times FedBuff's uploads with 4 bits both ways")


def _fewer_server_bits(measured: EntryRuns) -> Verdict:
    _require_met(measured, ALL)
    sent = {client: list(_means(measured, DOWN, [(client, server) for server in BITS]).values()) for client in BITS}
    holds = all(rest < more for values in sent.values() for more, rest in pairwise(values))
    listed = "; ".join(
        f"client {client}: {', '.join(f'{value / 1e6:.1f}' for value in values)} MB" for client, values in sent.items()
    )
    return Verdict.of(holds, f"broadcast with 8, 4, 2 server bits: {listed}")


def _two_client_bits_cost(measured: EntryRuns) -> Verdict:
    _require_met(measured, [bits for bits in ALL if bits[0] < 8])
    more = {bits: _at(measured, (4, bits)).reduction(UPLOADS, _at(measured, (2, bits))) for bits in BITS}
    listed = ", ".join(f"{ratio:.2f} (server {server} bits)" for server, ratio in more.items())
    return Verdict.of(min(more.values()) > 1, f"uploads with 2 over 4 client bits: {listed}")


def _client_matters_more(measured: EntryRuns) -> Verdict:
    """From 8 to 2 bits: the mean factor on uploads of the client's bits against the server's."""
    corners = [bits for bits in ALL if 4 not in bits]
    _require_met(measured, corners)
    at = _means(measured, UPLOADS, corners)
    client = (at[2, 8] / at[8, 8] + at[2, 2] / at[8, 2]) / 2
    server = (at[8, 2] / at[8, 8] + at[2, 2] / at[2, 8]) / 2
    said = f"uploads × {client:.2f} at the client, × {server:.2f} at the server"
    return Verdict.of(client > server, f"2 instead of 8 bits: {said}")


def _fewer_bytes_than_fedbuff(measured: EntryRuns) -> Verdict:
    _require_met(measured, (*ALL, UNQUANTIZED))
    found = [_at(measured, bits).reduction(total, _at(measured, UNQUANTIZED)) for bits in ALL]
    return Verdict.of(min(found) > 1, f"times fewer bytes in all: {min(found):.2f} to {max(found):.2f}")


def _table(measured: EntryRuns) -> Table:
    return Table.of(
        "(client, server) bits",
        measured.by_method(),
        TableColumn.spread("uploads to target", UPLOADS, human_count),
        TableColumn("published, thousands", _published),
        TableColumn.mean("per upload", "upload_bytes_mean", human_bytes),
        TableColumn.mean("per broadcast", "broadcast_bytes_mean", human_bytes),
        TableColumn.spread("sent up", UP, human_bytes),
        TableColumn.spread("broadcast", DOWN, human_bytes),
        TableColumn("seeds that met it", target_met),
        TableColumn.spread("best accuracy", best_accuracy, three_digits),
    )


def _published(runs: EntryRuns) -> str:
    bits = int(runs.places("client")[0]), int(runs.places("server")[0])
    return "{} ± {}".format(*PUBLISHED_UPLOADS[bits]) if runs.task == "celeba" else "–"


def _panels(measured: EntryRuns) -> list[Panel]:
    """Accuracy by uploads, and what the target takes against the server's bits, a line for each of the client's."""
    panels, across = [accuracy_panel(measured, "accuracy", "accuracy by uploads")], BITS[::-1]
    clients = [client for client in BITS if all(measured.has(client=client, server=bits) for bits in across)]
    x = Axis("server bits", ticks=across)
    for key, title, figure, y in (
        ("uploads", "uploads", UPLOADS, Axis("uploads to the target", unit="count")),
        ("total", "all bytes", total, Axis("all bytes to the target", unit="B")),
    ):
        spreads = {client: [_at(measured, (client, bits)).spread(figure) for bits in across] for client in clients}
        series = [points(f"client {client} bits", across, found) for client, found in spreads.items()]
        panels.append(Panel(key, title, x, y, tuple(series)))
    return not_empty(panels)


def _notes(measured: EntryRuns) -> list[str]:
    """Those of all neural runs, and that the task is another one if it is."""
    other = (
        f"The published table is of CelebA; these runs are of {measured.task}, so that its figures are not comparable."
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
        ),
        Claim("Table III", "Uploads to 90 %, for nine pairs of bits and FedBuff", _as_in_the_table),
        Claim("Section IV-B", "4 bits both ways do not significantly alter the number of uploads", _four_bits_suffice),
        Claim("Section IV-B", "Fewer bits at the server always mean fewer bytes broadcast", _fewer_server_bits),
        Claim("Section IV-B", "From 4 to 2 bits at the client the number of uploads rises", _two_client_bits_cost),
        Claim("Section V", "The client's quantization matters more than the server's", _client_matters_more),
        Claim("Section IV-B", "QAFeL generally uses fewer bytes than FedBuff", _fewer_bytes_than_fedbuff),
    ),
    _notes,
)
