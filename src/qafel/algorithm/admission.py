"""Admission of uploads: no duplicates, and a weight by staleness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from qafel.algorithm.parts import Part
from qafel.algorithm.state import State
from qafel.errors import ConfigError, DataError, DuplicateUpload, require, require_numbers
from qafel.parts import raise_part_failed
from qafel.text import path_of

WINDOW = 64
"""How many of a client's uploads may arrive out of order."""
_ALL_SEEN = (1 << WINDOW) - 1

StalenessLaw: TypeAlias = Callable[[int], float | None]
"""From staleness τ to a weight; None rejects the upload. A law with an attribute `abandon_after` also stops training
whose start is that many versions old.
"""


@final
@dataclass(frozen=True, slots=True)
class PolynomialStaleness:
    """1 up to the cut-off b, then 1/(1 + τ − b)ᵃ.

    a = 0 weighs all alike; a = 1/2, b = 0 is the paper's 1/√(1+τ); FedAsync's polynomial law has any a.
    """

    exponent: float = 0.0
    cutoff: int = 0

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.exponent >= 0, "the staleness exponent is zero or more", self.exponent)
        require(self.cutoff >= 0, "the staleness cut-off is zero or more", self.cutoff)

    def __call__(self, staleness: int) -> float:
        if not self.exponent:
            return 1.0
        return float((1 + max(0, staleness - self.cutoff)) ** -self.exponent)


def weigh(law: StalenessLaw, staleness: int) -> float | None:
    """The law's weight, checked; None: reject."""
    try:
        weight: Any = law(staleness)
    except Exception as error:
        raise_part_failed(error, law)
    if type(weight) is float and 0 <= weight < math.inf:
        return weight
    if weight is None:
        return None
    try:
        sound = math.isfinite(weight) and weight >= 0
    except TypeError:
        sound = False
    if not sound:
        raise ConfigError(
            f"a staleness law returns a finite weight of zero or more, or None; "
            f"{path_of(law)}({staleness}) is {weight!r}"
        )
    return float(weight)


@final
class ReplayWindows(Part):
    """Which uploads were counted before: a sliding window per client, as in IPsec's anti-replay (RFC 4303, 3.4.3).

    Two integers per client: the highest sequence taken, and a bit for each of the 64 up to it. Uploads of one
    client may arrive out of order within the window; older ones count as seen.
    """

    __slots__ = ("windows",)

    def __init__(self) -> None:
        self.windows: dict[int, tuple[int, int]] = {}

    def check(self, sender: int, sequence: int, anew: bool = False) -> tuple[int, int]:
        """The sender's window once this upload counts. Raises if it counted before, or is too old to tell.

        `anew`: the sender's numbers start again, and earlier uploads do not matter.
        """
        highest, seen = (-1, 0) if anew else self.windows.get(sender, (-1, 0))
        age = highest - sequence
        if age >= WINDOW:
            raise DuplicateUpload(
                f"upload {sequence} of client {sender} is {age} behind its latest, {highest}: not taken"
            )
        if age >= 0 and seen >> age & 1:
            raise DuplicateUpload(f"upload {sequence} of client {sender} was taken before")
        if age >= 0:
            return highest, seen | 1 << age
        return sequence, (seen << min(-age, WINDOW) | 1) & _ALL_SEEN

    def state(self) -> State:
        return {
            "sender": np.fromiter(self.windows, np.uint64, len(self.windows)),
            "highest": np.fromiter((highest for highest, _ in self.windows.values()), np.int64),
            "mask": np.fromiter((mask for _, mask in self.windows.values()), np.uint64),
        }

    def restore_(self, state: Any) -> None:
        columns = [state[name].tolist() for name in ("sender", "highest", "mask")]
        sound = len(set(map(len, columns))) == 1 and len(set(columns[0])) == len(columns[0])
        if not sound or not all(0 <= highest < 2**32 for highest in columns[1]):
            raise DataError("the clients' last sequence numbers do not fit together")
        self.windows = {sender: (highest, mask) for sender, highest, mask in zip(*columns, strict=True)}
