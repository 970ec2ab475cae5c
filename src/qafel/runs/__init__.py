"""Runs, for both drivers: a configuration, a seed and a driver produce rows and a summary.

progress    traffic, evaluations, rows; the types that files of a run may hold
summary     the summary of a run; listeners that receive rows and summary
live        the state of a run between two rows
bars        progress bars on a terminal or in a notebook
trackers    TensorBoard, MLflow, Weights & Biases
directory   the run directory: writing it, its state
checkpoints  checkpoint files, and the log of rows beside them
reading     run directories read back
seeds       runs that differ only by seed: mean, spread, mean curve
"""

from typing import TYPE_CHECKING

from qafel.lazy import lazily

if TYPE_CHECKING:
    from qafel.runs.reading import History, Run
    from qafel.runs.seeds import Spread, mean_curve

__all__ = ["History", "Run", "Spread", "mean_curve"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "History": "qafel.runs.reading:History",
        "Run": "qafel.runs.reading:Run",
        "Spread": "qafel.runs.seeds:Spread",
        "mean_curve": "qafel.runs.seeds:mean_curve",
    },
)
