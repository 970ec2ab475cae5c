"""Table III: uploads to the target for nine pairs of client and server bits, and for FedBuff."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qafel.errors import ConfigError
from qafel.experiments.bits_claims import BITS, CLAIMS, DOWN, PUBLISHED_UPLOADS, UP, UPLOADS, total
from qafel.experiments.entry import Entry
from qafel.experiments.measured import Measured, Spread
from qafel.experiments.neural import notes
from qafel.experiments.neural_methods import FEDBUFF
from qafel.experiments.panels import Axis, Panel, Series
from qafel.experiments.plan import QUICK, Change, Planned, Scale, configuration
from qafel.experiments.requirements import celeba_is_there
from qafel.experiments.tables import Heading, Table, bytes_heading, count_heading
from qafel.experiments.targets import accuracy_panel, best_accuracy, reached

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
