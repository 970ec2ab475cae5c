"""Runs, for both drivers: a configuration, a seed and a driver produce rows and a summary.

progress    traffic, evaluations, rows; the types that files of a run may hold
live        the state of a run between two rows, its summary, and the listeners that receive them
bars        progress bars on a terminal or in a notebook
trackers    TensorBoard, MLflow, Weights & Biases
directory   the run directory: writing it, its state
checkpoints  checkpoint files, and the log of rows beside them
reading     run directories read back; mean and spread over seeds
"""

from typing import TYPE_CHECKING

from qafel.lazy import lazily

if TYPE_CHECKING:
    from qafel.runs.reading import History, Run, Spread, mean_curve

__all__ = ["History", "Run", "Spread", "mean_curve"]

__getattr__, __dir__ = lazily(__name__, {name: f"qafel.runs.reading:{name}" for name in __all__})
