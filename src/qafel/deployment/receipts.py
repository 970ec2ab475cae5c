"""What became of a client's uploads: how it learns that one counts, or why not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import final

from qafel.errors import DataError


@final
@dataclass(slots=True)
class Receipt:
    """For one client, of one group of uploads that became safe together."""

    accepted: list[tuple[int, int]] = field(default_factory=list)
    """(sequence, the version whose buffer took it)"""
    duplicate: list[int] = field(default_factory=list)
    """Sequences that were counted before, or are too old to tell."""
    highest: int = -1
    """With duplicates: the highest sequence that the server knows of this client, should it have lost its own count."""
    rejected: list[tuple[int | None, str, str]] = field(default_factory=list)
    """(sequence where it could be read, reason, explanation)"""

    def extend(self, other: Receipt) -> None:
        self.accepted += other.accepted
        self.duplicate += other.duplicate
        self.highest = max(self.highest, other.highest)
        self.rejected += other.rejected

    def to_bytes(self) -> bytes:
        return json.dumps([self.accepted, self.duplicate, self.highest, self.rejected]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Receipt:
        try:
            accepted, duplicate, highest, rejected = json.loads(data)
            return Receipt(
                [(int(sequence), int(version)) for sequence, version in accepted],
                [int(sequence) for sequence in duplicate],
                int(highest),
                [(None if s is None else int(s), str(reason), str(text)) for s, reason, text in rejected],
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"this is no receipt: {error}") from None
