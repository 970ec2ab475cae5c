"""TensorBoard: a run as events in its directory, with uploads as the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary as Scalars
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from qafel.runs.summary import Summary
from qafel.runs.trackers import NOTHING, Position, TrackedRun, scalars


@final
class TensorBoardRun:
    """The events of one run. A resumed run replaces the old events by all its rows."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._writer: Any = None

    def begin(self) -> Position:
        for file in self._run.path.glob("events.out.tfevents.*"):
            file.unlink()
        self._writer = EventFileWriter(str(self._run.path))
        # Tells a running TensorBoard to forget the removed events.
        self._writer.add_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        return NOTHING

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            values = scalars(row, self._run.metric_name)
            uploads = int(values.pop("uploads"))
            points = [Scalars.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._writer.add_event(Event(wall_time=values["wall_s"], step=uploads, summary=Scalars(value=points)))
        self._writer.flush()

    def end(self, summary: Summary | None) -> None:
        self._writer.close()
