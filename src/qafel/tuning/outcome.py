"""What came of a run, and of a trial's runs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np

State: TypeAlias = Literal["reached", "finished", "cut off", "missed", "diverged", "failed", "running"]
GOOD: tuple[State, ...] = ("reached", "finished")

MISSED = 1e30
"""The score of a trial that used up its budget begins here; TPE looks at the order of scores alone."""
DIVERGED = 1e33
FAILED = 1e34
FARTHEST = 100.0


@final
@dataclass(frozen=True)
class RunOutcome:
    """What came of one run: `cost` until the target, or until the run's end."""

    seed: int
    state: State
    cost: float
    gap: float
    metric: float | None
    uploads: int
    wall_s: float


@final
@dataclass(frozen=True)
class Outcome:
    """What came of a trial: `score` is what the search sees, smaller is better."""

    state: State
    score: float
    gap: float
    runs: tuple[RunOutcome, ...]
    error: str = ""
    """Why it failed."""

    @property
    def good(self) -> bool:
        """Whether every run did what it should, so that the score is measured and not an estimate."""
        return self.state in GOOD

    @property
    def wall_s(self) -> float:
        return sum(run.wall_s for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Outcome:
        return Outcome(**{**data, "runs": tuple(RunOutcome(**run) for run in data["runs"])})


def combine(runs: Sequence[RunOutcome], seeds: int) -> Outcome:
    """One outcome of a trial's runs, of which the last may have ended the trial before all seeds had their turn.

    Measured, the score is the mean cost. A trial that was cut off gets an estimate of it, for the run that was cut off
    no less than its other seeds took. One that used up its budget comes after all those, by how far it stayed away;
    one that diverged comes last.
    """
    last = runs[-1]
    state = "cut off" if last.state == "reached" and len(runs) < seeds else last.state
    gap = (sum(run.gap for run in runs) + (seeds - len(runs)) * last.gap) / seeds
    costs = [run.cost for run in runs]
    if last.state == "cut off":
        costs[-1] = estimate(last)
        costs[-1] = max(costs[-1], float(np.mean(costs[:-1]))) if len(costs) > 1 else costs[-1]
    match state:
        case "diverged":
            score = DIVERGED
        case "missed":
            score = MISSED * (1 + max(0.0, gap))
        case _:
            score = float(np.mean(costs))
    return Outcome(state, score, gap, tuple(runs))


def estimate(run: RunOutcome) -> float:
    """What a run that was cut off might have cost at its pace so far: cost / (1 − gap).

    From 1 − gap = 0.1 on the estimate grows with the gap alone, so that a run that got nowhere, or worse, has a slope.
    """
    gap = max(0.0, run.gap)
    return run.cost * (1 / (1 - gap) if gap <= 0.9 else 10 + 10 * (gap - 0.9))


def failure(error: str) -> Outcome:
    """What came of a trial that could not be run: after all others, with the sentence that says why."""
    return Outcome("failed", FAILED, FARTHEST, (), error)


def together(parts: Sequence[Outcome], seeds: int, allowance: float) -> Outcome:
    """One outcome of a trial whose seeds ran one by one, in their order: as if each had waited for the one before."""
    runs: list[RunOutcome] = []
    for part in parts:
        if part.state == "failed":
            return part
        runs += part.runs
        if not part.good or sum(run.cost for run in runs) >= allowance:
            break
    return combine(runs, seeds)
