"""Where trials run: in this process, or in several others (`processes`), one job each at a time."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Protocol, Self, final

from qafel.errors import QafelError
from qafel.simulator import Row
from qafel.tuning.outcome import Outcome, failure
from qafel.tuning.trial import Job, run_trial


class Done(NamedTuple):
    """A job that has ended. Where it failed, the outcome says so, and `error` is there to be raised."""

    job: Job
    outcome: Outcome
    error: QafelError | None = None


class Workers(Protocol):
    """`start` while there is room; `next_done` waits for one that has ended."""

    @property
    def room(self) -> int: ...
    @property
    def busy(self) -> int: ...
    def start(self, job: Job) -> None: ...
    def next_done(self) -> Done: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def attempt(job: Job, progress: Callable[[Row], None] | None = None) -> tuple[Outcome, QafelError | None]:
    """Run a job. What goes wrong in it is an outcome too: other settings may do better."""
    try:
        return run_trial(job, progress), None
    except QafelError as error:
        return failure(str(error)), error
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return failure(told), QafelError(f"trial {job.number} failed: {told}")


@final
class Here:
    """One trial at a time, in this process."""

    def __init__(self, progress: Callable[[Row], None] | None = None) -> None:
        self._progress = progress
        self._job: Job | None = None

    @property
    def room(self) -> int:
        return int(self._job is None)

    @property
    def busy(self) -> int:
        return int(self._job is not None)

    def start(self, job: Job) -> None:
        self._job = job

    def next_done(self) -> Done:
        assert self._job is not None
        job, self._job = self._job, None
        return Done(job, *attempt(job, self._progress))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
