"""A listener that tells one tracker of a run, in a thread of its own: a slow or broken tracker never holds up a run."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, final

from qafel.errors import DataError
from qafel.runs.listeners import Listener
from qafel.runs.progress import Row
from qafel.runs.reading import read_rows
from qafel.runs.summary import Summary
from qafel.runs.trackers.choice import NOTHING, Position, Track, TrackedRun, Tracker, TrackerName

Say: TypeAlias = Callable[[str], None]
log = logging.getLogger(__name__)

BETWEEN_S = 1.0
"""Rows are sent so often: one by one they would cost more than many a run."""
AGAIN_S = 60.0
"""After a failure it is tried again so often."""
END_S = 120.0
"""A run that has ended waits so long for what is not yet sent."""
_WHOLE, _SHARE = 1000, 500


def follow(run: TrackedRun, say: Say = log.warning) -> list[Listener]:
    """Listeners that tell the run's trackers of it. `say` is told, once for each, of a tracker that fails.

    The directory of a resumed run must be open, so that its metrics are those that the run keeps.
    """
    return [Sending(name, partial(_tracker, name, run), run, say) for name in run.track.names]


def grouped(
    track: Track, folder: Path, groups: Mapping[str, Mapping[str, Any]], say: Say = log.warning
) -> dict[str, Track]:
    """Which trackers hear of the runs of each group of a sweep in `folder`, by the group's name.

    `groups` has the settings of one run of each. MLflow gets a run for each group, for the others to stand below; if
    that fails, `say` is told and MLflow hears of none of them.
    """
    if "mlflow" in track.names and groups:
        try:
            from qafel.runs.trackers.mlflow import group_runs  # noqa: PLC0415  (an extra, slow to load)

            parents = group_runs(folder, groups)
            return {name: replace(track, mlflow_parent=parents[name]) for name in groups}
        except Exception as error:
            say(f"mlflow does not take these runs ({_in_a_line(error)}); they go on without it")
            track = replace(track, names=tuple(name for name in track.names if name != "mlflow"))
    return dict.fromkeys(groups, track)


def _tracker(name: TrackerName, run: TrackedRun) -> Tracker:
    if name == "mlflow":
        from qafel.runs.trackers.mlflow import MlflowRun  # noqa: PLC0415  (an extra, slow to load)

        return MlflowRun(run)
    if name == "wandb":
        from qafel.runs.trackers.wandb import WandbRun  # noqa: PLC0415  (an extra, slow to load)

        return WandbRun(run)
    from qafel.runs.trackers.tensorboard import TensorBoardRun  # noqa: PLC0415  (an extra)

    return TensorBoardRun(run)


@final
class Sending:
    """Tells a tracker of a run's rows, some at a time.

    Of more than a thousand rows it sends ever fewer, and always the last: a chart shows no more. Rows that the tracker
    has already, from the process before this one, are not sent again; those that it lacks are.
    """

    def __init__(self, name: TrackerName, make: Callable[[], Tracker], run: TrackedRun, say: Say) -> None:
        """Tell the tracker that `make` makes, in the thread too, as its library may be slow to load, or broken."""
        self._name, self._make, self._say = name, make, say
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._left_out: Mapping[str, Any] | None = None
        self._rows = 0
        self._reached = NOTHING
        self._problem: str | None = None
        self._said = False
        self._summary: Summary | None = None
        self._ended = threading.Event()
        if run.resumed:
            for row in _kept_rows(run):
                self._take(row)
        self._thread = threading.Thread(target=self._work, name=f"qafel-{name}", daemon=True)
        self._thread.start()

    def on_row(self, row: Row) -> None:
        self._take(row.to_json())
        self._say_once()

    def on_end(self, summary: Summary | None) -> None:
        """Send what is left. It takes at most two minutes: a tracker that takes longer is left alone."""
        if self._left_out is not None:
            self._waiting.append(self._left_out)
        self._summary = summary
        self._ended.set()
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._problem = self._problem or f"it has not taken the last ones {END_S:.0f} s after the run's end"
        self._say_once()

    def _take(self, row: Mapping[str, Any]) -> None:
        self._rows += 1
        thinned = self._rows > _WHOLE and self._rows % (self._rows // _SHARE)
        self._left_out = row if thinned else None
        if not thinned:
            self._waiting.append(row)

    def _say_once(self) -> None:
        """Say what went wrong in the run's own thread, where progress bars and pipes expect it."""
        if self._problem is not None and not self._said:
            self._said = True
            self._say(f"{self._name} does not take this run's rows ({self._problem}); the run goes on without it")

    def _work(self) -> None:
        """Begin, send what comes, end; after a failure wait, then try again from there."""
        tracker: Tracker | None = None
        failed_at = -AGAIN_S
        while True:
            ended = self._ended.is_set()
            try:
                if tracker is None:
                    made = self._make()
                    self._reached, tracker = made.begin(), made
                self._send(tracker)
                if ended:
                    tracker.end(self._summary)
                    return
                self._ended.wait(BETWEEN_S)
            except Exception as error:
                self._problem = _in_a_line(error)
                if ended or (self._ended.is_set() and monotonic() - failed_at < AGAIN_S):
                    return
                failed_at = monotonic()
                self._ended.wait(AGAIN_S)

    def _send(self, tracker: Tracker) -> None:
        rows = []
        while self._waiting:
            row = self._waiting.popleft()
            if (at := Position(row["uploads"], row["version"])) > self._reached:
                rows.append((at, row))
        if rows:
            try:
                tracker.log([row for _, row in rows])
            except BaseException:
                self._waiting.extendleft(row for _, row in reversed(rows))
                raise
            self._reached = rows[-1][0]


def _kept_rows(run: TrackedRun) -> list[dict[str, Any]]:
    try:
        return read_rows(run.path / "metrics.jsonl")
    except DataError:  # none yet, or damaged, which is the report's to tell
        return []


def _in_a_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"
