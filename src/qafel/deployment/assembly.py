"""Uploads that came in parts, because the broker takes no message of their size.

A part's header says which upload it belongs to, which part it is, and of how many: "17/2/8". Parts stay
unacknowledged until the whole is safe; what does not fit the bound is forgotten and delivered again.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, final

from nats.aio.msg import Msg

from qafel.errors import MalformedPayload, OversizedMessage

_PART: Final = re.compile(r"(\d{1,10})/(\d{1,6})/(\d{1,6})")


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

    def add(self, client: int, header: str, message: Msg) -> tuple[bytes, list[Msg]] | None:
        """The whole upload and its messages once the last part is in."""
        match = _PART.fullmatch(header)
        if match is None:
            raise MalformedPayload(f"a part is named upload/part/parts, this one {header[:40]!r}")
        upload, part, parts = map(int, match.groups())
        if not 0 <= part < parts <= 1 + self._max_upload_bytes // 1024:
            raise MalformedPayload(f"part {part} of {parts} cannot be")
        partial = self._partial.get(client)
        if partial is None or (partial.upload, partial.parts) != (upload, parts):
            self.forget(client)
            partial = self._partial[client] = _Partial(upload, parts)
        before = partial.messages.get(part)
        grown = len(message.data) - (len(before.data) if before else 0)
        partial.size += grown
        self._total += grown
        partial.messages[part] = message
        if partial.size > self._max_upload_bytes:
            self.forget(client)
            raise OversizedMessage(f"an upload has at most {self._max_upload_bytes} bytes here, its parts have more")
        while self._total > self._max_total_bytes:
            self.forget(next(iter(self._partial)))
        if len(partial.messages) < parts:
            return None
        self.forget(client)
        whole = [partial.messages[number] for number in range(parts)]
        return b"".join(message.data for message in whole), whole

    def forget(self, client: int) -> None:
        if (partial := self._partial.pop(client, None)) is not None:
            self._total -= partial.size
