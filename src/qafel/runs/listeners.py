"""Who is told of a run: of every row as it is measured, and of the end. A driver has one list of listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from qafel.runs.progress import Row
from qafel.runs.summary import Summary


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
