"""Which uploads were counted before: a sliding window per client, as in IPsec's anti-replay (RFC 4303, 3.4.3)."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DuplicateUpload

WINDOW = 64


@final
class ReplayWindows:
    """Two integers per client: the highest sequence taken, and a bit for each of the 64 up to it.

    Uploads of one client may arrive out of order within the window; older ones count as seen.
    """

    __slots__ = ("windows",)

    def __init__(self) -> None:
        self.windows: dict[int, tuple[int, int]] = {}

    def check(self, sender: int, sequence: int) -> None:
        """Raise if this upload was taken before, or is too old to tell."""
        highest, seen = self.windows.get(sender, (-1, 0))
        age = highest - sequence
        if age >= WINDOW:
            raise DuplicateUpload(
                f"upload {sequence} of client {sender} is {age} behind its latest, {highest}: not taken"
            )
        if age >= 0 and seen >> age & 1:
            raise DuplicateUpload(f"upload {sequence} of client {sender} was taken before")

    def take(self, sender: int, sequence: int) -> None:
        highest, seen = self.windows.get(sender, (-1, 0))
        if sequence > highest:
            seen = (seen << min(sequence - highest, WINDOW) | 1) & (1 << WINDOW) - 1
            self.windows[sender] = (sequence, seen)
        else:
            self.windows[sender] = (highest, seen | 1 << (highest - sequence))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The windows as three columns, for a checkpoint."""
        return {
            "seen_sender": np.fromiter(self.windows, np.uint64, len(self.windows)),
            "seen_highest": np.fromiter((highest for highest, _ in self.windows.values()), np.int64),
            "seen_mask": np.fromiter((mask for _, mask in self.windows.values()), np.uint64),
        }

    def from_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        columns = (arrays[name].tolist() for name in ("seen_sender", "seen_highest", "seen_mask"))
        self.windows = {sender: (highest, mask) for sender, highest, mask in zip(*columns, strict=True)}
