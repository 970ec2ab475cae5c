"""Messages besides uploads and broadcasts: the agreement, the run's state, receipts, and parts of large uploads."""

from __future__ import annotations

import json
import re
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

from nats.aio.msg import Msg
from pydantic import TypeAdapter

from qafel.algorithm import Algorithm
from qafel.config import Config
from qafel.deployment.connection import ACK_WAIT_S, Broker, Stored
from qafel.deployment.keys import Verifier, signed_name
from qafel.deployment.names import KEY_VALUE_STREAM, SIGNATURE, START, Names
from qafel.errors import ConfigError, DataError, MalformedHeader, MalformedPayload, MessageError, OversizedMessage
from qafel.params import Layout
from qafel.runs.live import LiveState
from qafel.text import printable

_AGREEMENT_FORMAT: Final = 2  # also covers the formats of signatures and receipts
_PART: Final = re.compile(r"(\d{1,10})/(\d{1,6})/(\d{1,6})")


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """What server and clients must agree on: the run's configuration and its model's layout."""

    run_id: str
    config: Config
    layout: Layout
    abandon_after: int | None = None
    """From the staleness law: clients do not send updates whose start is this many versions old."""

    def algorithm(self) -> Algorithm:
        """The algorithm of a client."""
        return self.config.algorithm.compose(self.layout, at_client=True)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": _AGREEMENT_FORMAT,
                "run_id": self.run_id,
                "config": self.config.to_toml(),
                "layout": [[name, list(shape)] for name, shape in self.layout.tensors],
                "abandon_after": self.abandon_after,
            }
        ).encode()

    @staticmethod
    def run_id_of(data: bytes) -> str:
        """The identity of an agreement's run; empty if it cannot be read. Another format raises `DataError`."""
        try:
            return str(_read_agreement(data)["run_id"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    @staticmethod
    def from_bytes(data: bytes) -> Agreement:
        try:
            read = _read_agreement(data)
            layout = Layout(tuple((str(name), tuple(map(int, shape))) for name, shape in read["layout"]))
            config = Config.from_toml(read["config"], "the server's configuration")
            abandon_after = None if read["abandon_after"] is None else int(read["abandon_after"])
            return Agreement(str(read["run_id"]), config, layout, abandon_after)
        except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
            raise DataError(f"the broker does not hold a run's configuration: {printable(str(error))}") from None


def _read_agreement(data: bytes) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(data)
    if (found := read["format"]) != _AGREEMENT_FORMAT:
        raise DataError(
            f"the run's agreement has format {found}, this qafel reads {_AGREEMENT_FORMAT}: upgrade the older end"
        )
    return read


async def read_agreement(broker: Broker, names: Names, verifier: Verifier) -> Agreement | None:
    """Read a run's agreement from the broker; None if its server has not stored one."""
    stored = await broker.stored(KEY_VALUE_STREAM, names.config)
    if stored is None:
        return None
    verifier.check(signed_name(names.config), stored.data, stored.headers.get(SIGNATURE))
    return Agreement.from_bytes(stored.data)


def verified_state(names: Names, verifier: Verifier, stored: Stored) -> LiveState:
    """A run's state from its message. Raises `MessageError` or `DataError` if it is not genuine."""
    verifier.check(signed_name(names.state), stored.data, stored.headers.get(SIGNATURE))
    return LiveState.from_bytes(stored.data)


async def read_state(broker: Broker, names: Names, verifier: Verifier) -> tuple[LiveState | None, int]:
    """Read a run's state and its number in the stream; (None, 0) if there is none.

    A state that the server did not sign, or that cannot be read, has the status "not genuine".
    """
    stored = await broker.stored(KEY_VALUE_STREAM, names.state)
    if stored is None:
        return None, 0
    try:
        return verified_state(names, verifier, stored), stored.sequence
    except (DataError, MessageError):
        return LiveState(status="not genuine", at=0.0, version=0), stored.sequence


@final
@dataclass(slots=True)
class Receipt:
    """Tells one client which uploads of a group count, and why others do not."""

    accepted: list[tuple[int, int, int]] = field(default_factory=list)
    """(sequence, version whose buffer took it, checksum of the upload)"""
    duplicate: list[int] = field(default_factory=list)
    """Sequences that were counted before, or are too old to know."""
    last: tuple[int, int] | None = None
    """Sequence and checksum of the client's last counted upload, (-1, 0) if there is none. Sent with duplicates, so
    that a client can recover its count, and with an upload whose memory does not follow that upload.
    """
    rejected: list[tuple[int | None, str, str]] = field(default_factory=list)
    """(sequence if readable, reason, explanation)"""

    def extend(self, other: Receipt) -> None:
        self.accepted += other.accepted
        self.duplicate += other.duplicate
        self.last = other.last or self.last
        self.rejected += other.rejected

    def to_bytes(self) -> bytes:
        return json.dumps([self.accepted, self.duplicate, self.last, self.rejected]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Receipt:
        try:
            receipt = Receipt(*_RECEIPT.validate_json(data))
        except ValueError as error:
            raise DataError(f"cannot read the receipt: {printable(str(error))}") from None
        receipt.rejected = [(number, printable(why), printable(text)) for number, why, text in receipt.rejected]
        return receipt


_RECEIPT: Final = TypeAdapter(
    tuple[list[tuple[int, int, int]], list[int], tuple[int, int] | None, list[tuple[int | None, str, str]]]
)


@final
class StartRequest(NamedTuple):
    """A client asks for the message that moves its start point to the newest x̂."""

    sequence: int
    """The number of the start: that of the upload that it leads to."""
    digest: int
    """Of the point that the client holds; 0: none."""
    initial: int
    """Of x⁰; 0 if the client cannot make it."""

    def to_bytes(self) -> bytes:
        return _REQUEST.pack(*self)

    @staticmethod
    def from_bytes(data: bytes) -> StartRequest:
        if len(data) != _REQUEST.size:
            raise MalformedPayload(f"expected a start request of {_REQUEST.size} bytes, got {len(data)}")
        return StartRequest(*_REQUEST.unpack(data))


_REQUEST: Final = struct.Struct("<IQQ")


@final
class StartReply(NamedTuple):
    """The server's answer to a start request."""

    sequence: int
    digest: int
    """The digest of the request."""
    position: int = 0
    """The total bytes broadcast up to the start's version."""
    wait_s: int = 0
    """Ask again after this time; 0: the client may start."""
    frame: bytes = b""
    """The message; empty if the point that the client holds is the newest."""

    @property
    def head(self) -> str:
        """All but the frame, for a header. The number of a part and the number of parts follow it."""
        return " ".join(map(str, self[:4]))

    @staticmethod
    def from_head(head: str) -> tuple[StartReply, int, int]:
        """The answer without its frame, the number of this part and the number of parts."""
        if _REPLY.fullmatch(head) is None:
            raise MalformedHeader(f"expected six numbers in {START}, got {head[:40]!r}")
        sequence, digest, position, wait_s, number, parts = map(int, head.split(" "))
        return StartReply(sequence, digest, position, wait_s), number, parts


_REPLY: Final = re.compile(r"\d{1,20}( \d{1,20}){5}", re.ASCII)


@final
class Part(NamedTuple):
    """A part of an upload that is larger than one message. The header "17/2/8" means part 2 of 8 of upload 17."""

    upload: int
    number: int
    parts: int

    @staticmethod
    def from_header(header: str) -> Part:
        match = _PART.fullmatch(header)
        if match is None:
            raise MalformedPayload(f"expected a part named upload/part/parts, got {header[:40]!r}")
        return Part(*map(int, match.groups()))


def split(data: bytes, part_bytes: int) -> list[bytes]:
    """Cut a message into parts of at most `part_bytes`."""
    return [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]


@final
@dataclass(slots=True)
class _Partial:
    upload: int
    parts: int
    advanced_at: float
    messages: list[Msg] = field(default_factory=list)


@final
class PartAssembler:
    """Assembles uploads from parts: one unfinished upload per client, within a total size.

    A client sends the parts of an upload in order, all but the last of full size. Parts stay unacknowledged until the
    upload is safe. The assembler drops an unfinished upload and acknowledges its parts in three cases: its client
    begins another one, no part arrived for `PATIENCE_S`, or memory runs out and it is the one that waited longest. Its
    client then sends all of it again. Without the acknowledgement, the broker would deliver the parts forever.
    """

    PATIENCE_S: Final = float(ACK_WAIT_S)

    def __init__(self, max_upload_bytes: int, part_bytes: int, max_total_bytes: int) -> None:
        self._max_upload_bytes, self._part_bytes = max_upload_bytes, part_bytes
        self._most_parts = -(-max_upload_bytes // part_bytes)
        self.most_held = max(max_total_bytes // part_bytes, 2 * self._most_parts)
        """The most parts of unfinished uploads at any time. All have full size: a last part completes its upload."""
        self._partial: OrderedDict[int, _Partial] = OrderedDict()
        """In the order of their latest parts."""
        self.held = 0

    def check(self, part: Part, size: int) -> None:
        """Raise if no valid upload can contain this part."""
        last = part.number == part.parts - 1
        fits = 0 < size <= self._part_bytes if last else size == self._part_bytes
        if not (part.number < part.parts and 1 < part.parts <= self._most_parts and fits):
            raise MalformedPayload(
                f"part {part.number} of {part.parts} with {size} bytes is impossible: an upload of at most "
                f"{self._max_upload_bytes} bytes comes in parts of {self._part_bytes}"
            )
        if last and (part.parts - 1) * self._part_bytes + size > self._max_upload_bytes:
            raise OversizedMessage(f"expected an upload of at most {self._max_upload_bytes} bytes, its parts have more")

    def add(self, client: int, part: Part, message: Msg, now: float, spent: list[Msg]) -> bytes | None:
        """Return the whole upload once its last part is in, else None. The part has passed `check`.

        `spent` receives the messages to acknowledge: those of the whole upload, and those that were dropped.
        """
        dropped: list[Msg] = []
        while self._partial and now - next(iter(self._partial.values())).advanced_at > self.PATIENCE_S:
            dropped += self._pop(next(iter(self._partial)))
        spent += dropped
        partial = self._partial.get(client)
        if partial is None or (partial.upload, partial.parts) != (part.upload, part.parts):
            partial = _Partial(part.upload, part.parts, now)
        held = partial.messages
        if any(_same_stored(message, before) for before in (*dropped, *held[part.number : part.number + 1])):
            return None  # delivered twice: one acknowledgement covers both
        if part.number == 0:
            spent += self._pop(client)
            partial = self._partial[client] = _Partial(part.upload, part.parts, now)
        elif part.number != len(held):
            spent.append(message)  # the parts before it were dropped
            return None
        partial.messages.append(message)
        partial.advanced_at = now
        self._partial.move_to_end(client)
        self.held += 1
        if len(partial.messages) == part.parts:
            whole = self._pop(client)
            spent += whole
            return b"".join(message.data for message in whole)
        while self.held > self.most_held:
            spent += self._pop(next(iter(self._partial)))
        return None

    def _pop(self, client: int) -> list[Msg]:
        partial = self._partial.pop(client, None)
        messages = partial.messages if partial else []
        self.held -= len(messages)
        return messages


def _same_stored(message: Msg, other: Msg) -> bool:
    """Whether both are deliveries of the same stored message."""
    return message.metadata.sequence.stream == other.metadata.sequence.stream
