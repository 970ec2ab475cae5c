"""What runs need beyond the package: PyTorch and a dataset."""

from __future__ import annotations

from collections.abc import Sequence

from qafel.errors import UserError
from qafel.experiments.plan import Planned
from qafel.tasks.data_folder import data_folder


def celeba_is_there() -> bool:
    """Whether CelebA lies in the data folder, as published or as LEAF prepares it."""
    folder = data_folder() / "celeba"
    return (folder / "identity_CelebA.txt").is_file() or (folder / "data" / "train").is_dir()


def why_missing(runs: Sequence[Planned]) -> str | None:
    """Why some runs cannot be made: no torch, or data that is neither there nor to be had. None if all can."""
    for task in {run.config.task.name: run.config.task for run in runs if not run.cheap}.values():
        try:
            task.make()
        except UserError as error:
            return str(error)
    return None
