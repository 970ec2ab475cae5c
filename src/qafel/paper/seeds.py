"""Shakespeare, direct quantization at concurrency 500: some seeds learn, and some do not."""

from __future__ import annotations

from qafel.drawing.chart import Panel
from qafel.paper.entry import Claim, Entry, Scale, Verdict
from qafel.paper.measured import Measured, settled
from qafel.paper.neural import DIRECT, SHAKESPEARE_TASK, notes, plan
from qafel.paper.tables import Heading, Table, count_heading
from qafel.paper.targets import accuracy_panel, best_accuracy, learned, to_target
from qafel.sweeps.run import Planned


def _plan(scale: Scale) -> list[Planned]:
    runs = plan(SHAKESPEARE_TASK, scale, (500,))
    return [
        Planned(f"seed {run.config.seed}", run.config, {"concurrency": 500}) for run in runs if run.method == DIRECT
    ]


def _table(measured: Measured) -> Table:
    headings = (
        Heading("seed"),
        Heading("accuracy in the end", lambda value: f"{value:.3f}"),
        Heading("best accuracy", lambda value: f"{value:.3f}"),
        count_heading("uploads to target"),
        Heading("status"),
    )
    rows = tuple(
        (planned.method, settled(run), best_accuracy(run), to_target("uploads")(run), str(run.summary["status"]))
        for planned, run in measured.pairs
    )
    return Table(headings, rows)


def _panels(measured: Measured) -> tuple[Panel, ...]:
    return (accuracy_panel(measured, "accuracy", "accuracy by uploads"),)


def _some_fail(measured: Measured) -> Verdict:
    ends = {planned.method: settled(run) for planned, run in measured.pairs}
    if len(ends) < 2:
        return Verdict.none("one seed cannot differ from others")
    best = max(ends.values())
    failed = [planned.method for planned, run in measured.pairs if not learned(run, best)]
    if len(failed) == len(ends):
        return Verdict.none("no seed learned anything here")
    listed = ", ".join(f"{end:.3f} ({method})" for method, end in ends.items())
    return Verdict.of(bool(failed), f"accuracies in the end: {listed}")


SEEDS = Entry(
    "seeds",
    "Shakespeare: direct 4-bit quantization at concurrency 500, seed by seed",
    "Fig. 10",
    "days",
    _plan,
    _table,
    _panels,
    (Claim("Fig. 10", "One of three runs diverges", _some_fail),),
    notes,
)
