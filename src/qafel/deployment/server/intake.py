"""From messages to the ledger: decide which uploads count, and collect receipts and broadcasts. No network.

The core checks form, version and repetition. `UploadChecker` checks sender, rate, share, weight and norm, cheap checks
first. Duplicates come before all limits, because their clients only missed the receipt. Time is an argument.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple, final

import numpy as np
import xxhash
from nats.aio.msg import Msg

from qafel.algorithm import Admitted, Algorithm, Kept, Message, Needs, Server
from qafel.algorithm.messages import HEADER_BYTES, checksum_of
from qafel.deployment.keys import Access, Verifier, key_number, signed_name
from qafel.deployment.messages import Part, PartAssembler, Receipt
from qafel.deployment.names import FAILED, FOLLOWS, MALFORMED, PART, RECEIVED, SIGNATURE, number_in
from qafel.deployment.server import DefenceSettings
from qafel.deployment.server.announcements import Published
from qafel.deployment.server.evaluation import ServerMetrics
from qafel.deployment.server.fairness import FairShare, Standing
from qafel.deployment.server.ledger import Applied, Ledger
from qafel.errors import (
    ConfigError,
    DuplicateUpload,
    MalformedHeader,
    MemoryMismatch,
    MessageError,
    NonFiniteVector,
    NormTooLarge,
    QuarantinedUpload,
    RateLimited,
    RejectedUpload,
    UnknownClient,
    WrongSender,
)
from qafel.params import Vector
from qafel.tasks.protocol import Task, sample_weights
from qafel.text import cut, printable

_ASSEMBLY_BYTES: Final = 1 << 30
_REMEMBERED: Final = 10_000  # clients whose last contact is kept
_SILENT_S: Final = 10.0
_SILENT_GAPS: Final = 5.0
_FAILURES: Final = 3  # attempts at an upload before it is quarantined
_USUAL_WEIGHT: Final = 10.0  # times the mean weight
_LEAST_VOTES: Final = 3  # clients, before the median counts
_MOST_VOTES: Final = 256
_FIRST_VOTE_S: Final = 600.0
_LEAST_VOTE_S: Final = 60.0
_LARGEST: Final = float(np.finfo(np.float32).max) / 2  # of a coordinate of the sum; leaves room for rounding
_FAILURE_BYTES: Final = 300
_FAILURE_CHARACTERS: Final = 120
_NUMBER: Final = re.compile(r"-1|\d{1,10}", re.ASCII)
_verifier: Final = lru_cache(maxsize=10_000)(Verifier)

log = logging.getLogger(__name__)


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


class Judged(NamedTuple):
    """An upload that passed every check."""

    applied: Applied
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
    _allowance: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shares = FairShare(self._settings.max_share)
        self._needs = self._algorithm.needs

    def judged(self, now: float) -> tuple[dict[int, float], list[Standing]]:
        """What a restarted server needs to judge as before: the clients' norms and shares."""
        return self.median.norms(), self.shares.standings(now)

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
        admitted = server.admit(upload, anew=self._has_new_key(client, self._key_number(client)))
        if self._needs.client_memory:
            self._check_memory(server, client, upload.sequence, follows)
        self._spend(client, now)
        self.shares.check(client, now)
        decoded = self._algorithm.client_quantizer.decode(upload.payload, upload.dimension)
        return Judged(self._bound(server, upload, decoded, now, received), decoded, admitted)

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

    def _spend(self, client: int, now: float) -> None:
        """Take a token from the client's bucket; raise if it is empty."""
        rate = self._settings.max_rate
        if rate is None:
            return
        burst = max(1.0, 10 * rate)
        left, then = self._allowance.get(client, (burst, now))
        left = min(burst, left + (now - then) * rate)
        if left < 1:
            raise RateLimited(f"expected at most {rate:g} uploads per second: wait {(1 - left) / rate:.1f} s")
        self._allowance[client] = (left - 1, now)

    def _bound(self, server: Server, upload: Message, update: Vector, now: float, received: int) -> Applied:
        """Limit weight and norm. Raise if a sum of K such updates could overflow, or if the limit means rejection."""
        algorithm, settings, key = self._algorithm, self._settings, self._key_number(upload.sender)
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
            return Applied.of(weight, 1.0, norm, key, received)
        # An accumulator that keeps single models uses them unscaled, so a factor has no effect.
        exact = self._needs.exact_uploads or (mixes and isinstance(algorithm.accumulator, Kept))
        if exact or (judged and settings.norm_excess == "reject"):
            beyond = f"{settings.max_norm_ratio:g} times the median, {usual:.3g}" if judged else f"{most:.3g}"
            raise NormTooLarge(f"the update's norm is {norm:.3g}, more than {beyond}")
        return Applied.of(weight, most / norm, norm, key, received)


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


def _number(headers: Mapping[str, str], name: str) -> int | None:
    """A header's number; None without the header."""
    if (found := headers.get(name)) is None:
        return None
    if not _NUMBER.fullmatch(found):
        raise MalformedHeader(f"expected a number in {name}, got {found[:40]!r}")
    return int(found)


class Contact(NamedTuple):
    """A client's last accepted upload."""

    staleness: int
    at: float
    gap_s: float | None
    """The usual time between two accepted uploads; None after the first."""

    @staticmethod
    def after(before: Contact | None, staleness: int, now: float) -> Contact:
        """The contact after an upload now. Gaps are smoothed."""
        if before is None:
            return Contact(staleness, now, None)
        gap = now - before.at
        return Contact(staleness, now, gap if before.gap_s is None else 0.8 * before.gap_s + 0.2 * gap)

    def silent(self, now: float) -> bool:
        """Whether no upload was accepted for ten seconds and five usual gaps; for a minute after the first upload."""
        return now - self.at > max(_SILENT_S, 60.0 if self.gap_s is None else _SILENT_GAPS * self.gap_s)


@final
@dataclass(slots=True)
class UploadGroup:
    """Uploads that one sync makes safe, and what to send after it."""

    acknowledge: list[Msg] = field(default_factory=list)
    receipts: dict[int, Receipt] = field(default_factory=dict)
    broadcasts: list[tuple[int, bytes]] = field(default_factory=list)
    published: Published | None = None
    """x̂ after the last broadcast."""
    accepted: int = 0
    upload_bytes: int = 0
    """Bytes of accepted uploads."""
    received_bytes: int = 0
    """Bytes that their clients received."""
    checkpoint: Callable[[], None] | None = None


@final
@dataclass
class Intake:
    """Processes messages one by one: counts an upload in the ledger, or rejects it with a reason."""

    ledger: Ledger
    checker: UploadChecker
    metrics: ServerMetrics
    contacts: OrderedDict[int, Contact] = field(default_factory=OrderedDict)
    """Clients with an accepted upload, the latest last."""
    failing: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """Clients whose last training failed, with the reason, the latest last."""
    diverged: str | None = None
    _failures: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Unexpected errors per upload."""

    def __post_init__(self) -> None:
        server = self.ledger.server
        quantizer = server.algorithm.client_quantizer
        self.max_upload_bytes = HEADER_BYTES + quantizer.max_payload_bytes(server.model.size)
        self.begin_session(self.max_upload_bytes)

    def begin_session(self, part_bytes: int) -> int:
        """Drop unfinished uploads, because a new consumer delivers their parts again.

        Messages carry at most `part_bytes`. Returns the most parts of unfinished uploads that wait at any time.
        """
        self._assembler = PartAssembler(self.max_upload_bytes, part_bytes, _ASSEMBLY_BYTES)
        return self._assembler.most_held

    def take(self, message: Msg, group: UploadGroup, now: float) -> None:
        """Count an upload, or reject it with a reason. A part of an upload waits for the others.

        `group` receives the receipt, the broadcast and the messages to acknowledge. `now`: a time in seconds.
        """
        client, headers = number_in(message.subject), message.headers or {}
        frame, spent, upload = message.data, [message], None
        try:
            if MALFORMED in headers:
                raise MalformedHeader(f"cannot read the message's headers: {headers[MALFORMED]}")
            if client is None:
                raise UnknownClient(f"{message.subject} does not name a client")
            if not self.checker.knows(client):
                with suppress(MessageError):  # to name its number in the receipt
                    upload = Message.from_bytes(frame)
                raise UnknownClient(f"client {client} is not registered here")
            if FAILED in headers:
                self._hear_of_failure(client, message)
                group.acknowledge.append(message)
                return
            if PART in headers:
                whole = self._add_part(client, Part.from_header(headers[PART]), message, group, now)
                if whole is None:
                    return
                frame, spent = whole, []
            upload = Message.from_bytes(frame)
            follows = _number(headers, FOLLOWS)
            self.checker.check_signature(client, message.subject, frame, headers.get(SIGNATURE), follows)
            received = min(max(0, _number(headers, RECEIVED) or 0), self.ledger.receivable_bytes(client))
            judged = self.checker.check(self.ledger.server, client, upload, now, follows, received)
        except (MessageError, RejectedUpload) as error:
            self.ledger.server.rejected[error.reason] += 1
            self._refuse(client, upload.sequence if upload else None, error, group)
        except Exception as error:  # no upload may end a session
            if not self._put_aside(client, frame, upload, error, group):
                return
        else:
            self._count(frame, upload, judged, group, now)
        group.acknowledge += spent

    def _hear_of_failure(self, client: int, message: Msg) -> None:
        """Record that a client's training failed, with its reason."""
        headers, subject = message.headers or {}, f"{message.subject} {FAILED}"
        self.checker.check_signature(client, subject, message.data, headers.get(SIGNATURE), _number(headers, FAILED))
        why = cut(printable(message.data[:_FAILURE_BYTES].decode(errors="replace")), _FAILURE_CHARACTERS)
        if self.failing.pop(client, None) is None:
            log.warning("Training of client %d fails: %s", client, why)
        self.failing[client] = why
        self.metrics.failures.inc()
        if len(self.failing) > _REMEMBERED:
            self.failing.popitem(last=False)

    def _put_aside(
        self, client: int | None, frame: bytes, upload: Message | None, error: Exception, group: UploadGroup
    ) -> bool:
        """Return whether to give up an upload after an unexpected error, such as a bug or lack of memory.

        The upload arrives again. The third time it is quarantined for the operator, and its client is informed.
        """
        name = f"{client}-{xxhash.xxh3_64_hexdigest(frame)}"
        times = self._failures[name] = self._failures.pop(name, 0) + 1
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)
        log.error("Checking an upload of client %s failed (attempt %d).", client, times, exc_info=error)
        if times < _FAILURES:
            return False
        if times == _FAILURES:
            self.ledger.quarantine(name, frame)
        refusal = QuarantinedUpload("the server could not process this upload and quarantined it")
        self.ledger.server.rejected[refusal.reason] += 1
        self._refuse(client, upload.sequence if upload else None, refusal, group)
        return True

    def _add_part(self, client: int, part: Part, message: Msg, group: UploadGroup, now: float) -> bytes | None:
        """Return the whole upload after its last part.

        Parts of a counted upload are dropped, so that they do not replace the one in progress. The last part produces a
        receipt, because the client may have missed the first one.
        """
        self._assembler.check(part, len(message.data))
        try:
            self.checker.check_number(self.ledger.server, client, part.upload)
        except DuplicateUpload as error:
            if part.number == part.parts - 1:
                self.ledger.server.rejected[error.reason] += 1
                self._refuse(client, part.upload, error, group)
            group.acknowledge.append(message)
            return None
        return self._assembler.add(client, part, message, now, group.acknowledge)

    def _count(self, frame: bytes, upload: Message, judged: Judged, group: UploadGroup, now: float) -> None:
        client, version, applied = upload.sender, self.ledger.server.version, judged.applied
        try:
            accepted = self.ledger.take(frame, upload, *judged)
            broadcast = self.ledger.step_if_due()
        except (MessageError, RejectedUpload) as error:
            self._refuse(client, upload.sequence, error, group)
            return
        except NonFiniteVector as error:
            self.diverged = str(error)
            return
        self.failing.pop(client, None)
        self.contacts[client] = Contact.after(self.contacts.pop(client, None), accepted.staleness, now)
        if len(self.contacts) > _REMEMBERED:
            self.contacts.popitem(last=False)
        self.checker.shares.count(client, now)
        if applied.factor < 1 or applied.weight < upload.weight:
            self.metrics.clipped.inc()
        self.metrics.staleness.observe(accepted.staleness)
        group.accepted += 1
        group.upload_bytes += len(frame)
        group.received_bytes += applied.received_bytes
        group.receipts.setdefault(client, Receipt()).accepted.append((upload.sequence, version, checksum_of(frame)))
        if broadcast is not None:
            group.broadcasts.append((version, broadcast))
            group.published = Published.of(self.ledger.server)

    def _refuse(
        self, client: int | None, sequence: int | None, error: MessageError | RejectedUpload, group: UploadGroup
    ) -> None:
        receipt = Receipt() if client is None else group.receipts.setdefault(client, Receipt())
        if client is not None and isinstance(error, DuplicateUpload | MemoryMismatch):
            receipt.last = self.ledger.last_of(client)
        if client is not None and sequence is not None and isinstance(error, DuplicateUpload):
            self.metrics.duplicates.inc()
            receipt.duplicate.append(sequence)
        else:
            self.metrics.rejected(error.reason).inc()
            receipt.rejected.append((sequence, error.reason, str(error)))
