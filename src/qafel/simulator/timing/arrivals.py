"""Who starts training when.

An open loop is any iterable of (time, client), or (time, client, duration), in the order of time: a user's own law is a
generator function. The closed loops, in which a client's start follows from what happened before, are values
that the simulation knows: `AlwaysTraining` and `Rounds`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final

import numpy as np

from qafel.errors import ConfigError, DataError
from qafel.rng import Stream
from qafel.simulator.timing.durations import BLOCK, uniform_draws

Arrival: TypeAlias = tuple[float, int] | tuple[float, int, float]
Draw: TypeAlias = Literal["with-replacement", "without-replacement"]


@final
@dataclass(frozen=True, slots=True)
class AlwaysTraining:
    """Every client trains all the time: when its update is taken, it starts again at once, before the server steps."""


@final
@dataclass(frozen=True, slots=True)
class Rounds:
    """Synchronous: a cohort starts from one version; the next one starts when the server has stepped.

    A round ends with the K-th update, or at the timeout with what has come; K is the algorithm's buffer size.
    `over_selection` starts that share more clients than are waited for. Who comes late is not taken.
    """

    over_selection: float = 0.0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.over_selection < 0:
            raise ConfigError(f"over-selection is zero or more, got {self.over_selection}")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigError(f"a round's timeout is positive, got {self.timeout}")

    def cohort(self, seed: int, version: int, clients: int, buffer_size: int) -> list[int]:
        """The clients of a round, drawn without replacement."""
        size = min(clients, round(buffer_size * (1 + self.over_selection)))
        if size < buffer_size:
            raise ConfigError(f"a round of {buffer_size} needs as many clients, there are {clients}")
        generator = Stream.named(seed, "cohort", number=version).generator()
        chosen: list[int] = generator.choice(clients, size=size, replace=False, shuffle=False).tolist()
        return chosen


Arrivals: TypeAlias = AlwaysTraining | Rounds | Iterable[Arrival]


def draw_clients(seed: int, clients: int, draw: Draw) -> Iterator[int]:
    """Clients one after another: each time any of them, or each once in every pass."""
    number = 0
    while True:
        generator = Stream.named(seed, "client", number=number).generator()
        block = (
            generator.permutation(clients) if draw == "without-replacement" else generator.integers(clients, size=BLOCK)
        )
        yield from block.tolist()
        number += 1


@final
@dataclass(frozen=True, slots=True)
class ConstantRate:
    """One arrival every 1/rate."""

    seed: int
    clients: int
    rate: float
    draw: Draw = "with-replacement"

    def __iter__(self) -> Iterator[Arrival]:
        for number, client in enumerate(draw_clients(self.seed, self.clients, self.draw)):
            yield number / self.rate, client


@final
@dataclass(frozen=True, slots=True)
class Poisson:
    """Arrivals with independent exponential gaps of mean 1/rate."""

    seed: int
    clients: int
    rate: float
    draw: Draw = "with-replacement"

    def __iter__(self) -> Iterator[Arrival]:
        gaps = uniform_draws(self.seed, "arrival")
        now = 0.0
        for number, client in enumerate(draw_clients(self.seed, self.clients, self.draw)):
            now -= float(np.log1p(-gaps[number])) / self.rate
            yield now, client


@final
@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals from a CSV file with the columns time, client and, if wanted, duration."""

    path: Path
    clients: int

    def __iter__(self) -> Iterator[Arrival]:
        before = 0.0
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                if not {"time", "client"} <= set(reader.fieldnames or ()):
                    raise DataError(f"{self.path}: the first line names the columns time, client and perhaps duration")
                for row in reader:
                    arrival = self._read(row, reader.line_num, before)
                    before = arrival[0]
                    yield arrival
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"trace {self.path} cannot be read: {error}") from None

    def _read(self, row: dict[str, str], line: int, before: float) -> Arrival:
        try:
            time, client = float(row["time"]), int(row["client"])
            duration = float(row["duration"]) if row.get("duration") else None
        except (TypeError, ValueError):
            raise DataError(
                f"{self.path}, line {line}: expected time,client[,duration], found {list(row.values())}"
            ) from None
        if not before <= time < float("inf"):
            raise DataError(f"{self.path}, line {line}: times ascend from 0; {time} comes after {before}")
        if not 0 <= client < self.clients:
            raise DataError(f"{self.path}, line {line}: clients are 0 to {self.clients - 1}, found {client}")
        if duration is None:
            return time, client
        if not 0 <= duration < float("inf"):
            raise DataError(f"{self.path}, line {line}: a duration is zero or more, found {duration}")
        return time, client, duration
