"""Which runs may be compared: those of one task, measured by one metric with one goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.results.report_styles import Style, styles_of
from qafel.results.runs import Run

_BETTER = {"min": "lower is better", "max": "higher is better"}


@final
@dataclass(frozen=True)
class Group:
    """Runs of one kind with their styles; `goal` is "min" or "max"."""

    task: str
    metric: str
    goal: str
    runs: tuple[Run, ...]
    styles: tuple[Style, ...]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.task, self.metric, _BETTER[self.goal])))

    @property
    def reference(self) -> int:
        """The run to compare traffic with: the first FedBuff, else the first; one that came to its end, if any did."""
        sound = [index for index, run in enumerate(self.runs) if run.finished and not run.diverged]
        candidates = sound or range(len(self.runs))
        return next((index for index in candidates if _is_fedbuff(self.runs[index])), candidates[0])

    @property
    def targets(self) -> tuple[float, ...]:
        """The metric's values that the runs are to reach, each once."""
        stated = (run.number("target") for run in self.runs)
        return tuple(sorted({target for target in stated if np.isfinite(target)}))

    @property
    def shared_target(self) -> float | None:
        """The target, if all runs have the same one."""
        stated = {run.number("target") for run in self.runs}
        return self.targets[0] if len(stated) == len(self.targets) == 1 else None


def groups_of(runs: Sequence[Run]) -> tuple[Group, ...]:
    """The groups in the order of their first runs; every run keeps the style that it has among all."""
    members: dict[tuple[str, str, str], list[int]] = {}
    for index, run in enumerate(runs):
        members.setdefault(_kind(run, runs), []).append(index)
    styles = styles_of(runs)
    return tuple(
        Group(*kind, tuple(runs[index] for index in chosen), tuple(styles[index] for index in chosen))
        for kind, chosen in members.items()
    )


def _kind(run: Run, runs: Sequence[Run]) -> tuple[str, str, str]:
    """Task, metric and goal; what a run that was killed does not state, it has from another run of its task."""
    alike = (run, *(other for other in runs if other.task == run.task))
    metric = next((str(name) for other in alike if (name := other.summary.get("metric_name"))), "metric")
    goal = next((goal for other in alike if (goal := other.summary.get("metric_goal")) in ("min", "max")), "min")
    return run.task, metric, str(goal)


def _is_fedbuff(run: Run) -> bool:
    return "fedbuff" in run.name.casefold() or str(run.summary.get("algorithm", "")).casefold() == "fedbuff"
