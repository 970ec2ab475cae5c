"""A run's rows as TensorBoard events, where TensorBoard is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, final


class Measured(Protocol):
    """The part of an evaluation that is drawn."""

    @property
    def uploads(self) -> int: ...

    def to_json(self) -> dict[str, Any]: ...


@final
class TensorBoard:
    """A context that writes scalars by uploads; without the package, or if not wanted, it writes nothing.

    Of more than a thousand rows it takes ever fewer: a chart shows no more, and events cost more than rows.
    """

    def __init__(self, folder: Path, wanted: bool = True) -> None:
        self._writer: Any = None
        self._rows = 0
        if wanted and importlib.util.find_spec("tensorboard") is not None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415  (an extra)

            self._writer = EventFileWriter(str(folder))

    def write(self, row: Measured) -> None:
        self._rows += 1
        if self._writer is None or (self._rows > 1000 and self._rows % (self._rows // 500)):
            return
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  (an extra)
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415  (an extra)

        values = row.to_json()
        scalars = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if isinstance(value, int | float) and name != "uploads"
        ]
        self._writer.add_event(Event(wall_time=values["wall_s"], step=row.uploads, summary=Summary(value=scalars)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
