"""A run at one moment, and forecasts of the time to its end and to its target."""

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
"""A running run reports every second or two. After this long without a report it is silent."""
_RECENT_S = 60.0
_LEAST_ROWS = 6
_FAR = 20.0
_SHARE_OF_ROWS = 0.75
"""The first quarter of a curve predicts its end worst."""


@final
@dataclass(frozen=True, eq=False)
class Watched:
    """A run at one moment."""

    key: str
    """A unique name: the run's folder, or its source and name."""
    run: Run
    """The run with its rows so far, perhaps none."""
    live: LiveState | None
    """The last state of its driver; None if unknown, as for a finished run."""
    heard_s: float
    """Seconds since its last report."""
    problem: str = ""
    """Why it cannot be shown, or what its operator should fix."""
    damaged: bool = False
    """Whether its files are too damaged to show its status."""

    @property
    def rows(self) -> int:
        return len(self.run.column("metric"))

    @property
    def run_id(self) -> str:
        """The identity of a deployed run; empty for a simulated one."""
        return str(self.run.summary.get("run_id", ""))

    @property
    def silent(self) -> bool:
        """Whether its current status is unknown."""
        return self.damaged or (self.running and self.heard_s > SILENT_S)

    @property
    def running(self) -> bool:
        """Whether it is running, as far as is known. A silent run may be."""
        return not self.run.finished and (self.live is None or self.live.status == "running")

    @property
    def word(self) -> str:
        """Its status in a word or two."""
        if self.damaged:
            return "damaged"
        if self.run.finished:
            return str(self.run.summary.get("status", "finished"))
        if not self.running and self.live is not None:
            return self.live.status
        return f"silent for {human_seconds(round(self.heard_s))}" if self.silent else "running"

    @property
    def target_reached(self) -> int | None:
        """The uploads that reached the target; None if it is not reached, or there is none."""
        target = self.run.number("target")
        first = None if math.isnan(target) else self.run.first_at(target)
        uploads = math.nan if first is None else float(self.run.column("uploads")[first])
        return round(uploads) if math.isfinite(uploads) else None


def seen_once(watched: Iterable[Watched]) -> list[Watched]:
    """Remove duplicates by run id: a run may come from its folder and from its broker.

    The first one counts, unless it is silent and another one is not.
    """
    found: dict[str, Watched] = {}
    for one in watched:
        name = one.run_id or one.key
        if name not in found or (found[name].silent and not one.silent):
            found[name] = one
    return list(found.values())


def uploads_to_target(uploads: Column, metric: Column, target: float, goal: str) -> float:
    """Predict the total uploads to the target from the last three quarters of the curve.

    Learning slows down: an accuracy grows about like the logarithm of the uploads, a loss falls about like a power of
    them. Infinite if the metric does not approach the target, or needs over twenty times the uploads so far. NaN with
    too few rows.
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
    """Predict the seconds to the target from the curve so far and the current rate; NaN if unknown."""
    run, live = watched.run, watched.live
    target = run.number("target")
    if live is None or not watched.running or not live.updates_per_s > 0 or math.isnan(target) or not watched.rows:
        return math.nan
    if meets(float(run.column("metric")[-1]), target, run.goal):
        return 0.0
    needed = uploads_to_target(run.column("uploads"), run.column("metric"), target, run.goal)
    return max(0.0, needed - live.uploads) / live.updates_per_s


@final
class Pace:
    """Predicts the time to a run's end, from the pace of the last minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()

    def seconds_left(self, live: LiveState) -> float:
        """The predicted time left; NaN if the pace or the progress is unknown."""
        share, marks = live.share_done, self._marks
        if share is None:
            return math.nan
        if marks and (share < marks[-1][1] or live.at < marks[-1][0]):
            marks.clear()  # the run started again
        if not marks or live.at > marks[-1][0]:
            marks.append((live.at, share))
        while len(marks) > 2 and live.at - marks[0][0] > _RECENT_S:
            marks.popleft()
        (then, before), (now, done) = marks[0], marks[-1]
        overall = share / live.wall_s if live.wall_s > 0 else 0.0
        rate = (done - before) / (now - then) if now - then >= 3 else overall
        return max(0.0, 1.0 - share) / rate if rate > 0 else math.nan
