"""One run in its folder: finished, to be resumed, or to be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from qafel.config import Config
from qafel.errors import DataError
from qafel.runs.directory import RunDirectory, state_of
from qafel.runs.listeners import Calling
from qafel.runs.progress import Row
from qafel.runs.reading import Run
from qafel.simulator.executors import ExecutorName
from qafel.simulator.run import run, sound_checkpoint


def perform(
    config: Config,
    path: Path,
    progress: Callable[[Row], None] | None = None,
    note: Callable[[str], None] | None = None,
    *,
    executor: ExecutorName = "inline",
    workers: int | None = None,
) -> str:
    """Bring the run `config` in the folder `path` to its end, from its checkpoint if that is good; return its status.

    Results of another run, or damaged ones, are moved aside, never removed; `note` is told. `progress` is called with
    every row. Clients train on the `executor` with so many `workers`.
    """
    with RunDirectory(path) as directory:
        state = state_of(path, config)
        if state == "finished":  # by another sweep, while this one was busy elsewhere
            return str(Run.load(path).summary.get("status", "finished"))
        resume = state == "interrupted" and _is_sound(path)
        if not resume and (moved := directory.move_aside()) is not None and note is not None:
            found = "a run with other settings" if state == "other" else "a damaged run"
            note(f"{found} was there, and is now {moved.name}")
        listeners = () if progress is None else (Calling(progress),)
        options: dict[str, Any] = {"executor": executor, "workers": workers, "resume": resume}
        return str(run(config, directory, listeners, tensorboard=False, **options)["status"])


def _is_sound(path: Path) -> bool:
    """Whether a run can go on. From a damaged checkpoint it begins anew; other errors leave it where it is."""
    try:
        sound_checkpoint(path)
    except DataError:
        return False
    return True


CHEAP_TASKS = ("mushrooms", "quadratic", "logistic")
"""Tasks of which several runs go at once, one in each process."""


COST = {"cifar10": 80.0, "celeba": 100.0, "shakespeare": 6000.0}
"""Roughly how much longer an upload takes than one of a cheap task."""


@final
@dataclass(frozen=True, slots=True)
class Planned:
    """One run: what it is called in tables and figures, where it stands in the sweep, and its configuration."""

    method: str
    config: Config
    at: Mapping[str, float | str] = field(default_factory=dict)
    """The values of what the entry varies, such as the concurrency."""

    @property
    def folder(self) -> str:
        return f"{self.config.name}-seed{self.config.seed}"

    @property
    def cheap(self) -> bool:
        return self.config.task.name in CHEAP_TASKS

    @property
    def work(self) -> float:
        """How much there is to do, to be held against other runs: its uploads, as far as its limits tell, and cost."""
        stop, timing = self.config.stop, self.config.timing
        limits = (
            stop.uploads,
            stop.server_steps and stop.server_steps * self.config.algorithm.buffer_size,
            stop.virtual_time and stop.virtual_time * timing.rate,
        )
        uploads = min((float(limit) for limit in limits if limit is not None), default=1.0)
        return uploads * COST.get(self.config.task.name, 1.0)
