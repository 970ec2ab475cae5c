"""How a run looks, the same in every chart: its label, its colour and its dashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from qafel.results.runs import Run

# Okabe and Ito's palette, safe for colour-blind readers, without yellow and black, which vanish on white or dark.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
DASHES = ("solid", "dash", "dot", "dashdot")


@final
@dataclass(frozen=True)
class Style:
    """Label, colour and dashes of one run; `dash` is Plotly's word for it."""

    label: str
    colour: str
    dash: str


def styles_of(runs: Sequence[Run]) -> tuple[Style, ...]:
    """One style per run: colours in the order given, then the same colours dashed."""
    return tuple(
        Style(label, PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)])
        for index, label in enumerate(labels_of(runs))
    )


def labels_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """Names that differ: the run's own, with seed, directory or number added where others share it."""
    labels = [run.name for run in runs]
    additions = (
        [f"seed {run.summary['seed']}" if "seed" in run.summary else "" for run in runs],
        [run.path.resolve().name for run in runs],
        [f"#{index}" for index in range(1, len(runs) + 1)],
    )
    for addition in additions:
        shared = {label for label, count in Counter(labels).items() if count > 1}
        useful = {label for label in shared if len(_additions_to(label, labels, addition)) > 1}
        labels = [
            f"{label} · {added}" if label in useful and added else label
            for label, added in zip(labels, addition, strict=True)
        ]
    return tuple(labels)


def reference_of(runs: Sequence[Run]) -> int:
    """The run to compare traffic with: the first FedBuff, else the first."""
    for index, run in enumerate(runs):
        if "fedbuff" in run.name.casefold() or str(run.summary.get("algorithm", "")).casefold() == "fedbuff":
            return index
    return 0


def _additions_to(label: str, labels: Sequence[str], addition: Sequence[str]) -> set[str]:
    return {added for other, added in zip(labels, addition, strict=True) if other == label}
