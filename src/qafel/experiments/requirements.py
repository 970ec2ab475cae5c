"""What runs need beyond the package: PyTorch and a dataset."""

from __future__ import annotations

from collections.abc import Sequence

from qafel.errors import UserError
from qafel.experiments.plan import Planned
from qafel.tasks.data_folder import data_folder


def celeba_is_there() -> bool:
    """Whether all that the reader needs lies in the data folder, as published or as LEAF prepares it."""
    folder = data_folder() / "celeba"
    identities, leaf, images = folder / "identity_CelebA.txt", folder / "data", folder / "img_align_celeba"
    if identities.is_file():  # then the reader takes the published files
        return (folder / "list_attr_celeba.txt").is_file() and images.is_dir()
    parts = all(any((leaf / part).glob("*.json")) for part in ("train", "test"))
    return parts and (images.is_dir() or (leaf / "raw" / "img_align_celeba").is_dir())


def why_missing(runs: Sequence[Planned]) -> str | None:
    """Why some runs cannot be made: no torch, or data that is neither there nor to be had. None if all can."""
    for task in {run.config.task.name: run.config.task for run in runs if not run.cheap}.values():
        try:
            task.make()
        except UserError as error:
            return str(error)
    return None
