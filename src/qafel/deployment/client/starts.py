"""Asks the server for linked starts, until an answer arrives.

A request names the digest of the point that the client holds. An answer to another request is ignored: it is late, or
for another process with this client's number. The server may know only that process's request, so this one is sent
again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from typing import Final, final

from qafel.deployment.connection import Broker
from qafel.deployment.keys import Signer, signed_name
from qafel.deployment.messages import StartReply, StartRequest
from qafel.deployment.transport import wait_for_event
from qafel.text import human_seconds

_ANSWER_S: Final = 10.0
_ANSWER_MOST_S: Final = 320.0
_JITTER: Final = 0.2  # of a wait, so that clients do not return together

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class StartRequests:
    """One client's start requests, one at a time."""

    _subject: str
    _signer: Signer
    _most_bytes: int
    """Of an answer."""
    _answer_s: float = _ANSWER_S
    """How long to wait for an answer. It doubles each time, because the line may be slow."""
    _not_before: float = 0.0
    _request: StartRequest | None = None
    _parts: list[bytes] = field(default_factory=list)
    _answer: StartReply | None = None
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def waits_s(self) -> float:
        """How long the server's limits keep this client from asking again."""
        return max(0.0, self._not_before - time.monotonic())

    async def ask(self, broker: Broker, run_id: str, request: StartRequest) -> StartReply | None:
        """Ask, and return the answer. None: there is none, or the server said when to ask again."""
        if self.waits_s:
            return None
        if request != self._request:
            self._answer_s = _ANSWER_S
        self._request, self._parts, self._answer = request, [], None
        self._came.clear()
        data = request.to_bytes()
        headers = self._signer.headers(signed_name(self._subject, run_id), data)
        await broker.send(self._subject, data, headers=headers)
        held = -1
        while not self._came.is_set() and len(self._parts) > held:  # on a slow line, wait while parts arrive
            held = len(self._parts)
            await wait_for_event(self._came, self._answer_s)
        answer = self._answer
        if answer is None:
            self._answer_s = min(_ANSWER_MOST_S, 2 * self._answer_s)
            return None
        self._request = None
        if answer.wait_s:
            log.warning("The server gives this client no start now. Asking again in %s.", human_seconds(answer.wait_s))
            self._not_before = time.monotonic() + answer.wait_s * random.uniform(1.0, 1.0 + _JITTER)
            return None
        return answer

    def add(self, answer: StartReply, number: int, parts: int, data: bytes) -> None:
        """Take a part of an answer."""
        if self._request is None:
            return
        if (answer.sequence, answer.digest) != self._request[:2]:
            if number + 1 == parts:  # another process's request has replaced this one
                self.ask_again()
            return
        if number == 0:
            self._parts.clear()
        if number != len(self._parts) or sum(map(len, self._parts)) + len(data) > self._most_bytes:
            return
        self._parts.append(data)
        if len(self._parts) == parts:
            self._answer = answer._replace(frame=b"".join(self._parts))
            self._came.set()

    def ask_again(self) -> None:
        """Do not wait for an answer any longer: the server has forgotten this request."""
        self._answer_s = _ANSWER_S / 2
        self._came.set()
