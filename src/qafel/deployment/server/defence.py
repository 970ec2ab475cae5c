"""What a client may send: its identity, rate, norm and share of the updates. Cheap checks come first.

**Fair shares.** Each client has a bucket. An accepted update fills its sender's bucket by one and empties every bucket
by max_share/n, where n clients are active. The server refuses a client whose bucket is full (eight updates). In the
long run a client therefore gets at most `max_share` times an equal share. It cannot save up a share for a burst. If at
most `max_share` clients are active, the server refuses none.

A client is active if the server accepted an update of it within three of its longest recent pauses between accepted
updates, at least five seconds and at most ten minutes. Rejected uploads make no client active.

Buckets also empty with time, by one update per *turn*. A turn is the longest recent pause of an active client, at least
five seconds and at most ten minutes. In a turn every active client sends about one update, so time alone gives each at
most an equal share. It guarantees progress: **the server refuses no client for longer than one turn after its last
accepted update**, however many clients leave, stall or send rejected uploads.

A new client empties all buckets by 8/n, because the others sent their current updates before they could know of it. A
checkpoint keeps the buckets, and the journal has the updates after it. A restart does not reset shares. Time is an
argument.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from typing import Final, NamedTuple, final

import numpy as np

from qafel.algorithm import Admitted, Algorithm, Kept, Message, Needs, Server
from qafel.deployment.keys import Access, Verifier, key_number, signed_name
from qafel.deployment.server import DefenceSettings
from qafel.deployment.server.ledger import ClientShare, UploadNote
from qafel.errors import (
    ConfigError,
    DuplicateUpload,
    MemoryMismatch,
    NormTooLarge,
    OverShare,
    RateLimited,
    WrongSender,
)
from qafel.params import Vector
from qafel.tasks.protocol import Task, sample_weights

_USUAL_WEIGHT: Final = 10.0  # times the mean weight
_LEAST_VOTES: Final = 3  # clients, before the median counts
_MOST_VOTES: Final = 256
_FIRST_VOTE_S: Final = 600.0
_LEAST_VOTE_S: Final = 60.0
_LARGEST: Final = float(np.finfo(np.float32).max) / 2  # of a coordinate of the sum; leaves room for rounding
_BUCKET: Final = 8.0  # updates that a client may have in flight, which may arrive together
_PAUSES: Final = 3.0
_FORGET: Final = 0.8  # weight of a long pause after each further update
_LEAST_S: Final = 5.0
_MOST_S: Final = 600.0
_REMEMBERED: Final = 10_000  # clients
_RENEW_S: Final = 0.5  # between two counts of the active clients
_verifier: Final = lru_cache(maxsize=10_000)(Verifier)

log = logging.getLogger(__name__)


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

    def restore(self, saved: Sequence[ClientShare], since: Sequence[int], now: float) -> None:
        """Resume after a restart.

        saved  the shares at the checkpoint
        since  the senders of the updates accepted after it, in order

        The length of the downtime is unknown, so each sender in `since` counts as accepted now.
        """
        self._members = {
            client: _Member(level, self._emptied, now - silent_s, pause_s)
            for client, level, silent_s, pause_s in sorted(saved, key=lambda share: -share.silent_s)
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

    def client_shares(self, now: float) -> list[ClientShare]:
        """The shares of all clients that are remembered."""
        return [
            ClientShare(client, max(0.0, self._drained(member)), now - member.accepted_at, member.pause_s)
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


@final
class RunningMedian:
    """The median of the clients' last norms: one vote per client, however often it uploads.

    Rejected updates vote too. If only accepted ones did, a few clients near their optimum could exclude all others
    forever, because nothing would move the median. A silent client loses its vote after ten of its usual intervals.
    """

    def __init__(self, norms: Mapping[int, float], now: float) -> None:
        """`norms`: the clients' last norms before a restart."""
        self._votes = OrderedDict((client, (norm, now, _FIRST_VOTE_S)) for client, norm in norms.items())
        self._counted: dict[int, float] = {}
        """The votes that have not expired. `_sorted` has their norms in order, so that no upload sorts them again."""
        self._sorted: list[float] = []
        self._until = -math.inf
        """When the next vote expires."""

    def vote(self, client: int, norm: float, now: float) -> None:
        before = self._votes.pop(client, None)
        lasts_s = _FIRST_VOTE_S if before is None else max(_LEAST_VOTE_S, 10 * (now - before[1]))
        self._votes[client] = (norm, now, lasts_s)
        self._uncount(client)
        self._counted[client] = norm
        insort(self._sorted, norm)
        self._until = min(self._until, now + lasts_s)
        if len(self._votes) > _MOST_VOTES:
            self._uncount(self._votes.popitem(last=False)[0])

    def value(self, now: float) -> float | None:
        """The upper median; None if too few clients have a vote."""
        if now >= self._until:
            last = [(then + lasts_s, client) for client, (_, then, lasts_s) in self._votes.items()]
            self._counted = {client: self._votes[client][0] for until, client in last if now <= until}
            self._sorted = sorted(self._counted.values())
            self._until = min((until for until, _ in last if now <= until), default=math.inf)
        return self._sorted[len(self._sorted) // 2] if len(self._sorted) >= _LEAST_VOTES else None

    def _uncount(self, client: int) -> None:
        if (norm := self._counted.pop(client, None)) is not None:
            del self._sorted[bisect_left(self._sorted, norm)]

    def norms(self) -> dict[int, float]:
        return {client: norm for client, (norm, _, _) in self._votes.items()}


@final
class Allowance:
    """Tokens of each client: `rate` per second, of which it may save a `burst`."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: dict[int, tuple[float, float]] = {}
        """What each client had left, and when."""

    def spend(self, client: int, now: float) -> float:
        """Take a token and return 0, or return the time until there is one."""
        if math.isinf(self._rate):
            return 0.0
        left, then = self._left.get(client, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        if left < 1:
            return (1 - left) / self._rate
        self._left[client] = (left - 1, now)
        return 0.0


class Judged(NamedTuple):
    """An upload that passed every check."""

    note: UploadNote
    decoded: Vector
    admitted: Admitted


@final
@dataclass(slots=True)
class UploadChecker:
    """All checks that an upload must pass before the server receives it."""

    _algorithm: Algorithm
    _settings: DefenceSettings
    _clients: int
    """The number of clients of the task."""
    _keys: Mapping[int, str] | None = None
    """The registry of public keys, if there is one."""
    median: RunningMedian = field(default_factory=lambda: RunningMedian({}, 0.0))
    _run_id: str = ""
    """The run's identity, which signatures cover."""
    _has_new_key: Callable[[int, int], bool] = lambda client, key: False
    """Whether this key of a client is new, so that its upload numbers restart."""
    shares: FairShare = field(init=False)
    _needs: Needs = field(init=False)
    _keys_problem: str | None = None
    _allowance: Allowance = field(init=False)

    def __post_init__(self) -> None:
        rate = self._settings.max_rate or math.inf
        self._allowance = Allowance(rate, max(1.0, 10 * rate))
        self.shares = FairShare(self._settings.max_share)
        self._needs = self._algorithm.needs

    def judged(self, now: float) -> tuple[dict[int, float], list[ClientShare]]:
        """What a restarted server needs to judge as before: the clients' norms and shares."""
        return self.median.norms(), self.shares.client_shares(now)

    @property
    def registered(self) -> int:
        """The number of clients with a key; zero without a registry."""
        return len(self._keys or {})

    def knows(self, client: int) -> bool:
        return client in self._keys if self._keys is not None else 0 <= client < self._clients

    async def renew_keys(self, access: Access) -> None:
        """Reload the registry; if that fails, keep the last one. Removed clients are unknown from now on.

        The file may be missing or incomplete while it is replaced. That must not end the run or allow unsigned uploads.
        """
        problem = None if self._keys is None else "the registry of clients is missing"
        try:
            keys = await asyncio.to_thread(access.registry)
            if keys is not None:
                self._keys, problem = keys, None
        except ConfigError as error:
            problem = str(error)
        if problem not in (None, self._keys_problem):
            log.warning("%s. Keeping the last registry.", problem)
        self._keys_problem = problem

    def check_signature(
        self, client: int, subject: str, data: bytes, signature: str | None, number: int | None = None
    ) -> None:
        """Raise unless the client signed this, if there is a registry. `number` as in `signed_name`."""
        if self._keys is not None:
            _verifier(self._keys[client]).check(signed_name(subject, self._run_id, number), data, signature)

    def check(
        self, server: Server, client: int, upload: Message, now: float, follows: int | None = None, received: int = 0
    ) -> Judged:
        """Return how to apply this upload of `client`; raise if it is rejected.

        follows   the upload that the client's memory follows, if the method has memories
        received  bytes that the client received since its previous upload
        """
        if upload.sender != client:
            raise WrongSender(f"the message names client {upload.sender}, but client {client} sent it")
        key = self._key_number(client)
        admitted = server.admit(upload, anew=self._has_new_key(client, key))
        if self._needs.client_memory:
            self._check_memory(server, client, upload.sequence, follows)
        if wait_s := self._allowance.spend(client, now):
            raise RateLimited(f"expected at most {self._settings.max_rate:g} uploads per second: wait {wait_s:.1f} s")
        self.shares.check(client, now)
        decoded = self._algorithm.client_quantizer.decode(upload.payload, upload.dimension)
        return Judged(self._bound(server, upload, decoded, now, key, received), decoded, admitted)

    def check_number(self, server: Server, client: int, sequence: int) -> None:
        """Raise if an upload with this number was counted. A new key restarts a client's numbers."""
        server.seen.check(client, sequence, self._has_new_key(client, self._key_number(client)))

    def _check_memory(self, server: Server, client: int, sequence: int, follows: int | None) -> None:
        """Raise unless the client's memory follows its last counted upload. Numbers must increase.

        The client may have lost its folder, or have given up an upload of which a copy was counted.
        """
        highest, _ = server.seen.windows.get(client, (-1, 0))
        if highest > sequence:
            raise DuplicateUpload(f"upload {sequence} of client {client} arrived after its upload {highest}")
        if follows != highest:
            raise MemoryMismatch(
                f"the last counted update of client {client} is {highest}, its memory follows update {follows}"
            )

    def _key_number(self, client: int) -> int:
        return 0 if self._keys is None else key_number(self._keys[client])

    def _bound(
        self, server: Server, upload: Message, update: Vector, now: float, key: int, received: int
    ) -> UploadNote:
        """Limit weight and norm. Raise if a sum of K such updates could overflow, or if the limit means rejection."""
        algorithm, settings = self._algorithm, self._settings
        weight = upload.weight if settings.max_weight is None else min(upload.weight, settings.max_weight)
        if weight < upload.weight and self._needs.exact_uploads:
            raise NormTooLarge(f"the update's weight is {upload.weight:.3g}, more than {weight:.3g}")
        # An accumulator that divides by weights cancels a tiny weight, so the norm uses at least weight one.
        share = max(1.0, weight) if algorithm.accumulator.divides_by_weights else weight
        norm = share * _norm(update)
        if not norm <= _LARGEST / algorithm.buffer_size:
            raise NormTooLarge(f"the update's weighted norm is {norm:.3g}; a sum of such updates would overflow")
        mixes = algorithm.client_rule.sends_model
        if mixes:
            norm = share * _norm(update - server.model)
        self.median.vote(upload.sender, norm, now)
        most = math.inf if settings.max_norm is None else settings.max_norm
        usual = min(self.median.value(now) or 0.0, most)  # the first clients could claim anything
        judged = bool(usual) and settings.max_norm_ratio is not None
        if usual and settings.max_norm_ratio is not None:
            most = settings.max_norm_ratio * usual
        if norm <= most:
            return UploadNote.of(weight, 1.0, norm, key, received)
        # An accumulator that keeps single models uses them unscaled, so a factor has no effect.
        exact = self._needs.exact_uploads or (mixes and isinstance(algorithm.accumulator, Kept))
        if exact or (judged and settings.norm_excess == "reject"):
            beyond = f"{settings.max_norm_ratio:g} times the median, {usual:.3g}" if judged else f"{most:.3g}"
            raise NormTooLarge(f"the update's norm is {norm:.3g}, more than {beyond}")
        return UploadNote.of(weight, most / norm, norm, key, received)


def resolved(defence: DefenceSettings, algorithm: Algorithm, task: Task) -> DefenceSettings:
    """Return the settings with missing limits derived from the recipe.

    The norm is that of P local steps with learning rate η_ℓ along clipped gradients. Without clipping, the gradient has
    one in every coordinate: η_ℓ·P·√d. This limit is loose on purpose, so that it does not slow honest clients.
    """
    known = sample_weights(task) if algorithm.client_weights == "samples" else [1.0]
    local = algorithm.local
    steps = max(local.steps_for(task.samples(client)) for client in range(task.clients))
    norm = local.lr * steps * (local.clip_norm or math.sqrt(task.layout.size)) * max(known)
    return replace(
        defence,
        max_norm=norm if defence.max_norm is None else defence.max_norm,
        max_weight=max(_USUAL_WEIGHT, *known) if defence.max_weight is None else defence.max_weight,
    )


def _norm(vector: Vector) -> float:
    squares = float(np.vdot(vector, vector))  # unlike dot, vdot does not warn on overflow
    return math.sqrt(squares) if math.isfinite(squares) else float(np.linalg.norm(vector.astype(np.float64)))
