"""Table III: uploads to the target for nine pairs of client and server bits, and for FedBuff."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from qafel.experiments.entry import Claim, Entry, Verdict
from qafel.experiments.measured import Measured, Spread
from qafel.experiments.neural import FEDBUFF, notes
from qafel.experiments.panels import Axis, Panel, Series
from qafel.experiments.plan import QUICK, Change, Planned, Scale, configuration
from qafel.experiments.requirements import celeba_is_there
from qafel.experiments.tables import Heading, Table, bytes_heading, count_heading
from qafel.experiments.targets import accuracy_panel, best_accuracy, reached, to_target
from qafel.results.runs import Run

BITS = (8, 4, 2)
HEADER_BYTES = 64
"""Of every message; the published sizes are payloads."""
PUBLISHED_KB = {8: 29.924, 4: 15.380, 2: 8.108, 32: 117.128}
PUBLISHED_UPLOADS = {
    (8, 8): "27.6 ± 4.82", (8, 4): "29.8 ± 2.76", (8, 2): "35.7 ± 14.5",
    (4, 8): "39.7 ± 3.32", (4, 4): "27.8 ± 10.4", (4, 2): "37.7 ± 9.10",
    (2, 8): "58.6 ± 7.16", (2, 4): "74.6 ± 35.7", (2, 2): "91.9 ± 34.4", (32, 32): "26.1 ± 6.7",
}  # fmt: skip
"""In thousands, on CelebA."""
_UNSCALED_LR = {"celeba": 1000.0, "cifar10": 40.9}
_UPLOADS, _UP, _DOWN = (to_target(name) for name in ("uploads", "upload_bytes_total", "broadcast_bytes_total"))


def _plan(scale: Scale) -> list[Planned]:
    """A constant arrival rate of 100 and no staleness scaling; on CIFAR-10 where CelebA is missing."""
    task = "celeba" if celeba_is_there() else "cifar10"
    family = scale.family or task
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
        measured.spread(_UPLOADS, method),
        PUBLISHED_UPLOADS[bits] if planned.config.task.name == "celeba" else "–",
        measured.spread(lambda run: run.number("upload_bytes_mean"), method).mean,
        measured.spread(lambda run: run.number("broadcast_bytes_mean"), method).mean,
        measured.spread(_UP, method),
        measured.spread(_DOWN, method),
        f"{sum(map(reached, runs)):.0f} of {len(runs)}",
        measured.spread(best_accuracy, method),
    )


def _panels(measured: Measured) -> list[Panel]:
    panels = [accuracy_panel(measured, "accuracy", "accuracy by uploads")]
    for key, title, figure, unit in (("uploads", "uploads", _UPLOADS, "count"), ("total", "all bytes", _total, "B")):
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


def _total(run: Run) -> float:
    return _UP(run) + _DOWN(run)


def _mean(measured: Measured, figure: Callable[[Run], float], client: float, server: float) -> float:
    return measured.spread(figure, client=client, server=server).mean


def _kilobytes(run: Run) -> float:
    return (run.number("upload_bytes_mean") - HEADER_BYTES) / 1000


def _sizes(measured: Measured) -> Verdict:
    """All four sizes, in every run; Missing where a width was not run."""
    if measured.pairs[0][0].config.task.name != "celeba":
        return Verdict.none("CelebA is not there, and CIFAR-10's model has another size")
    spreads = {bits: measured.spread(_kilobytes, client=bits) for bits in PUBLISHED_KB}
    found = {bits: (spread.low, spread.high) for bits, spread in spreads.items()}
    listed = ", ".join(
        f"{' to '.join(dict.fromkeys(f'{size:.3f}' for size in ends))} kB at {bits} bits"
        for bits, ends in found.items()
    )
    holds = all(math.isclose(size, PUBLISHED_KB[bits]) for bits, ends in found.items() for size in ends)
    return Verdict.of(holds, f"payloads: {listed}")


def _unmet(measured: Measured, pairs: Sequence[tuple[float, float]]) -> Verdict | None:
    never = [pair for pair in pairs if not math.isfinite(_mean(measured, _UPLOADS, *pair))]
    listed = ", ".join(f"({client:g}, {server:g})" for client, server in never)
    return Verdict.none(f"not every seed met the target with bits {listed}") if never else None


_ALL = tuple((client, server) for client in BITS for server in BITS)


def _four_bits_suffice(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, ((4, 4), (32, 32))):
        return unmet
    ours, theirs = measured.spread(_UPLOADS, client=4, server=4), measured.spread(_UPLOADS, FEDBUFF)
    overlap = ours.low <= theirs.high and theirs.low <= ours.high
    ratio = ours.mean / theirs.mean
    return Verdict.of(ratio <= 1.25 or overlap, f"{ratio:.2f} times FedBuff's uploads with 4 bits both ways")


def _fewer_server_bits(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, _ALL):
        return unmet
    sent = {client: [_mean(measured, _DOWN, client, server) for server in BITS] for client in BITS}
    holds = all(rest < more for values in sent.values() for more, rest in pairwise(values))
    listed = "; ".join(
        f"client {client}: {', '.join(f'{value / 1e6:.1f}' for value in values)} MB" for client, values in sent.items()
    )
    return Verdict.of(holds, f"broadcast with 8, 4, 2 server bits: {listed}")


def _two_client_bits_cost(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, [pair for pair in _ALL if pair[0] < 8]):
        return unmet
    more = {server: _mean(measured, _UPLOADS, 2, server) / _mean(measured, _UPLOADS, 4, server) for server in BITS}
    listed = ", ".join(f"{ratio:.2f} (server {server} bits)" for server, ratio in more.items())
    return Verdict.of(min(more.values()) > 1, f"uploads with 2 over 4 client bits: {listed}")


def _client_matters_more(measured: Measured) -> Verdict:
    """From 8 to 2 bits: the mean factor on uploads of the client's bits against the server's."""
    if unmet := _unmet(measured, [pair for pair in _ALL if 4 not in pair]):
        return unmet
    at = {pair: _mean(measured, _UPLOADS, *pair) for pair in _ALL if 4 not in pair}
    client = (at[2, 8] / at[8, 8] + at[2, 2] / at[8, 2]) / 2
    server = (at[8, 2] / at[8, 8] + at[2, 2] / at[2, 8]) / 2
    return Verdict.of(
        client > server, f"2 instead of 8 bits: uploads × {client:.2f} at the client, × {server:.2f} at the server"
    )


def _fewer_bytes_than_fedbuff(measured: Measured) -> Verdict:
    if unmet := _unmet(measured, (*_ALL, (32, 32))):
        return unmet
    theirs = _mean(measured, _total, 32, 32)
    found = {pair: theirs / _mean(measured, _total, *pair) for pair in _ALL}
    return Verdict.of(
        min(found.values()) > 1, f"times fewer bytes in all: {min(found.values()):.2f} to {max(found.values()):.2f}"
    )


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
            "Table III", "kB per upload: 29.924, 15.380 and 8.108 at 8, 4 and 2 bits, 117.128 unquantized", _sizes, True
        ),
        Claim("Section IV-B", "4 bits both ways do not significantly alter the number of uploads", _four_bits_suffice),
        Claim("Section IV-B", "Fewer bits at the server always mean fewer bytes broadcast", _fewer_server_bits),
        Claim("Section IV-B", "From 4 to 2 bits at the client the number of uploads rises", _two_client_bits_cost),
        Claim("Section V", "The client's quantization matters more than the server's", _client_matters_more),
        Claim("Section IV-B", "QAFeL generally uses fewer bytes than FedBuff", _fewer_bytes_than_fedbuff),
    ),
    notes,
)
