"""Which client starts when.

An open loop is any iterable of (time, client) or (time, client, duration), in the order of time. A custom law is a
generator function. In a closed loop, a client's start depends on earlier events: `AlwaysTraining` and `Rounds`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np

from qafel.errors import ConfigError, DataError, require, require_numbers
from qafel.rng import Stream
from qafel.simulator.timing.durations import BLOCK, NOT_BOUND, Law, uniform_draws

Arrival: TypeAlias = tuple[float, int] | tuple[float, int, float]
Draw: TypeAlias = Literal["with-replacement", "without-replacement"]


@final
@dataclass(frozen=True, slots=True)
class AlwaysTraining:
    """Every client always trains: once its update arrives, it starts again immediately, before the server steps."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Synchronous: a cohort starts from one version, and the next one after the server's step.

    A round ends with update K, the algorithm's buffer size, or at the timeout. `over_selection` is the share of
    additional clients: 0.3 starts 13 for a buffer of 10. If the algorithm's `max_staleness` is 0, as in FedAvg, updates
    of earlier rounds are rejected. Otherwise they count in the current round, and a client with a memory trains on.
    """

    over_selection: float = 0.0
    timeout: float | None = None

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.over_selection >= 0, "over-selection is zero or more", self.over_selection)
        require(self.timeout is None or self.timeout > 0, "a round's timeout is positive", self.timeout)

    def cohort(self, seed: int, version: int, clients: int, buffer_size: int, busy: Collection[int] = ()) -> list[int]:
        """The clients of a round, drawn without replacement from those that are not busy."""
        size = min(clients, round(buffer_size * (1 + self.over_selection)))
        if size < buffer_size:
            raise ConfigError(f"a round of {buffer_size} needs as many clients, there are {clients}")
        generator = Stream.named(seed, "cohort", number=version).generator()
        free: Any = [client for client in range(clients) if client not in busy] if busy else clients
        size = min(size, clients - len(busy))
        chosen: list[int] = generator.choice(free, size=size, replace=False, shuffle=False).tolist() if size else []
        return chosen


Arrivals: TypeAlias = AlwaysTraining | Rounds | Iterable[Arrival]


def draw_clients(seed: int, clients: int, draw: Draw) -> Iterator[int]:
    """An endless sequence of clients: independent draws, or a permutation per pass."""
    number = 0
    while True:
        generator = Stream.named(seed, "client", number=number).generator()
        block = (
            generator.permutation(clients) if draw == "without-replacement" else generator.integers(clients, size=BLOCK)
        )
        yield from block.tolist()
        number += 1


@dataclass(frozen=True, kw_only=True)
class _AtRate(Law):
    rate: float
    draw: Draw = "with-replacement"
    seed: int | None = None
    clients: int | None = None

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.rate > 0, "arrivals per unit of time are positive", self.rate)
        require(self.draw in get_args(Draw), f"draw is one of {', '.join(get_args(Draw))}", self.draw)

    def _numbered_clients(self) -> Iterator[tuple[int, int]]:
        if self.seed is None or self.clients is None:
            raise ConfigError(NOT_BOUND)
        return enumerate(draw_clients(self.seed, self.clients, self.draw))


@final
@dataclass(frozen=True, kw_only=True)
class ConstantRate(_AtRate):
    """One arrival every 1/rate. By default, seed and number of clients are the run's."""

    def __iter__(self) -> Iterator[Arrival]:
        for number, client in self._numbered_clients():
            yield number / self.rate, client


@final
@dataclass(frozen=True, kw_only=True)
class Poisson(_AtRate):
    """Arrivals with independent exponential gaps of mean 1/rate. Seed and clients as for `ConstantRate`."""

    def __iter__(self) -> Iterator[Arrival]:
        gaps = uniform_draws(self.seed, "arrival")
        now = 0.0
        for number, client in self._numbered_clients():
            now -= float(np.log1p(-gaps[number])) / self.rate
            yield now, client


@final
@dataclass(frozen=True)
class Trace(Law):
    """Arrivals from a CSV file with the columns time, client and, optionally, duration."""

    path: str | PathLike[str]
    clients: int | None = None

    def __post_init__(self) -> None:
        require(isinstance(self.path, str | PathLike), "a trace is the path of a CSV file", repr(self.path))

    def __iter__(self) -> Iterator[Arrival]:
        before = 0.0
        try:
            with open(self.path, encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                if not {"time", "client"} <= set(reader.fieldnames or ()):
                    raise DataError(
                        f"{self.path}: the first line names the columns time, client and optionally duration"
                    )
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
        last = math.inf if self.clients is None else self.clients - 1
        if not 0 <= client <= last:
            raise DataError(f"{self.path}, line {line}: clients are 0 to {last}, found {client}")
        if duration is None:
            return time, client
        if not 0 <= duration < float("inf"):
            raise DataError(f"{self.path}, line {line}: a duration is zero or more, found {duration}")
        return time, client, duration
