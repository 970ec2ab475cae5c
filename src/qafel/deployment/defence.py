"""Which uploads are taken. The core checks form, version and repetition; this adds who sent it, how often, how large.

Checks come in the order of their price, and an upload that was counted before is told so first: its client only
missed the receipt. Time is an argument.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from qafel.algorithm import Algorithm, Kind, Message, Server
from qafel.deployment.faults import BadSignature, NormTooLarge, RateLimited, UnknownClient, WrongSender
from qafel.deployment.keys import Verifier

_WINDOW: Final = 256
_ENOUGH: Final = 20  # norms before the median says anything


@final
@dataclass(frozen=True, slots=True)
class DefenceSettings:
    """None: no such limit."""

    max_norm_ratio: float | None = 10.0
    """A weighted update whose norm is beyond this multiple of the running median is rejected."""
    max_rate: float | None = None
    """Uploads a second and client, over bursts of ten seconds' worth."""


@final
class RunningMedian:
    """The median of the last accepted norms."""

    def __init__(self, values: list[float]) -> None:
        self._order = deque(values[-_WINDOW:])
        self._sorted = sorted(self._order)

    def add(self, value: float) -> None:
        if len(self._order) == _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)

    @property
    def value(self) -> float | None:
        return self._sorted[len(self._sorted) // 2] if len(self._sorted) >= _ENOUGH else None

    def values(self) -> list[float]:
        return list(self._order)


@final
class Guard:
    """Everything an upload must pass before the server sees it."""

    def __init__(
        self,
        algorithm: Algorithm,
        settings: DefenceSettings,
        clients: int,
        keys: Mapping[int, str] | None = None,
        norms: list[float] | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._settings = settings
        self._clients = clients
        self._keys = keys
        self._verifiers: dict[int, Verifier] = {}
        self._allowance: dict[int, tuple[float, float]] = {}
        self.median = RunningMedian(norms or [])

    def renew_keys(self, keys: Mapping[int, str] | None) -> None:
        """Take the registry as it is now: a client that was struck off is unknown from here on."""
        self._keys = keys
        self._verifiers.clear()

    def knows(self, client: int) -> bool:
        return client in self._keys if self._keys is not None else 0 <= client < self._clients

    def check(
        self, server: Server, client: int, subject: str, frame: bytes, signature: str | None, now: float
    ) -> tuple[int, float]:
        """Raise unless this upload, sent as that client, may be taken; return its sequence and its norm."""
        if not self.knows(client):
            raise UnknownClient(f"client {client} is not registered here")
        message = Message.from_bytes(frame)
        if self._keys is not None:
            self._verifier(client).check(subject, frame, signature)
        if message.sender != client:
            raise WrongSender(f"the message says client {message.sender}, it was sent by client {client}")
        message.check(Kind.UPLOAD, server.model.size, self._algorithm.client_quantizer)
        server.seen.check(message.sender, message.sequence)
        self._spend(client, now)
        return message.sequence, self._norm(server, message)

    def _verifier(self, client: int) -> Verifier:
        if client not in self._verifiers:
            if self._keys is None:
                raise BadSignature("no key")
            self._verifiers[client] = Verifier(self._keys[client])
        return self._verifiers[client]

    def _spend(self, client: int, now: float) -> None:
        """A bucket of tokens per client."""
        rate = self._settings.max_rate
        if rate is None:
            return
        burst = max(1.0, 10 * rate)
        left, then = self._allowance.get(client, (burst, now))
        left = min(burst, left + (now - then) * rate)
        if left < 1:
            raise RateLimited(f"at most {rate:g} uploads a second: wait {(1 - left) / rate:.1f} s")
        self._allowance[client] = (left - 1, now)

    def _norm(self, server: Server, message: Message) -> float:
        ratio = self._settings.max_norm_ratio
        if ratio is None:
            return 0.0
        update = self._algorithm.client_quantizer.decode(message.payload, message.dimension)
        if self._algorithm.upload == "model":
            update = update - server.model
        norm = message.weight * float(np.sqrt(np.dot(update, update)))
        median = self.median.value
        if not np.isfinite(norm) or (median and norm > ratio * median):
            raise NormTooLarge(
                f"the update's norm is {norm:.3g}, more than {ratio:g} times the median, {median or 0:.3g}"
            )
        return norm
