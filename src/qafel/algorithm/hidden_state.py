"""The shared hidden state x̂, and the one function that moves it.

The invariant of the whole system: server and clients hold bit-identical x̂ at equal version. It holds because both
sides advance theirs with `advance`, from the same bytes, in version order; and it is checked, because every
broadcast carries the digest of the x̂ that must result.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import final

import numpy as np
import xxhash

from qafel.algorithm.messages import Kind, Message, expectations
from qafel.algorithm.wiring import Algorithm
from qafel.errors import ClientAhead, ConfigError, Drifted, MissedBroadcast
from qafel.params import Vector, check_arithmetic
from qafel.quantizers import Identity
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

_SNAPSHOT_CODEC = Identity()
_NO_RANDOMNESS = Stream((0, 0))


@final
@dataclass(frozen=True, slots=True, eq=False)
class HiddenState:
    """x̂ at one version. It is never changed, so that all who start from a version share one vector."""

    vector: Vector
    """x̂: what clients start from."""
    memory: Vector
    """What the next difference is relative to: x̂ itself, but for a memory rate below one (MCM)."""
    version: int
    digest: int
    exact: bool = True
    """False of Q_snap(x̂), which is only a start to train from: no broadcast moves it."""

    @staticmethod
    def of(vector: Vector, version: int = 0, memory: Vector | None = None, *, exact: bool = True) -> HiddenState:
        """Take over a vector (it becomes read-only).

        Every x̂ of server, clients and workers passes here, and only one that was made by the common arithmetic counts.
        """
        check_arithmetic()
        vector.flags.writeable = False
        if memory is None:
            return HiddenState(vector, vector, version, xxhash.xxh3_64_intdigest(vector.data), exact)
        memory.flags.writeable = False
        hasher = xxhash.xxh3_64(vector.data)
        hasher.update(memory.data)
        return HiddenState(vector, memory, version, hasher.intdigest())

    def advanced(self, message: Message, algorithm: Algorithm) -> HiddenState:
        """The hidden state after a broadcast, or an error that says why there is none.

        A difference needs the version it is based on; a whole model replaces any older one.
        """
        message.check(algorithm.broadcast_kind, self.vector.size, algorithm.server_quantizer)
        if not self.exact:
            raise MissedBroadcast(f"this copy of hidden state {self.version} is an inexact one: fetch a snapshot")
        if message.kind is Kind.BROADCAST and message.version != self.version:
            raise MissedBroadcast(
                f"this hidden state is at version {self.version}, the broadcast starts from {message.version}: catch up"
            )
        following = advance(self, message.version, message.payload, algorithm)
        if following.digest != message.digest:
            raise Drifted(
                f"version {following.version} should have digest {message.digest:016x}, got {following.digest:016x}: "
                "this hidden state has drifted, start again from a snapshot"
            )
        return following

    def to_snapshot(self) -> bytes:
        """The whole hidden state as one message; if its memory is another vector, that follows it."""
        whole = self.vector if self.memory is self.vector else np.concatenate([self.vector, self.memory])
        payload = _SNAPSHOT_CODEC.encode(whole, _NO_RANDOMNESS)
        return Message(
            Kind.SNAPSHOT, _SNAPSHOT_CODEC.codec, whole.size, self.version, payload, digest=self.digest
        ).to_bytes()

    @property
    def snapshot_bytes(self) -> int:
        """The length of `to_snapshot`."""
        return _snapshot_bytes(self.vector.size, self.memory is self.vector)

    @staticmethod
    def from_snapshot(message: Message, dimension: int, algorithm: Algorithm) -> HiddenState:
        """The inverse of `to_snapshot`, for a model of that dimension; of `inexact_snapshot` what it decodes to."""
        quantizer = algorithm.snapshot_quantizer
        if quantizer is not None and message.codec != _SNAPSHOT_CODEC.codec:
            message.check(Kind.SNAPSHOT, dimension, quantizer)
            decoded = quantizer.decode(message.payload, dimension)
            return HiddenState.of(decoded, message.version, exact=False).matching(message)
        with_memory = algorithm.downlink_rate(dimension) != 1 and message.dimension == 2 * dimension
        size = 2 * dimension if with_memory else dimension
        message.check(Kind.SNAPSHOT, size, _SNAPSHOT_CODEC)
        whole = _SNAPSHOT_CODEC.decode(message.payload, size)
        memory = whole[dimension:] if with_memory else None
        return HiddenState.of(whole[:dimension], message.version, memory).matching(message)

    def matching(self, snapshot: Message) -> HiddenState:
        """Return this hidden state, or raise if it does not have the snapshot's digest."""
        if self.digest != snapshot.digest:
            raise Drifted(f"the snapshot of version {self.version} does not match its digest: ask for another")
        return self


def advance(state: HiddenState, version: int, payload: Payload, algorithm: Algorithm) -> HiddenState:
    """The next hidden state: the one function that server and clients apply.

    x̂ᵗ⁺¹ = x̂ᵗ + q. Algorithm 1, line 13; Algorithm 3, line 4. Direct quantization: x̂ᵗ⁺¹ = 0 + Q_s(x). MCM, with memory h
    and rate α: x̂ᵗ⁺¹ = hᵗ + q, hᵗ⁺¹ = hᵗ + αq.
    """
    base = state.memory if algorithm.broadcast_kind is Kind.BROADCAST else np.zeros_like(state.memory)
    vector = base.copy()
    algorithm.server_quantizer.add_decoded_(vector, payload)
    memory, rate = None, algorithm.downlink_rate(base.size)
    if rate != 1:
        memory = base.copy()
        algorithm.server_quantizer.add_decoded_(memory, payload, rate)
    return HiddenState.of(vector, version + 1, memory)


def model_for_start(exact: HiddenState, algorithm: Algorithm, seed: int, client: int, sequence: int) -> bytes:
    """What one client downloads when it starts: Q_s(x), drawn for this start alone. `exact` holds x itself."""
    quantizer, model = algorithm.server_quantizer, exact.vector
    payload = quantizer.encode(model, Stream.named(seed, "start-quantizer", client, sequence))
    return Message(Kind.MODEL, quantizer.codec, model.size, exact.version, payload).to_bytes()


def inexact_snapshot(exact: HiddenState, algorithm: Algorithm, seed: int) -> bytes:
    """Q_snap(x̂) as a message, one for a version: its random stream is named by the run's seed and the version.

    Its digest is that of the vector it decodes to.
    """
    quantizer, vector = algorithm.snapshot_quantizer, exact.vector
    assert quantizer is not None
    payload = quantizer.encode(vector, Stream.named(seed, "snapshot-quantizer", number=exact.version))
    codec, _ = expectations(quantizer, vector.size)
    digest = HiddenState.of(quantizer.decode(payload, vector.size)).digest
    return Message(Kind.SNAPSHOT, codec, vector.size, exact.version, payload, digest=digest).to_bytes()


@lru_cache(maxsize=64)
def _snapshot_bytes(dimension: int, is_own_memory: bool) -> int:
    """The bytes of a snapshot, counted on one: all of this dimension are as long."""
    vector = np.zeros(dimension, np.float32)
    return len(HiddenState.of(vector, memory=None if is_own_memory else vector.copy()).to_snapshot())


@final
class BroadcastLog:
    """What a client missed: the last broadcasts, at most `capacity`, and the digest of the hidden state before each.

    The paper is silent on clients that miss broadcasts or join late; without this they could never train again.
    """

    __slots__ = ("_entries",)

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ConfigError(f"the broadcast log's capacity is zero or more, got {capacity}")
        self._entries: deque[tuple[int, bytes]] = deque(maxlen=capacity)

    def append(self, digest_before: int, broadcast: bytes) -> None:
        self._entries.append((digest_before, broadcast))

    def missed(
        self, current: HiddenState, version: int, digest: int | None, kind: Kind, most_bytes: int
    ) -> list[bytes] | None:
        """Messages that bring a client from its version (and, if it says, its digest) to the current hidden state.

        None: they are not kept, or longer than `most_bytes`, and a snapshot is better.
        """
        if version > current.version:
            raise ClientAhead(
                f"the client holds hidden state {version}, the server {current.version}: "
                "one of them belongs to another run or lost its state; start again from a snapshot"
            )
        behind = current.version - version
        held = digest if behind > len(self._entries) else self._digest(current, behind)
        if digest is not None and digest != held:
            raise Drifted(
                f"hidden state {version} has digest {held:016x} here, {digest:016x} at the client: "
                "it has drifted, start again from a snapshot"
            )
        if behind == 0:
            return []
        if behind <= len(self._entries):
            # A whole model replaces whatever the client holds: only the last one matters.
            wanted = 1 if kind is Kind.MODEL else behind
            messages = [data for _, data in islice(self._entries, len(self._entries) - wanted, None)]
            if sum(map(len, messages)) <= most_bytes:
                return messages
        return None

    def _digest(self, current: HiddenState, behind: int) -> int:
        return current.digest if behind == 0 else self._entries[-behind][0]
