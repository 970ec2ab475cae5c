"""No client has more than its share of the recent updates, and none waits for clients that are not there.

Each update of a client fills its bucket by one, and each update that is accepted, whoever sent it, empties all buckets
by max_share/n, where n clients are active. A full bucket, eight updates, takes no more. So one client's share is at
most `max_share` times an equal one, which is never less than one in n, and it cannot save it up for a burst; where no
more than `max_share` clients are active, nobody is limited. Without this, three of two hundred clients that send as
fast as they can have most of the updates, and so the model.

A client is active for three of its own longest recent pauses, at least five seconds and at most ten minutes: those who
fell silent neither hold up the others nor shrink their shares. A client that is new also empties all buckets by 8/n:
what the others have on their way was sent before they could know of it. When a fleet grows tenfold, each client may
send two or three windows more by it, and no honest one is refused because a crowd joins. Time is an argument.

A checkpoint keeps the buckets and who was heard of, and the journal says whose updates came after it: to kill the
server earns nobody a new share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, final

from qafel.errors import OverShare

_BUCKET: Final = 8.0  # as many as a client has on its way, which may come at once
_PAUSES: Final = 3.0
_FORGET: Final = 0.8  # of a long pause, with each upload since
_LEAST_S: Final = 5.0
_MOST_S: Final = 600.0
_RENEW_S: Final = 0.5  # between two counts of who is active


@final
class Standing(NamedTuple):
    """How a client stands, for a checkpoint."""

    client: int
    level: float
    """Of its bucket."""
    silent_s: float
    pause_s: float
    """The longest recent one between two uploads."""


@final
class FairShare:
    """How full each client's bucket is, and who is active."""

    __slots__ = ("_active", "_emptied", "_heard", "_levels", "_max_share", "_renew_at")

    def __init__(self, max_share: float | None) -> None:
        """`max_share` is a multiple of an equal share; None: any."""
        self._max_share = max_share
        self._emptied = 0.0
        """How much every bucket was emptied by, from the beginning."""
        self._levels: dict[int, tuple[float, float]] = {}
        """How full each bucket was after a client's last update, and `_emptied` then."""
        self._heard: dict[int, tuple[float, float]] = {}
        """When each client sent its last upload, accepted or not, and its longest recent pause."""
        self._active = 0
        self._renew_at = float("-inf")

    def restore(self, saved: Sequence[Standing], since: Sequence[int], now: float) -> None:
        """Go on after a restart, from how clients stood at a checkpoint and whose updates were accepted since.

        How long the server was away nobody knows. All may have sent their last upload just before it went.
        """
        self._levels = {client: (level, self._emptied) for client, level, _, _ in saved}
        self._heard = {client: (now - silent_s, pause_s) for client, _, silent_s, pause_s in saved}
        for client in since:
            self._heard[client] = now, self._heard.get(client, (now, 0.0))[1]
        self._count_active(now)
        for client in since:
            self.count(client)

    def check(self, client: int, now: float) -> None:
        """Note that a client has sent an upload; raise `OverShare` if it has its share of the recent ones already."""
        if self._max_share is None:
            return
        before = self._heard.get(client)
        if before is None:
            self._heard[client] = now, 0.0
            self._active += 1
            self._emptied += _BUCKET / self._active
        else:
            self._heard[client] = now, max(now - before[0], _FORGET * before[1])
        if now >= self._renew_at:
            self._count_active(now)
        if self._active > self._max_share and self._level(client) + 1 > _BUCKET:
            raise OverShare(
                f"client {client} has its share of the recent updates, {self._max_share:g} times an equal one among "
                f"{self._active} active clients: wait until others have sent some"
            )

    def count(self, client: int) -> None:
        """An update of this client was accepted."""
        if self._max_share is not None:
            self._emptied += self._max_share / max(1, self._active)
            self._levels[client] = min(_BUCKET, self._level(client) + 1), self._emptied

    def standings(self, now: float) -> list[Standing]:
        """How all clients that are remembered stand."""
        return [
            Standing(client, self._level(client), now - last, pause) for client, (last, pause) in self._heard.items()
        ]

    def _level(self, client: int) -> float:
        level, then = self._levels.get(client, (0.0, 0.0))
        return max(0.0, level - (self._emptied - then))

    def _count_active(self, now: float) -> None:
        self._renew_at = now + _RENEW_S
        self._heard = {client: heard for client, heard in self._heard.items() if now - heard[0] <= _MOST_S}
        self._levels = {client: level for client, level in self._levels.items() if client in self._heard}
        self._active = sum(now - last <= max(_LEAST_S, _PAUSES * pause) for last, pause in self._heard.values())
