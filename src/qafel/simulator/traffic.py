"""What crossed: bytes and staleness, counted as messages go by, never computed from a formula."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(slots=True)
class Traffic:
    """Running totals of a run. Rejected uploads crossed, too: their bytes count, their number is apart."""

    uploads: int = 0
    rejected_uploads: int = 0
    upload_bytes: int = 0
    broadcasts: int = 0
    broadcast_bytes: int = 0
    received_bytes: int = 0
    staleness_counts: list[int] = field(default_factory=list)
    """How many updates had staleness 0, 1, 2, …"""

    def count_upload(self, message: bytes, staleness: int) -> None:
        self.uploads += 1
        self.upload_bytes += len(message)
        if staleness >= len(self.staleness_counts):
            self.staleness_counts.extend([0] * (staleness + 1 - len(self.staleness_counts)))
        self.staleness_counts[staleness] += 1

    def count_rejected(self, message: bytes) -> None:
        self.rejected_uploads += 1
        self.upload_bytes += len(message)

    def count_broadcast(self, message: bytes, recipients: int) -> None:
        """A broadcast is sent once; every recipient receives it."""
        self.broadcasts += 1
        self.broadcast_bytes += len(message)
        self.received_bytes += len(message) * recipients

    @property
    def total_bytes(self) -> int:
        """Uploaded, and broadcast once."""
        return self.upload_bytes + self.broadcast_bytes


def histogram_mean(counts: list[int]) -> float:
    """The mean staleness that a histogram shows."""
    return sum(tau * count for tau, count in enumerate(counts)) / max(1, sum(counts))
