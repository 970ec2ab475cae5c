"""The axes of a search's charts: what it cost, and the settings."""

from __future__ import annotations

import math
from html import escape
from typing import Any, final

from qafel.results.report_chart import BYTES_AXIS, COUNT_AXIS
from qafel.tuning.ranking import short
from qafel.tuning.result import Tuning
from qafel.tuning.search import Choices

_WIDE = 8.0
_BEYOND = 0.08


@final
class Heights:
    """Where each trial stands on the axis of the objective; the lost stand at its bad end."""

    def __init__(self, tuning: Tuning) -> None:
        self._objective = objective = tuning.objective
        scores = [math.nan if trial.lost else objective.shown(trial.score) for trial in tuning.trials]
        self.measured = [score for score in scores if not math.isnan(score)]
        self.low, self.high = (min(self.measured), max(self.measured)) if self.measured else (1.0, 1.0)
        self.log = not objective.more_is_better and self.low > 0 and self.high > _WIDE * self.low
        self.of = [self._bad_end() if math.isnan(score) else score for score in scores]
        lost = sum(trial.lost for trial in tuning.trials)
        what = "missed the target, diverged or failed"
        self.notes = (f"At the edge: what {what} ({lost} of {len(scores)}).",) if lost else ()
        self.toggles = ("y",) if self.low > 0 and not objective.more_is_better else ()

    @property
    def axis(self) -> dict[str, Any]:
        ticks: dict[str, Any] = {}
        if self._objective.name != "metric":
            ticks = BYTES_AXIS if "bytes" in self._objective.name else COUNT_AXIS
        if self.log and self.high < 100 * self.low:
            # A tick a decade would be too few; some three a decade are at 2, 5 and 10. As a number of ticks and not as
            # plotly's dtick "D2" it serves a linear axis too, to which the page can switch.
            ticks = ticks | {"tickmode": "auto", "nticks": max(3, int(3 * math.log10(self.high / self.low)))}
        return {"title": {"text": escape(self._objective.label)}, "type": "log" if self.log else "linear", **ticks}

    @property
    def colours(self) -> dict[str, Any]:
        """The colour scale of a map: dark is good."""
        ends = {"cmin": self.colour(self.low), "cmax": self.colour(self.high)}
        return {"colorscale": "Viridis", "reversescale": self._objective.more_is_better, **ends}

    @property
    def darkest_to_brightest(self) -> str:
        """What the ends of the colour scale stand for; nothing where they are the same."""
        if not self.measured or self.low == self.high:
            return ""
        ends = [self._objective.text(self._objective.shown(end)) for end in (self.low, self.high)]
        return ": {} to {}".format(*(reversed(ends) if self._objective.more_is_better else ends))

    def colour(self, height: float) -> float:
        """Where a height is on the colour scale."""
        return math.log10(height) if self.log else height

    def _bad_end(self) -> float:
        if self.log:
            return 1.3 * self.high
        beyond = _BEYOND * (self.high - self.low or abs(self.high) or 1.0)
        return self.low - beyond if self._objective.more_is_better else self.high + beyond


def setting_axis(tuning: Tuning, path: str) -> dict[str, Any]:
    """The axis of a setting that was searched. It keeps its scale: no switch changes it."""
    dimension = tuning.search[path]
    axis: dict[str, Any] = {"title": {"text": escape(short(path))}}
    if isinstance(dimension, Choices):
        order = [escape(str(value)) for value in dimension.values]
        return axis | {"type": "category", "categoryorder": "array", "categoryarray": order}
    if not dimension.log:
        return axis | {"type": "linear"}
    decades = math.log10(dimension.high / dimension.low)
    return axis | {"type": "log", "dtick": 1 if decades >= 2 else "D2", "exponentformat": "power"}
