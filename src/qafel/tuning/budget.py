"""Whether the trials of a search get the same budget."""

from __future__ import annotations

import math

from qafel.config import Config
from qafel.tuning.search import Search

BUFFER_SIZE = "algorithm.buffer_size"


def uneven(config: Config, search: Search) -> str | None:
    """A warning where a search of K gives its trials unequal budgets, or counts their costs unequally finely."""
    if (sizes := search.get(BUFFER_SIZE)) is None:
        return None
    steps, uploads = config.stop.server_steps, config.stop.uploads
    cures = []
    if steps is not None and (uploads or math.inf) > (least := steps * int(min(sizes.corners))):
        cures.append(f"stop.uploads={least}")
    if config.evaluation.unit == "server_steps":
        cures.append("evaluation.unit=uploads")
    if not cures:
        return None
    return "a server step is buffer_size uploads, so what is counted in steps is uneven between trials: " + " ".join(
        f"--set {cure}" for cure in cures
    )
