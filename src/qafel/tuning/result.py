"""A search and what came of it, and how it stands meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from qafel.config import Config
from qafel.tuning.check import best_checked
from qafel.tuning.objective import Objective
from qafel.tuning.outcome import Outcome
from qafel.tuning.search import Search, Settings, own_settings, with_settings
from qafel.tuning.trial import Trial


@final
@dataclass(frozen=True)
class Moment:
    """A trial begins or has ended: which, and how the search stands."""

    trial: Trial
    best: Trial | None
    done: int
    objective: Objective
    checked: int | None = None
    """While a trial is checked: how many unseen seeds are done."""


Watch: TypeAlias = Callable[[Moment], None]


@final
@dataclass(frozen=True)
class Tuning:
    """A search and what came of it, so far or in the end."""

    out: Path
    config: Config
    search: Search
    objective: Objective
    seeds: int
    trials: tuple[Trial, ...]
    checks: Mapping[int, Outcome]
    """What the best trials did on seeds that the search has not seen."""
    importance: dict[str, float]
    exhausted: bool = False
    """Whether it ended because there was nothing new to try."""

    @property
    def best(self) -> Trial | None:
        """The best on unseen seeds, of the trials that did what they should; None where none did."""
        return best_checked(self.trials, self.checks)

    @property
    def starts_with_own(self) -> bool:
        """Whether trial 0 is the recipe as it is."""
        return own_settings(self.config, self.search) is not None

    def config_of(self, settings: Settings) -> Config:
        """The recipe with these settings; where it stops is the recipe's own business."""
        tuned = with_settings(self.config, settings)
        return tuned.model_copy(update={"name": f"{self.config.name}-tuned"})


Save: TypeAlias = Callable[[Tuning], object]
