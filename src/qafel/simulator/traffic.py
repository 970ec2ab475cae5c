"""What crossed: bytes and staleness, counted as messages go by, never computed from a formula."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(slots=True)
class Traffic:
    """Running totals of a run."""

    uploads: int = 0
    upload_bytes: int = 0
    broadcasts: int = 0
    broadcast_bytes: int = 0
    received_bytes: int = 0
    staleness_counts: list[int] = field(default_factory=list)

    def count_upload(self, message: bytes, staleness: int) -> None:
        self.uploads += 1
        self.upload_bytes += len(message)
        if staleness >= len(self.staleness_counts):
            self.staleness_counts.extend([0] * (staleness + 1 - len(self.staleness_counts)))
        self.staleness_counts[staleness] += 1

    def count_broadcast(self, message: bytes, recipients: int) -> None:
        """A broadcast is sent once; every recipient receives it."""
        self.broadcasts += 1
        self.broadcast_bytes += len(message)
        self.received_bytes += len(message) * recipients

    @property
    def staleness_mean(self) -> float:
        return sum(tau * count for tau, count in enumerate(self.staleness_counts)) / max(1, self.uploads)

    @property
    def staleness_max(self) -> int:
        return max(0, len(self.staleness_counts) - 1)
