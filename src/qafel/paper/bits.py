"""Table III: uploads to the target for nine pairs of client and server bits, and for FedBuff."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from qafel.drawing.chart import Axis, Panel, Series
from qafel.errors import ConfigError
from qafel.paper.entry import QUICK, Change, Claim, Entry, Scale, Verdict, celeba_is_there, configuration
from qafel.paper.measured import Measured, Spread
from qafel.paper.neural import FEDBUFF, SIMILAR, differences, notes
from qafel.paper.tables import Heading, Table, bytes_heading, count_heading
from qafel.paper.targets import accuracy_panel, best_accuracy, reached, to_target
from qafel.runs.reading import Run
from qafel.sweeps.run import Planned

# The claims about bits: Table III's figures, and what the text makes of them.
#
# Every comparison is between means over the same seeds.


Pair: TypeAlias = tuple[int, int]
"""The client's bits and the server's."""


BITS = (8, 4, 2)


ALL: tuple[Pair, ...] = tuple((client, server) for client in BITS for server in BITS)


UNQUANTIZED: Pair = (32, 32)


HEADER_BYTES = 64
"""Of every message; the published sizes are payloads."""


PUBLISHED_KB = {8: 29.924, 4: 15.380, 2: 8.108, 32: 117.128}
"""Of an upload and of a broadcast alike."""


PUBLISHED_UPLOADS: dict[Pair, tuple[float, float]] = {
    (8, 8): (27.6, 4.82), (8, 4): (29.8, 2.76), (8, 2): (35.7, 14.5),
    (4, 8): (39.7, 3.32), (4, 4): (27.8, 10.4), (4, 2): (37.7, 9.10),
    (2, 8): (58.6, 7.16), (2, 4): (74.6, 35.7), (2, 2): (91.9, 34.4), UNQUANTIZED: (26.1, 6.7),
}  # fmt: skip
"""In thousands, on CelebA: mean and standard deviation of three seeds."""


UPLOADS, UP, DOWN = (to_target(name) for name in ("uploads", "upload_bytes_total", "broadcast_bytes_total"))


def total(run: Run) -> float:
    """All bytes to the target, a broadcast counted once."""
    return UP(run) + DOWN(run)


def _means(measured: Measured, figure: Callable[[Run], float], pairs: Iterable[Pair]) -> dict[Pair, float]:
    """A figure of some pairs of bits, over the seeds that all of them have."""
    wanted = list(pairs)
    fair = measured.fair(*(measured.planned(client=client, server=server) for client, server in wanted))
    return {(client, server): fair.spread(figure, client=client, server=server).mean for client, server in wanted}


def _unmet(measured: Measured, pairs: Sequence[Pair]) -> Verdict | None:
    never = [
        (client, server)
        for client, server in pairs
        if not math.isfinite(measured.spread(UPLOADS, client=client, server=server).mean)
    ]
    listed = ", ".join(f"({client}, {server})" for client, server in never)
    return Verdict.none(f"not every seed met the target with bits {listed}") if never else None


def _on_celeba(measured: Measured) -> Verdict | None:
    if measured.pairs[0][0].config.task.name == "celeba":
        return None
    return Verdict.none("CelebA is not there, and CIFAR-10 is another task with a model of another size")


def _sizes(measured: Measured) -> Verdict:
    """All four sizes, in every run and both ways; Missing where a width was not run."""
    if elsewhere := _on_celeba(measured):
        return elsewhere
    found = {bits: _kilobytes(measured, bits) for bits in PUBLISHED_KB}
    listed = ", ".join(
        f"{' to '.join(dict.fromkeys(f'{size:.3f}' for size in (min(sizes), max(sizes))))} kB at {bits} bits"
        for bits, sizes in found.items()
    )
    holds = all(math.isclose(size, PUBLISHED_KB[bits]) for bits, sizes in found.items() for size in sizes)
    return Verdict.of(holds, f"payloads: {listed}")


def _kilobytes(measured: Measured, bits: int) -> set[float]:
    """The payloads of every run's uploads, or of its broadcasts, with so many bits."""
    up = [run.number("upload_bytes_mean") for run in measured.runs(client=bits)]
    down = [run.number("broadcast_bytes_mean") for run in measured.runs(server=bits)]
    return {(size - HEADER_BYTES) / 1000 for size in (*up, *down)}


def _as_in_the_table(measured: Measured) -> Verdict:
    """Within two standard deviations of the published means; on the whole of CelebA only."""
    if elsewhere := _on_celeba(measured):
        return elsewhere
    if found := differences(measured):
        return Verdict.none("; ".join(found))
    if unmet := _unmet(measured, (*ALL, UNQUANTIZED)):
        return unmet
    means = {(c, s): measured.spread(UPLOADS, client=c, server=s).mean / 1000 for c, s in (*ALL, UNQUANTIZED)}
    far = {pair for pair, (mean, std) in PUBLISHED_UPLOADS.items() if abs(means[pair] - mean) > 2 * std}
    listed = ", ".join(f"{mean:.1f} {pair}{' (apart)' if pair in far else ''}" for pair, mean in means.items())
    return Verdict.of(not far, f"thousands of uploads: {listed}")


def _four_bits_suffice(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, ((4, 4), UNQUANTIZED)):
        return unmet
    fair = measured.fair(measured.planned(client=4, server=4), measured.planned(client=32, server=32))
    ours, theirs = fair.spread(UPLOADS, client=4), fair.spread(UPLOADS, client=32)
    ratio = ours.mean / theirs.mean
    return Verdict.of(
        1 / SIMILAR <= ratio <= SIMILAR or ours.overlaps(theirs),
        f"{ratio:.2f} times FedBuff's uploads with 4 bits both ways",
    )


def _fewer_server_bits(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, ALL):
        return unmet
    sent = {client: list(_means(measured, DOWN, [(client, server) for server in BITS]).values()) for client in BITS}
    holds = all(rest < more for values in sent.values() for more, rest in pairwise(values))
    listed = "; ".join(
        f"client {client}: {', '.join(f'{value / 1e6:.1f}' for value in values)} MB" for client, values in sent.items()
    )
    return Verdict.of(holds, f"broadcast with 8, 4, 2 server bits: {listed}")


def _two_client_bits_cost(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, [pair for pair in ALL if pair[0] < 8]):
        return unmet
    more = {}
    for server in BITS:
        at = _means(measured, UPLOADS, [(2, server), (4, server)])
        more[server] = at[2, server] / at[4, server]
    listed = ", ".join(f"{ratio:.2f} (server {server} bits)" for server, ratio in more.items())
    return Verdict.of(min(more.values()) > 1, f"uploads with 2 over 4 client bits: {listed}")


def _client_matters_more(measured: Measured) -> Verdict:
    """From 8 to 2 bits: the mean factor on uploads of the client's bits against the server's."""
    corners = [pair for pair in ALL if 4 not in pair]
    if unmet := _unmet(measured, corners):
        return unmet
    at = _means(measured, UPLOADS, corners)
    client = (at[2, 8] / at[8, 8] + at[2, 2] / at[8, 2]) / 2
    server = (at[8, 2] / at[8, 8] + at[2, 2] / at[2, 8]) / 2
    return Verdict.of(
        client > server, f"2 instead of 8 bits: uploads × {client:.2f} at the client, × {server:.2f} at the server"
    )


def _fewer_bytes_than_fedbuff(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, (*ALL, UNQUANTIZED)):
        return unmet
    found = []
    for pair in ALL:
        at = _means(measured, total, (pair, UNQUANTIZED))
        found.append(at[UNQUANTIZED] / at[pair])
    return Verdict.of(min(found) > 1, f"times fewer bytes in all: {min(found):.2f} to {max(found):.2f}")


CLAIMS = (
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
)


_UNSCALED_LR = {"celeba": 1000.0, "cifar10": 40.9}


def _plan(scale: Scale) -> list[Planned]:
    """A constant arrival rate of 100 and no staleness scaling; on CIFAR-10 where CelebA is missing."""
    family = scale.family or ("celeba" if celeba_is_there() else "cifar10")
    task = configuration(f"{family}-fedbuff-c100", 0).task.name
    if task not in _UNSCALED_LR:
        raise ConfigError(f"the family {family} is of the task {task}; bits are varied on {' or '.join(_UNSCALED_LR)}")
    lr = _UNSCALED_LR[task]
    base = Change("r100", ("timing.rate=100.0", "algorithm.staleness_exponent=0.0", f"algorithm.server_lr={lr}"))
    quick = (QUICK[task],) if scale.quick else ()
    runs = []
    for client in BITS:
        for server in BITS:
            change = Change(
                f"bits{client}{server}",
                (f"algorithm.client_quantizer=affine:{client}", f"algorithm.server_quantizer=affine:{server}"),
            )
            runs += [
                Planned(
                    _label(client, server),
                    configuration(f"{family}-qafel-c100", seed, base, change, *quick),
                    {"client": client, "server": server},
                )
                for seed in scale.seeds
            ]
    unquantized = {"client": 32.0, "server": 32.0}
    return runs + [
        Planned(FEDBUFF, configuration(f"{family}-fedbuff-c100", seed, base, *quick), unquantized)
        for seed in scale.seeds
    ]


def _label(client: float, server: float) -> str:
    return f"QAFeL ({client:g}, {server:g})"


def _table(measured: Measured) -> Table:
    headings = (
        Heading("(client, server) bits"),
        count_heading("uploads to target"),
        Heading("published, thousands"),
        bytes_heading("per upload"),
        bytes_heading("per broadcast"),
        bytes_heading("sent up"),
        bytes_heading("broadcast"),
        Heading("seeds that met it"),
        Heading("best accuracy", lambda value: f"{value:.3f}"),
    )
    return Table(headings, tuple(_row(measured, method) for method in measured.methods))


def _row(measured: Measured, method: str) -> tuple[str | float | Spread, ...]:
    planned, _ = measured.planned(method)[0]
    runs = measured.runs(method)
    bits = int(planned.at["client"]), int(planned.at["server"])
    return (
        method,
        measured.spread(UPLOADS, method),
        "{} ± {}".format(*PUBLISHED_UPLOADS[bits]) if planned.config.task.name == "celeba" else "–",
        measured.spread(lambda run: run.number("upload_bytes_mean"), method).mean,
        measured.spread(lambda run: run.number("broadcast_bytes_mean"), method).mean,
        measured.spread(UP, method),
        measured.spread(DOWN, method),
        f"{sum(map(reached, runs)):.0f} of {len(runs)}",
        measured.spread(best_accuracy, method),
    )


def _panels(measured: Measured) -> list[Panel]:
    panels = [accuracy_panel(measured, "accuracy", "accuracy by uploads")]
    for key, title, figure, unit in (("uploads", "uploads", UPLOADS, "count"), ("total", "all bytes", total, "B")):
        series = []
        for client in BITS:
            if not all(measured.has(client=client, server=server) for server in BITS):
                continue
            spreads = [measured.spread(figure, client=client, server=server) for server in BITS[::-1]]
            if any(math.isfinite(spread.mean) for spread in spreads):
                series.append(_over_server_bits(f"client {client} bits", spreads))
        if series:
            y = Axis(f"{title} to the target", unit="count" if unit == "count" else "B")
            panels.append(Panel(key, title, Axis("server bits", ticks=BITS[::-1]), y, tuple(series)))
    return panels


def _over_server_bits(label: str, spreads: Sequence[Spread]) -> Series:
    mean, low, high = (np.array([getattr(one, name) for one in spreads]) for name in ("mean", "low", "high"))
    finite = np.isfinite(mean)
    bits = np.array(BITS[::-1], dtype=np.float64)
    return Series(label, bits[finite], mean[finite], low[finite], high[finite], kind="line-and-points")


def _notes(measured: Measured) -> list[str]:
    """As of all neural runs; and that it is another task where it is."""
    here = measured.pairs[0][0].config.task.name
    other = f"The published table is of CelebA; these runs are of {here}, so that its figures are not comparable."
    return notes(measured) + ([other] if here != "celeba" else [])


ENTRY = Entry(
    "bits",
    "Bits of the clients' and the server's quantizer",
    "Table III",
    "hours",
    _plan,
    _table,
    _panels,
    CLAIMS,
    _notes,
)
