"""One figure or table of the paper: what to run, and small functions of what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

from qafel.experiments.measured import Measured, Missing
from qafel.experiments.panels import Panel
from qafel.experiments.plan import Planned, Scale
from qafel.experiments.tables import Table


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What the measured runs say of a claim, and the figures that decide it."""

    result: Literal["pass", "fail", "not comparable"]
    because: str

    @staticmethod
    def of(holds: bool, because: str) -> Verdict:
        return Verdict("pass" if holds else "fail", because)

    @staticmethod
    def none(because: str) -> Verdict:
        return Verdict("not comparable", because)

    def __str__(self) -> str:
        return f"{self.result}, because {self.because}" if self.result == "not comparable" else self.result


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A published statement, where it is made, and the function of measured runs that decides it."""

    where: str
    text: str
    check: Callable[[Measured], Verdict]
    quick_suffices: bool = False
    """Whether a quick run can decide it."""

    def verdict(self, measured: Measured) -> Verdict:
        if measured.quick and not self.quick_suffices:
            return Verdict.none("this was a quick run")
        try:
            return self.check(measured)
        except Missing as error:
            return Verdict.none(str(error))


def _nothing(measured: Measured) -> tuple[str, ...]:
    return ()


@final
@dataclass(frozen=True)
class Entry:
    """An entry of `qafel paper`."""

    name: str
    title: str
    paper: str
    """Where it is in the paper."""
    time: str
    """Roughly how long a full run takes, on two cores."""
    plan: Callable[[Scale], Sequence[Planned]]
    table: Callable[[Measured], Table]
    panels: Callable[[Measured], Sequence[Panel]]
    claims: tuple[Claim, ...]
    notes: Callable[[Measured], Sequence[str]] = _nothing
    """What a reader should know that the table does not say."""
    seeds: int = 3
