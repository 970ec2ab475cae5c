"""From broker messages to the truth: who gets what receipt, what is acknowledged, which steps go out. No network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from nats.aio.msg import Msg

from qafel.algorithm import HiddenState, Message
from qafel.algorithm.messages import HEADER_BYTES
from qafel.deployment.messages import Assembly, Part, Receipt
from qafel.deployment.names import PART, SIGNATURE
from qafel.deployment.server.defence import Guard
from qafel.deployment.server.evaluation import Metrics
from qafel.deployment.server.ledger import Truth
from qafel.errors import DuplicateUpload, MessageError, NonFiniteVector, RejectedUpload, UnknownClient

_ASSEMBLY_BYTES: Final = 1 << 30


_REMEMBERED: Final = 1000


@final
@dataclass(slots=True)
class Group:
    """Uploads that become safe together, and what follows when they are."""

    acknowledge: list[Msg] = field(default_factory=list)
    receipts: dict[int, Receipt] = field(default_factory=dict)
    broadcasts: list[tuple[int, bytes]] = field(default_factory=list)
    hidden_state: HiddenState | None = None
    """x̂ after the last of the broadcasts."""
    accepted: int = 0
    accepted_bytes: int = 0
    checkpoint: Callable[[], None] | None = None


@final
class Intake:
    """Takes messages one by one."""

    def __init__(self, truth: Truth, guard: Guard, metrics: Metrics) -> None:
        quantizer = truth.server.algorithm.client_quantizer
        self.truth = truth
        self.guard = guard
        self.lags: OrderedDict[int, int] = OrderedDict()
        self.diverged: str | None = None
        self._metrics = metrics
        self._max_upload_bytes = HEADER_BYTES + quantizer.max_payload_bytes(truth.server.model.size)
        self.begin_session()

    def parts(self, part_bytes: int) -> int:
        """In how many messages the largest upload comes."""
        return -(-self._max_upload_bytes // part_bytes)

    def begin_session(self) -> None:
        """Forget unfinished uploads: a new consumer delivers their parts again, perhaps under other numbers."""
        self._assembly = Assembly(self._max_upload_bytes, _ASSEMBLY_BYTES)

    def take(self, message: Msg, group: Group, now: float) -> None:
        """Count, or reject and say why; a part of an upload only waits."""
        client = _client(message.subject)
        headers = message.headers or {}
        frame, spent = message.data, [message]
        try:
            if client is None:
                raise UnknownClient(f"{message.subject} names no client")
            if PART in headers and self.guard.knows(client):
                part = Part.from_header(headers[PART])
                self._assembly.check(part)
                if self._is_over(client, part, group):
                    group.acknowledge.append(message)
                    return
                whole = self._assembly.add(client, part, message, group.acknowledge)
                if whole is None:
                    return
                frame, spent = whole, []
            upload = self.guard.check(self.truth.server, client, message.subject, frame, headers.get(SIGNATURE), now)
        except (MessageError, RejectedUpload) as error:
            self.truth.server.rejected[error.reason] += 1
            self._refuse(client, _sequence(frame), error, group)
        else:
            self._count(client, frame, upload, group)
        group.acknowledge += spent

    def _is_over(self, client: int, part: Part, group: Group) -> bool:
        """Whether this part's upload cannot count any more. It must not get at the one that is in progress, and its
        client, which may have missed the receipt, is told with the last part.
        """
        try:
            self.truth.server.seen.check(client, part.upload)
        except DuplicateUpload as error:
            if part.is_last:
                self.truth.server.rejected[error.reason] += 1
                self._refuse(client, part.upload, error, group)
            return True
        return False

    def _count(self, client: int, frame: bytes, upload: Message, group: Group) -> None:
        server = self.truth.server
        version = server.version
        try:
            accepted = self.truth.take(frame, upload)
        except (MessageError, RejectedUpload) as error:
            self._refuse(client, upload.sequence, error, group)
            return
        except NonFiniteVector as error:
            self.diverged = str(error)
            return
        self.lags[client] = accepted.staleness
        self.lags.move_to_end(client)
        if len(self.lags) > _REMEMBERED:
            self.lags.popitem(last=False)
        self._metrics.staleness.observe(accepted.staleness)
        group.accepted += 1
        group.accepted_bytes += len(frame)
        group.receipts.setdefault(client, Receipt()).accepted.append((upload.sequence, version))
        if accepted.broadcast is not None:
            group.broadcasts.append((version, accepted.broadcast))
            group.hidden_state = server.hidden_state

    def _refuse(
        self, client: int | None, sequence: int | None, error: MessageError | RejectedUpload, group: Group
    ) -> None:
        if client is None:
            self._metrics.rejected(error.reason)
            return
        receipt = group.receipts.setdefault(client, Receipt())
        if isinstance(error, DuplicateUpload) and sequence is not None:
            self._metrics.duplicates.inc()
            receipt.duplicate.append(sequence)
            receipt.highest, _ = self.truth.server.seen.windows.get(client, (-1, 0))
        else:
            self._metrics.rejected(error.reason)
            receipt.rejected.append((sequence, error.reason, str(error)))


def _client(subject: str) -> int | None:
    end = subject.rsplit(".", 1)[-1]
    return int(end) if end.isdecimal() and len(end) < 20 else None


def _sequence(frame: bytes) -> int | None:
    """Which upload it was, if that can be read at all."""
    try:
        return Message.from_bytes(frame).sequence
    except MessageError:
        return None
