"""A simulated run says about once a second how it stands, so that it can be watched between two evaluations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import NamedTuple, final

from qafel.config import Limits
from qafel.runs.live import NAMED_CLIENTS, LiveState, Rate, live_state
from qafel.runs.progress import Progress, Row
from qafel.runs.summary import Summary
from qafel.simulator.executors.jobs import Job
from qafel.simulator.simulation import Deliver, Dropout, Simulation

_EVERY_S = 1.0
_MANY = 20_000  # events on the clock, beyond which they are not looked through every second


@final
class Heartbeat:
    """Tells `tell` how a run stands, now and then. It is a listener of the run, as rows say what it cannot know."""

    def __init__(
        self,
        tell: Callable[[LiveState], None],
        simulation: Simulation,
        progress: Progress,
        limits: Limits,
        every_s: float = _EVERY_S,
    ) -> None:
        self._tell = tell
        self._simulation, self._progress, self._limits = simulation, progress, limits
        self._every_s = every_s
        self._due = perf_counter()
        self._rate = Rate()
        self._hidden_state_lag: float | None = None

    def write_if_due(self) -> None:
        """Tell it if it is time."""
        if perf_counter() >= self._due:
            self._tell(self.state())
            self._due = perf_counter() + self._every_s

    def on_row(self, row: Row) -> None:
        self._hidden_state_lag = row.hidden_state_lag
        self.write_if_due()

    def on_end(self, summary: Summary | None) -> None:
        """Nothing to do: the directory has the summary, and knows the last state."""

    def state(self) -> LiveState:
        """How the run stands now."""
        simulation, traffic = self._simulation, self._simulation.traffic
        seen = _taking_part(simulation)
        return live_state(
            "running",
            simulation.task,
            simulation.server,
            traffic,
            self._progress,
            self._limits,
            simulation.clock.now,
            updates_per_s=self._rate.mark(perf_counter(), traffic.uploads),
            training=seen.training,
            training_count=simulation.in_flight - (seen.silent_count or 0),
            silent=dict.fromkeys(seen.silent),
            silent_count=seen.silent_count,
            hidden_state_lag=self._hidden_state_lag,
        )


class _TakingPart(NamedTuple):
    training: dict[str, int]
    silent: list[str]
    silent_count: int | None


def _taking_part(simulation: Simulation) -> _TakingPart:
    """Who trains, and how many versions behind what it started from is by now; and who dropped out without a word."""
    training: dict[str, int] = {}
    silent: list[str] = []
    clock = simulation.clock
    for event in islice(clock.events(), _MANY):
        if isinstance(event, Dropout):
            silent.append(str(event.client))
        elif isinstance(event, Job | Deliver) and len(training) < NAMED_CLIENTS:
            job = event.job if isinstance(event, Deliver) else event
            training[str(job.client)] = simulation.server.version - job.version
    return _TakingPart(training, silent[:NAMED_CLIENTS], len(silent) if len(clock) <= _MANY else None)
