"""From messages to the ledger: decide which uploads count, and collect receipts and broadcasts. No network.

The core checks form, version and repetition; `defence` checks sender, rate, share, weight and norm. Time is an
argument.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

import xxhash
from nats.aio.msg import Msg

from qafel.algorithm import Message
from qafel.algorithm.messages import HEADER_BYTES, checksum_of
from qafel.deployment.messages import Part, PartAssembler, Receipt
from qafel.deployment.names import FAILED, FOLLOWS, MALFORMED, PART, RECEIVED, SIGNATURE, number_in
from qafel.deployment.server.announcements import Published
from qafel.deployment.server.defence import Judged, UploadChecker
from qafel.deployment.server.ledger import Ledger
from qafel.errors import (
    DuplicateUpload,
    MalformedHeader,
    MemoryMismatch,
    MessageError,
    NonFiniteVector,
    QuarantinedUpload,
    RejectedUpload,
    UnknownClient,
)
from qafel.text import cut, printable

_ASSEMBLY_BYTES: Final = 1 << 30
_REMEMBERED: Final = 10_000  # clients whose last contact is kept
_SILENT_S: Final = 10.0
_SILENT_GAPS: Final = 5.0
_FAILURES: Final = 3  # attempts at an upload before it is quarantined
_FAILURE_BYTES: Final = 300
_FAILURE_CHARACTERS: Final = 120
_NUMBER: Final = re.compile(r"-1|\d{1,19}", re.ASCII)

log = logging.getLogger(__name__)


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
    receipts: defaultdict[int, Receipt] = field(default_factory=lambda: defaultdict(Receipt))
    broadcasts: list[tuple[int, bytes]] = field(default_factory=list)
    published: Published | None = None
    """x̂ after the last broadcast."""
    accepted: int = 0
    checkpoint: Callable[[], None] | None = None


@final
@dataclass
class Intake:
    """Processes messages one by one: counts an upload in the ledger, or rejects it with a reason."""

    ledger: Ledger
    checker: UploadChecker
    counts: Counter[str] = field(
        default_factory=lambda: Counter(clipped=0, failed_trainings=0, starts=0, refused_starts=0)
    )
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
        follows, received = None, 0
        try:
            if client is None:
                raise UnknownClient(f"{message.subject} does not name a client")
            if not self.checker.knows(client):
                with suppress(MessageError):  # to name its number in the receipt
                    upload = Message.from_bytes(frame)
                raise UnknownClient(f"client {client} is not registered here")
            if headers:
                if MALFORMED in headers:
                    raise MalformedHeader(f"cannot read the message's headers: {headers[MALFORMED]}")
                if FAILED in headers:
                    self._hear_of_failure(client, message)
                    group.acknowledge.append(message)
                    return
                if PART in headers:
                    whole = self._add_part(client, Part.from_header(headers[PART]), message, group, now)
                    if whole is None:
                        return
                    frame, spent = whole, []
            upload = Message.from_bytes(frame)  # before its headers, so that a rejection names it
            if headers:
                follows = _number(headers, FOLLOWS)
                received = min(max(0, _number(headers, RECEIVED) or 0), self.ledger.receivable_bytes(client))
            self.checker.check_signature(client, message.subject, frame, headers.get(SIGNATURE), follows)
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
        self.counts["failed_trainings"] += 1
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
        client, version, note = upload.sender, self.ledger.server.version, judged.note
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
        if note.factor < 1 or note.weight < upload.weight:
            self.counts["clipped"] += 1
        group.accepted += 1
        group.receipts[client].accepted.append((upload.sequence, version, checksum_of(frame)))
        if broadcast is not None:
            group.broadcasts.append((version, broadcast))
            group.published = Published.of(self.ledger.server)

    def _refuse(
        self, client: int | None, sequence: int | None, error: MessageError | RejectedUpload, group: UploadGroup
    ) -> None:
        if client is None:  # nobody to tell
            return
        receipt = group.receipts[client]
        if isinstance(error, DuplicateUpload | MemoryMismatch):
            receipt.last = self.ledger.last_of(client)
        if sequence is not None and isinstance(error, DuplicateUpload):
            receipt.duplicate.append(sequence)
        else:
            receipt.rejected.append((sequence, error.reason, str(error)))
