"""Table I: the methods of related work side by side on mushrooms, a hundred thousand uploads each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from qafel.paper.convex import CLOSE
from qafel.paper.display import END_COLUMNS, Table, TableColumn, cell_column, curve_panels, mean_column, table_of
from qafel.paper.entry import Change, Claim, Entry, Extent, Verdict, mushrooms
from qafel.paper.measured import EntryRuns, ratios
from qafel.runs.reading import Run
from qafel.sweeps import Planned

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

TRAITS = ("asynchronous", "buffered", "quantized")

_TABLE_I = {
    "FedAvg": (False, True, False),
    MCM: (False, True, True),
    "FedAsync": (True, False, False),
    FEDBUFF: (True, True, False),
    QAFEL: (True, True, True),
}
"""The traits of each method, as the paper has them: aggregation is buffered, communication quantized."""

_UNQUANTIZED = Change("none", ('algorithm.client_quantizer="none"', 'algorithm.server_quantizer="none"'))


def _plan(extent: Extent) -> list[Planned]:
    changes = {PLAIN_MCM: (_UNQUANTIZED,)}
    return mushrooms(extent, {method: (recipe, changes.get(method, ())) for method, recipe in _RECIPES.items()})


def _traits(run: Run) -> tuple[bool, bool, bool]:
    """What a run shows of its method: stale updates, several updates a step, less than 32 bits a parameter up."""
    return (
        run.number("staleness_max") > 0,
        run.number("uploads") / run.number("server_steps") > 1.5,
        run.number("upload_bytes_mean") < 4 * run.number("dimension"),
    )


def _trait_column(title: str, trait: int) -> TableColumn:
    return cell_column(title, lambda runs: "yes" if _traits(runs.runs()[0])[trait] else "no")


def _table(measured: EntryRuns) -> Table:
    time = mean_column("virtual time", "virtual_time", lambda value: f"{value:,.0f}")
    traits = [_trait_column(name, index) for index, name in enumerate(TRAITS)]
    return table_of("method", measured.by_method(), *END_COLUMNS, time, *traits)


def _as_in_table_1(measured: EntryRuns) -> Verdict:
    """Every method shows in its runs the traits that Table I gives it."""
    wrong = [
        method
        for method, expected in _TABLE_I.items()
        if any(_traits(run) != expected for run in measured.runs(method))
    ]
    listed = f"otherwise for {', '.join(wrong)}" if wrong else "staleness, updates per step and bytes per upload agree"
    return Verdict.of(not wrong, listed)


def _mitigates(measured: EntryRuns, method: str, reference: str) -> Verdict:
    found = ratios(measured, method, reference)
    return Verdict.of(
        max(found) <= CLOSE, f"{min(found):.3f} to {max(found):.3f} times {reference}'s f(x) − f* in the end"
    )


def _hidden_beats_direct(measured: EntryRuns) -> Verdict:
    # The claim is about the hidden state: a hidden state that diverges refutes it.
    if any(gone := [run.diverged for run in measured.runs(HIDDEN)]):
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
    partial(curve_panels, keys=("uploads", "bytes", "time")),
    (
        Claim("Table I", "Which methods are asynchronous, buffered and quantized", _as_in_table_1, True),
        Claim("Table I", "QAFeL mitigates error propagation", partial(_mitigates, method=QAFEL, reference=FEDBUFF)),
        Claim("Section I-A", "A hidden state mitigates what direct quantization propagates", _hidden_beats_direct),
        Claim("Table I", "MCM mitigates error propagation", partial(_mitigates, method=MCM, reference=PLAIN_MCM)),
    ),
)
