"""Table I: the methods of related work side by side on mushrooms, a hundred thousand uploads each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from qafel.drawing.chart import Axis, Panel
from qafel.paper.convex import CLOSE
from qafel.paper.entry import Change, Claim, Entry, Scale, Verdict, mushrooms
from qafel.paper.measured import Measured, diverged
from qafel.paper.tables import Heading, Table
from qafel.paper.targets import curve, curve_panels, end_table, ratios
from qafel.runs.reading import Run
from qafel.sweeps.run import Planned

FEDBUFF, QAFEL = "FedBuff", "QAFeL, 4 bits"


MCM, PLAIN_MCM = "MCM, 4 bits", "MCM, unquantized"


DIRECT, HIDDEN = "FedAsync, direct 4 bits", "FedAsync, hidden state, 4 bits"


_RECIPES: Mapping[str, str] = {
    QAFEL: "mushrooms-qafel-4bit",
    FEDBUFF: "mushrooms-fedbuff",
    "FedAvg": "mushrooms-fedavg",
    "FedSGD": "mushrooms-fedsgd",
    "FedProx": "mushrooms-fedprox",
    MCM: "mushrooms-mcm",
    PLAIN_MCM: "mushrooms-mcm",
    "FedAsync": "mushrooms-fedasync",
    DIRECT: "mushrooms-fedasync-direct",
    HIDDEN: "mushrooms-fedasync-hidden",
}


_TABLE_I = {
    "FedAvg": (False, True, False),
    MCM: (False, True, True),
    "FedAsync": (True, False, False),
    FEDBUFF: (True, True, False),
    QAFEL: (True, True, True),
}
"""Asynchronous, buffered aggregation, quantized communication: as the paper has them."""


_UNQUANTIZED = Change("none", ('algorithm.client_quantizer="none"', 'algorithm.server_quantizer="none"'))


def _plan(scale: Scale) -> list[Planned]:
    changes = {PLAIN_MCM: (_UNQUANTIZED,)}
    return mushrooms(scale, {method: (recipe, changes.get(method, ())) for method, recipe in _RECIPES.items()})


def traits(run: Run) -> tuple[bool, bool, bool]:
    """What a run shows of its method: stale updates, several updates a step, less than 32 bits a parameter up."""
    return (
        run.number("staleness_max") > 0,
        run.number("uploads") / run.number("server_steps") > 1.5,
        run.number("upload_bytes_mean") < 4 * run.number("dimension"),
    )


def _table(measured: Measured) -> Table:
    base = end_table(measured)
    names = ("asynchronous", "buffered", "quantized")
    rows = []
    for row, method in zip(base.rows, measured.methods, strict=True):
        own = traits(measured.runs(method)[0])
        time = measured.spread(lambda run: run.number("virtual_time"), method).mean
        rows.append((*row, time, *("yes" if trait else "no" for trait in own)))
    virtual_time = Heading("virtual time", lambda value: f"{value:,.0f}")
    return Table((*base.headings, virtual_time, *(Heading(name) for name in names)), tuple(rows))


def _panels(measured: Measured) -> tuple[Panel, ...]:
    by_steps, by_bytes = curve_panels(measured)
    uploads, time = Axis("uploads", unit="count"), Axis("virtual time", log=True)
    by_uploads, by_time = (
        tuple(curve(method, measured.runs(method), across, axis) for method in measured.methods)
        for across, axis in (
            (lambda run: run.column("uploads"), uploads),
            (lambda run: run.column("virtual_time"), time),
        )
    )
    return (
        Panel("uploads", "by uploads", uploads, by_steps.y, by_uploads, by_steps.note),
        by_bytes,
        Panel("time", "by virtual time", time, by_steps.y, by_time),
    )


def _as_in_table_1(measured: Measured) -> Verdict:
    """Every method shows in its runs the traits that Table I gives it."""
    wrong = [
        method for method, expected in _TABLE_I.items() if any(traits(run) != expected for run in measured.runs(method))
    ]
    listed = f"otherwise for {', '.join(wrong)}" if wrong else "staleness, updates per step and bytes per upload agree"
    return Verdict.of(not wrong, listed)


def _mitigates(measured: Measured, method: str, reference: str) -> Verdict:
    found = ratios(measured, method, reference)
    return Verdict.of(
        max(found) <= CLOSE, f"{min(found):.3f} to {max(found):.3f} times {reference}'s f(x) − f* in the end"
    )


def _hidden_beats_direct(measured: Measured) -> Verdict:
    # The claim is about the hidden state, so that one which diverges refutes it.
    if any(gone := [diverged(run) for run in measured.runs(HIDDEN)]):
        return Verdict.of(False, f"with a hidden state {sum(gone)} of {len(gone)} runs diverged")
    found = ratios(measured, DIRECT, HIDDEN)
    return Verdict.of(
        min(found) > CLOSE, f"direct ends at {min(found):.2f} to {max(found):.2f} times the hidden state's"
    )


ENTRY = Entry(
    "related-work",
    "Related work side by side",
    "Table I",
    "4 min",
    _plan,
    _table,
    _panels,
    (
        Claim("Table I", "Which methods are asynchronous, buffered and quantized", _as_in_table_1, True),
        Claim("Table I", "QAFeL mitigates error propagation", partial(_mitigates, method=QAFEL, reference=FEDBUFF)),
        Claim("Section I-A", "A hidden state mitigates what direct quantization propagates", _hidden_beats_direct),
        Claim("Table I", "MCM mitigates error propagation", partial(_mitigates, method=MCM, reference=PLAIN_MCM)),
    ),
)
