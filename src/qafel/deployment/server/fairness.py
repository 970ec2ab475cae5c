"""Fair shares: no client dominates the recent updates, and no client waits for clients that left.

Each client has a bucket. An accepted update fills its sender's bucket by one and empties every bucket by max_share/n,
where n clients are active. The server refuses a client whose bucket is full (eight updates). In the long run a client
therefore gets at most `max_share` times an equal share. It cannot save up a share for a burst. If at most `max_share`
clients are active, the server refuses nobody.

A client is active if the server accepted an update of it within three of its longest recent pauses between accepted
updates, at least five seconds and at most ten minutes. Rejected uploads make nobody active.

Buckets also empty with time, by one update per *turn*. A turn is the longest recent pause of an active client, at least
five seconds and at most ten minutes. In a turn every active client sends about one update, so time alone gives nobody
more than an equal share. It guarantees progress: **the server refuses no client for longer than one turn after its last
accepted update**, however many clients leave, stall or send rejected uploads.

A new client empties all buckets by 8/n: the others sent what is under way before they could know of it. A checkpoint
keeps the buckets, and the journal says whose updates followed it. A restart does not reset shares. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final, NamedTuple, final

from qafel.errors import OverShare
from qafel.runs.progress import Amount, Count

_BUCKET: Final = 8.0  # the updates that a client may have under way, which may arrive together
_PAUSES: Final = 3.0
_FORGET: Final = 0.8  # weight of a long pause after each further update
_LEAST_S: Final = 5.0
_MOST_S: Final = 600.0
_REMEMBERED: Final = 10_000  # clients
_RENEW_S: Final = 0.5  # between two counts of the active clients


@final
class Standing(NamedTuple):
    """One client's share, for a checkpoint."""

    client: Count
    level: Amount
    """Of its bucket."""
    silent_s: Amount
    """Since its last accepted update."""
    pause_s: Amount
    """The longest recent one between two accepted updates."""


class _Member(NamedTuple):
    """One client, at its last accepted update."""

    level: float
    emptied: float
    """How much every bucket had been emptied by then."""
    accepted_at: float
    pause_s: float

    def is_active(self, now: float) -> bool:
        return now - self.accepted_at <= max(_LEAST_S, _PAUSES * self.pause_s)


@final
class FairShare:
    """The clients' buckets, and which clients are active."""

    __slots__ = ("_active", "_emptied", "_max_share", "_members", "_renew_at", "_turn_s")

    def __init__(self, max_share: float | None) -> None:
        """`max_share`: a multiple of an equal share; None: no limit."""
        self._max_share = max_share
        self._emptied = 0.0
        """How much every bucket was emptied by since the start."""
        self._members: dict[int, _Member] = {}
        """In the order of their last accepted updates."""
        self._active = 0
        self._turn_s = _LEAST_S
        self._renew_at = float("-inf")

    def restore(self, saved: Sequence[Standing], since: Sequence[int], now: float) -> None:
        """Resume after a restart.

        saved  the shares at the checkpoint
        since  the senders of the updates accepted after it, in order

        The length of the downtime is unknown, so each sender in `since` counts as accepted now.
        """
        self._members = {
            client: _Member(level, self._emptied, now - silent_s, pause_s)
            for client, level, silent_s, pause_s in sorted(saved, key=lambda standing: -standing.silent_s)
        }
        for client in since:
            before = self._members.pop(client, None) or _Member(0.0, self._emptied, now, 0.0)
            self._members[client] = before._replace(accepted_at=now)
        self._count_active(now)
        pauses = {client: member.pause_s for client, member in self._members.items()}
        for client in since:
            self.count(client, now)
            self._members[client] = self._members[client]._replace(pause_s=pauses[client])

    def check(self, client: int, now: float) -> None:
        """Raise `OverShare` if the client already has its share of the recent updates."""
        if self._max_share is None or (member := self._members.get(client)) is None:
            return
        if now >= self._renew_at:
            self._count_active(now)
        if self._active > self._max_share and self._level(member, now) + 1 > _BUCKET:
            raise OverShare(
                f"client {client} has its share of the recent updates, {self._max_share:g} times an equal one among "
                f"{self._active} active clients: wait until others have sent some, or "
                f"{max(0.0, member.accepted_at + self._turn_s - now):.0f} s"
            )

    def count(self, client: int, now: float) -> None:
        """Record an accepted update."""
        if self._max_share is None:
            return
        if now >= self._renew_at:
            self._count_active(now)
        before = self._members.pop(client, None)
        if before is None:
            self._active += 1
            self._emptied += _BUCKET / self._active
            if len(self._members) >= _REMEMBERED:
                del self._members[next(iter(self._members))]
        self._emptied += self._max_share / max(1, self._active)
        if before is None:
            self._members[client] = _Member(1.0, self._emptied, now, 0.0)
        else:
            pause_s = max(now - before.accepted_at, _FORGET * before.pause_s)
            self._members[client] = _Member(min(_BUCKET, self._level(before, now) + 1), self._emptied, now, pause_s)

    def standings(self, now: float) -> list[Standing]:
        """The shares of all clients that are remembered."""
        return [
            Standing(client, max(0.0, self._drained(member)), now - member.accepted_at, member.pause_s)
            for client, member in self._members.items()
        ]

    def _drained(self, member: _Member) -> float:
        """The level after what updates emptied, without what time does."""
        return member.level - (self._emptied - member.emptied)

    def _level(self, member: _Member, now: float) -> float:
        """By updates or by time, whichever emptied more: their sum would exceed a share."""
        by_time = member.level - (now - member.accepted_at) / self._turn_s
        return max(0.0, min(self._drained(member), by_time))

    def _count_active(self, now: float) -> None:
        self._renew_at = now + _RENEW_S
        recent = takewhile(lambda member: now - member.accepted_at <= _MOST_S, reversed(self._members.values()))
        pauses = [member.pause_s for member in recent if member.is_active(now)]
        self._active = len(pauses)
        self._turn_s = min(_MOST_S, max(_LEAST_S, *pauses, 0.0))
