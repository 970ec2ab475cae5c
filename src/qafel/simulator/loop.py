"""The run around the event loop: advance, measure when due, stop in time, save now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import final

from qafel.simulator.measure import Limits, Measurements, Row
from qafel.simulator.simulation import Simulation, require_progress


@final
class Saving:
    """Decides when to save: every so many seconds, and never for more than a fiftieth of the time."""

    def __init__(self, save: Callable[[], None], every_s: float) -> None:
        self._save = save
        self._every_s = every_s
        self._due = perf_counter() + every_s
        self.spent_s = 0.0

    def now_and_then(self) -> None:
        if (began := perf_counter()) < self._due:
            return
        self._save()
        ended = perf_counter()
        self.spent_s += ended - began
        self._due = ended + max(self._every_s, 50 * (ended - began))


def drive(
    simulation: Simulation, measurements: Measurements, limits: Limits, saving: Saving | None = None
) -> Iterator[Row]:
    """Run to an end, and yield a row for every evaluation: at the start, when due, and at the end."""

    def at_target() -> bool:
        return limits.at_target and measurements.uploads_to_target is not None

    if simulation.starts == simulation.arrivals == 0:
        simulation.begin()
        yield measurements.measure(simulation)
        if at_target():
            return
    by_uploads = measurements.evaluation.unit == "uploads"
    while not limits.reached(simulation):
        if simulation.idle:
            require_progress(simulation)
            break
        stepped = simulation.advance()
        if (stepped or by_uploads) and measurements.due(simulation):
            yield measurements.measure(simulation)
            if at_target():
                return
        if stepped and saving is not None:
            saving.now_and_then()
    if measurements.stale(simulation):
        yield measurements.measure(simulation)
