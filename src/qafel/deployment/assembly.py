"""Uploads that came in parts, because the broker takes no message of their size.

A part's header says which upload it belongs to, which part it is, and of how many: "17/2/8". Parts stay
unacknowledged until the whole is safe; what does not fit the bound is forgotten and delivered again. What no whole will
need, because a newer copy came or its client went on, is acknowledged: it would be delivered for ever, and fill the
client's queue.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from nats.aio.msg import Msg

from qafel.errors import MalformedPayload, OversizedMessage

_PART: Final = re.compile(r"(\d{1,10})/(\d{1,6})/(\d{1,6})")


class Part(NamedTuple):
    """Which part of which upload."""

    upload: int
    number: int
    parts: int

    @property
    def is_last(self) -> bool:
        return self.number == self.parts - 1

    @staticmethod
    def from_header(header: str) -> Part:
        match = _PART.fullmatch(header)
        if match is None:
            raise MalformedPayload(f"a part is named upload/part/parts, this one {header[:40]!r}")
        return Part(*map(int, match.groups()))


def split(data: bytes, part_bytes: int) -> list[bytes]:
    return [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]


@final
@dataclass(slots=True)
class _Partial:
    upload: int
    parts: int
    messages: dict[int, Msg] = field(default_factory=dict)
    size: int = 0


@final
class Assembly:
    """At most one unfinished upload per client, and a bound on all of them together."""

    def __init__(self, max_upload_bytes: int, max_total_bytes: int) -> None:
        self._max_upload_bytes = max_upload_bytes
        self._max_total_bytes = max(max_total_bytes, 2 * max_upload_bytes)
        self._partial: OrderedDict[int, _Partial] = OrderedDict()
        self._total = 0

    def check(self, part: Part) -> None:
        """Refuse a part of more parts than any upload has."""
        if not 0 <= part.number < part.parts <= 1 + self._max_upload_bytes // 1024:
            raise MalformedPayload(f"part {part.number} of {part.parts} cannot be")

    def add(self, client: int, part: Part, message: Msg, spent: list[Msg]) -> bytes | None:
        """The whole upload once its last part is in. `spent` gets the messages that are to be acknowledged with it, or
        that nobody needs any more; a message that raises is not among them.
        """
        self.check(part)
        partial = self._partial.get(client)
        if partial is None or (partial.upload, partial.parts) != (part.upload, part.parts):
            # A client sends one upload after the other. If it still wants the unfinished one, it sends it all again.
            spent += self._forget(client)
            partial = self._partial[client] = _Partial(part.upload, part.parts)
        before = partial.messages.get(part.number)
        grown = len(message.data) - (len(before.data) if before else 0)
        if partial.size + grown > self._max_upload_bytes:
            spent += self._forget(client)
            raise OversizedMessage(f"an upload has at most {self._max_upload_bytes} bytes here, its parts have more")
        if before is not None and not _is_same(before, message):
            spent.append(before)
        partial.size += grown
        self._total += grown
        partial.messages[part.number] = message
        while self._total > self._max_total_bytes:
            self._forget(next(iter(self._partial)))
        if len(partial.messages) < part.parts:
            return None
        self._forget(client)
        whole = [partial.messages[number] for number in range(part.parts)]
        spent += whole
        return b"".join(message.data for message in whole)

    def _forget(self, client: int) -> list[Msg]:
        partial = self._partial.pop(client, None)
        if partial is None:
            return []
        self._total -= partial.size
        return list(partial.messages.values())


def _is_same(one: Msg, other: Msg) -> bool:
    """One stored message that was delivered twice: to acknowledge either of them is to acknowledge both."""
    return one.metadata.sequence.stream == other.metadata.sequence.stream
