"""A run as it is seen at a moment, and how long it will take: to its end, and to its target."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.runs.live import LiveState
from qafel.runs.progress import meets
from qafel.runs.reading import Column, Run
from qafel.text import human_seconds

SILENT_S = 15.0
"""A run that goes on says so every second or two; one of which nothing was heard for so long is called silent."""
_RECENT_S = 60.0
_LEAST_ROWS = 6
_FAR = 20.0
_SHARE_OF_ROWS = 0.75
"""The first quarter of a curve says least about its end."""


@final
@dataclass(frozen=True, eq=False)
class Watched:
    """A run as it is seen now."""

    key: str
    """Tells it from all others: its folder, or where it was told of."""
    run: Run
    """Its rows so far, perhaps none."""
    live: LiveState | None
    """What its driver said last; None if it is not known, as in a folder whose run is finished."""
    heard_s: float
    """So many seconds ago it was heard of last."""
    problem: str = ""
    """Why it cannot be shown, or what its operator should see to."""
    damaged: bool = False
    """Whether its files do not tell how it stands."""

    @property
    def rows(self) -> int:
        return len(self.run.column("metric"))

    @property
    def run_id(self) -> str:
        """Tells a deployed run from all others; a simulated one has none."""
        return str(self.run.summary.get("run_id", ""))

    @property
    def silent(self) -> bool:
        """Whether nobody knows how it stands now."""
        return self.damaged or (self.goes_on and self.heard_s > SILENT_S)

    @property
    def goes_on(self) -> bool:
        """Whether it is running, as far as is known: one that fell silent may be."""
        return not self.run.finished and (self.live is None or self.live.status == "running")

    @property
    def word(self) -> str:
        """Its state in a word or two."""
        if self.damaged:
            return "damaged"
        if self.run.finished:
            return str(self.run.summary.get("status", "finished"))
        if not self.goes_on and self.live is not None:
            return self.live.status
        return f"silent for {human_seconds(round(self.heard_s))}" if self.silent else "running"

    @property
    def target_reached(self) -> int | None:
        """How many uploads the target took; None if it is not reached, or there is none."""
        target = self.run.number("target")
        first = None if math.isnan(target) else self.run.first_at(target)
        uploads = math.nan if first is None else float(self.run.column("uploads")[first])
        return round(uploads) if math.isfinite(uploads) else None


def seen_once(watched: Iterable[Watched]) -> list[Watched]:
    """Each run once, by its run id: one may be seen in its folder, and told of by its broker.

    The first counts, unless it is silent and another one is not.
    """
    found: dict[str, Watched] = {}
    for one in watched:
        name = one.run_id or one.key
        if name not in found or (found[name].silent and not one.silent):
            found[name] = one
    return list(found.values())


def uploads_to_target(uploads: Column, metric: Column, target: float, goal: str) -> float:
    """So many uploads the target will take in all, if the metric goes on as in the last three quarters of its curve.

    Learning slows down: an accuracy grows about as the logarithm of the uploads does, and a loss falls about as a power
    of them. Infinite if the metric does not approach the target, or so slowly that twenty times as many uploads as
    there were so far would not do; NaN if there is too little to tell.
    """
    known = np.isfinite(metric) & np.isfinite(uploads) & (uploads > 0)
    logarithmic = goal == "min" and target > 0
    if logarithmic:
        known &= metric > 0
    x, y = np.log(uploads[known]), metric[known]
    recent = slice(int(len(x) * (1 - _SHARE_OF_ROWS)), None)
    x, y = x[recent], y[recent]
    if len(x) < _LEAST_ROWS or np.ptp(x) == 0:
        return math.nan
    aim = target
    if logarithmic:
        y, aim = np.log(y), math.log(target)
    slope = float(np.cov(x, y)[0, 1] / np.var(x, ddof=1))
    if slope == 0 or (slope > 0) != (goal == "max"):
        return math.inf
    at = float(x.mean() + (aim - y.mean()) / slope)
    return math.exp(at) if at <= x[-1] + math.log(_FAR) else math.inf


def seconds_to_target(watched: Watched) -> float:
    """How long until the target is reached, by the curve so far and the present rate; NaN where nobody can tell."""
    run, live = watched.run, watched.live
    target = run.number("target")
    if live is None or not watched.goes_on or not live.updates_per_s > 0 or math.isnan(target) or not watched.rows:
        return math.nan
    if meets(float(run.column("metric")[-1]), target, run.goal):
        return 0.0
    needed = uploads_to_target(run.column("uploads"), run.column("metric"), target, run.goal)
    return max(0.0, needed - live.uploads) / live.updates_per_s


@final
class Pace:
    """How long a run will take to its end, at the pace of the last minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()

    def seconds_left(self, live: LiveState) -> float:
        """As long as the rest takes; NaN before there is a pace, or if nobody knows how far the run is."""
        share, marks = live.share_done, self._marks
        if share is None:
            return math.nan
        if marks and (share < marks[-1][1] or live.at < marks[-1][0]):
            marks.clear()  # it began anew
        if not marks or live.at > marks[-1][0]:
            marks.append((live.at, share))
        while len(marks) > 2 and live.at - marks[0][0] > _RECENT_S:
            marks.popleft()
        (then, before), (now, done) = marks[0], marks[-1]
        overall = share / live.wall_s if live.wall_s > 0 else 0.0
        rate = (done - before) / (now - then) if now - then >= 3 else overall
        return max(0.0, 1.0 - share) / rate if rate > 0 else math.nan
