"""Which uploads are taken. The core checks form, version and repetition; this adds who sent it, how often, how large.

Checks come in the order of their price, and an upload that was counted before is told so first: its client only
missed the receipt. Time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, final

import numpy as np

from qafel.algorithm import Algorithm, Kind, Message, Server
from qafel.deployment.keys import Verifier
from qafel.deployment.settings import DefenceSettings
from qafel.errors import BadSignature, NormTooLarge, RateLimited, UnknownClient, WrongSender

_LEAST_VOTES: Final = 3  # clients, before the median says anything


_MOST_VOTES: Final = 256


_FIRST_VOTE_S: Final = 600.0


_LEAST_VOTE_S: Final = 60.0


@final
class RunningMedian:
    """The median over clients of the norm that each sent last: one vote each, however often it uploads.

    Updates that are rejected for their norm vote too. Were it only the accepted ones, a few clients near their own
    optimum could shut all others out for good, because nothing would ever move the median again. A client that falls
    silent loses its vote after ten of its own intervals, so that those who left do not judge those who stayed.
    """

    def __init__(self, norms: Mapping[int, float], now: float) -> None:
        self._votes = OrderedDict((client, (norm, now, _FIRST_VOTE_S)) for client, norm in norms.items())

    def vote(self, client: int, norm: float, now: float) -> None:
        before = self._votes.pop(client, None)
        lasts_s = _FIRST_VOTE_S if before is None else max(_LEAST_VOTE_S, 10 * (now - before[1]))
        self._votes[client] = (norm, now, lasts_s)
        if len(self._votes) > _MOST_VOTES:
            self._votes.popitem(last=False)

    def value(self, now: float) -> float | None:
        """The upper median; None where too few have a say."""
        norms = sorted(norm for norm, then, lasts_s in self._votes.values() if now - then <= lasts_s)
        return norms[len(norms) // 2] if len(norms) >= _LEAST_VOTES else None

    def norms(self) -> dict[int, float]:
        return {client: norm for client, (norm, _, _) in self._votes.items()}


@final
class Guard:
    """Everything an upload must pass before the server sees it."""

    def __init__(
        self,
        algorithm: Algorithm,
        settings: DefenceSettings,
        clients: int,
        keys: Mapping[int, str] | None = None,
        norms: Mapping[int, float] | None = None,
        now: float = 0.0,
    ) -> None:
        self._algorithm = algorithm
        self._settings = settings
        self._clients = clients
        self._keys = keys
        self._verifiers: dict[int, Verifier] = {}
        self._allowance: dict[int, tuple[float, float]] = {}
        self.median = RunningMedian(norms or {}, now)

    @property
    def has_keys(self) -> bool:
        """Whether signatures are checked."""
        return self._keys is not None

    def renew_keys(self, keys: Mapping[int, str]) -> None:
        """Take the registry as it is now: a client that was struck off is unknown from here on. Once there are keys,
        there is no way back to none.
        """
        self._keys = keys
        self._verifiers.clear()

    def knows(self, client: int) -> bool:
        return client in self._keys if self._keys is not None else 0 <= client < self._clients

    def check(
        self, server: Server, client: int, subject: str, frame: bytes, signature: str | None, now: float
    ) -> Message:
        """Raise unless this upload, sent as that client, may be taken; return the parsed message."""
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
        self._check_norm(server, message, now)
        return message

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

    def _check_norm(self, server: Server, message: Message, now: float) -> None:
        ratio = self._settings.max_norm_ratio
        if ratio is None:
            return
        update = self._algorithm.client_quantizer.decode(message.payload, message.dimension)
        if self._algorithm.upload == "model":
            update = update - server.model
        norm = message.weight * float(np.sqrt(np.dot(update, update)))
        if not np.isfinite(norm):
            raise NormTooLarge("the update's norm is beyond what a number can hold")
        self.median.vote(message.sender, norm, now)
        median = self.median.value(now)
        if median and norm > ratio * median:
            raise NormTooLarge(f"the update's norm is {norm:.3g}, more than {ratio:g} times the median, {median:.3g}")
