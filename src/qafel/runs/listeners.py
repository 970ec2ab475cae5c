"""Who is told of a run: of every row as it is measured, and of the end. A driver has one list of listeners."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, final

from qafel.files import writing
from qafel.runs.progress import Row
from qafel.runs.summary import Summary

_EVENTS = "TensorBoard events"


class Listener(Protocol):
    """Is told of one run."""

    def on_row(self, row: Row) -> None:
        """An evaluation was made. An error raised here breaks the run off."""
        ...

    def on_end(self, summary: Summary | None) -> None:
        """The run has ended, with this summary; or it was broken off by an error, and there is none.

        Every listener is told, even if another one raises an error here.
        """
        ...


@final
class Calling:
    """A listener from a plain function of a row."""

    def __init__(self, function: Callable[[Row], None]) -> None:
        self._function = function

    def on_row(self, row: Row) -> None:
        self._function(row)

    def on_end(self, summary: Summary | None) -> None:
        """Nothing to do."""


@final
class TensorBoard:
    """Writes rows as TensorBoard events, scalars by uploads; without the package it writes nothing.

    Of more than a thousand rows it takes ever fewer: a chart shows no more, and events cost more than rows.
    """

    def __init__(self, folder: Path) -> None:
        self._writer: Any = None
        self._rows = 0
        if importlib.util.find_spec("tensorboard") is not None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415  (an extra)

            self._writer = EventFileWriter(str(folder))

    def on_row(self, row: Row) -> None:
        self._rows += 1
        if self._writer is None or (self._rows > 1000 and self._rows % (self._rows // 500)):
            return
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  (an extra)
        from tensorboard.compat.proto.summary_pb2 import Summary as Scalars  # noqa: PLC0415  (an extra)

        values = row.to_json()
        scalars = [
            Scalars.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if isinstance(value, int | float) and name != "uploads"
        ]
        event = Event(wall_time=values["wall_s"], step=row.uploads, summary=Scalars(value=scalars))
        with writing(_EVENTS):
            self._writer.add_event(event)

    def on_end(self, summary: Summary | None) -> None:
        if self._writer is not None:
            with writing(_EVENTS):
                self._writer.close()
