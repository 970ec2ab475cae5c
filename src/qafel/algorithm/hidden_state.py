"""The shared hidden state x̂, and the downlinks that move it.

The invariant of the whole system: server and clients hold bit-identical x̂ at equal version. It holds because both ends
move theirs with the same `Downlink.advance`, from the same bytes, in version order. Every broadcast carries the digest
of the x̂ that must result.

HiddenStateDifference   x̂ ← x̂ + Q_s(x − x̂): QAFeL
DirectModel             x̂ ← Q_s(x): direct quantization, no hidden state
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import numpy as np
import xxhash

from qafel.algorithm.messages import Kind, Message
from qafel.algorithm.parts import Part
from qafel.errors import Drifted, MissedBroadcast
from qafel.params import Vector, check_arithmetic
from qafel.quantizers import Identity
from qafel.quantizers.protocol import Payload, Quantizer
from qafel.rng import Stream

if TYPE_CHECKING:
    from qafel.algorithm.algorithm import Algorithm

SNAPSHOT_CODEC = Identity()
_NO_RANDOMNESS = Stream((0, 0))


@final
@dataclass(frozen=True, slots=True, eq=False)
class HiddenState:
    """x̂ at one version. It is never changed, so that all who start from a version share one vector."""

    vector: Vector
    """x̂: what clients start from."""
    memory: Vector
    """What the downlink keeps besides x̂: a reference (MCM) or the last move (CAFe); else x̂ itself."""
    version: int
    digest: int
    exact: bool = True
    """False of a quantized copy, which is only a start to train from: no broadcast moves it."""

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
        message.check(algorithm.downlink.kind, self.vector.size, algorithm.server_quantizer)
        if not self.exact:
            raise MissedBroadcast(f"this copy of hidden state {self.version} is an inexact one: fetch a snapshot")
        if message.kind is Kind.BROADCAST and message.version != self.version:
            raise MissedBroadcast(
                f"this hidden state is at version {self.version}, the broadcast starts from {message.version}: catch up"
            )
        following = algorithm.downlink.advance(self, message.version, message.payload, algorithm.server_quantizer)
        if following.digest != message.digest:
            raise Drifted(
                f"version {following.version} should have digest {message.digest:016x}, got {following.digest:016x}: "
                "this hidden state has drifted, start again from a snapshot"
            )
        return following

    def to_snapshot(self) -> bytes:
        """The whole hidden state as one message; if its memory is another vector, that follows it."""
        whole = self.vector if self.memory is self.vector else np.concatenate([self.vector, self.memory])
        payload = SNAPSHOT_CODEC.encode(whole, _NO_RANDOMNESS)
        return Message(
            Kind.SNAPSHOT, SNAPSHOT_CODEC.codec, whole.size, self.version, payload, digest=self.digest
        ).to_bytes()

    @property
    def snapshot_bytes(self) -> int:
        """The length of `to_snapshot`."""
        return _snapshot_bytes(self.vector.size, self.memory is self.vector)

    @staticmethod
    def from_snapshot(message: Message, dimension: int, algorithm: Algorithm) -> HiddenState:
        """The inverse of `to_snapshot`, for a model of that dimension; of a quantized copy what it decodes to."""
        quantizer = algorithm.catch_up.quantizer
        if quantizer is not None and message.codec != SNAPSHOT_CODEC.codec:
            message.check(Kind.SNAPSHOT, dimension, quantizer)
            decoded = quantizer.decode(message.payload, dimension)
            return HiddenState.of(decoded, message.version, exact=False).matching(message)
        apart = algorithm.downlink.keeps_memory(algorithm.server_quantizer, dimension)
        with_memory = apart and message.dimension == 2 * dimension
        size = 2 * dimension if with_memory else dimension
        message.check(Kind.SNAPSHOT, size, SNAPSHOT_CODEC)
        whole = SNAPSHOT_CODEC.decode(message.payload, size)
        memory = whole[dimension:] if with_memory else None
        return HiddenState.of(whole[:dimension], message.version, memory).matching(message)

    def matching(self, snapshot: Message) -> HiddenState:
        """Return this hidden state, or raise if it does not have the snapshot's digest."""
        if self.digest != snapshot.digest:
            raise Drifted(f"the snapshot of version {self.version} does not match its digest: ask for another")
        return self


@lru_cache(maxsize=64)
def _snapshot_bytes(dimension: int, is_own_memory: bool) -> int:
    """The bytes of a snapshot, counted on one: all of this dimension are as long."""
    vector = np.zeros(dimension, np.float32)
    return len(HiddenState.of(vector, memory=None if is_own_memory else vector.copy()).to_snapshot())


class Downlink(Part):
    """What the server broadcasts, and how x̂ moves. Algorithm 1, lines 12 and 13; Algorithm 3, line 4."""

    kind: Kind = Kind.BROADCAST
    """Of its broadcasts: a difference, or a whole model."""

    def rate(self, quantizer: Quantizer, size: int) -> float:
        """How much of a difference the reference of the next one takes up; 1: it is x̂ itself."""
        return 1.0

    def keeps_memory(self, quantizer: Quantizer, size: int) -> bool:
        """Whether hidden states after the first have a memory besides x̂."""
        return self.rate(quantizer, size) != 1

    @abstractmethod
    def target(self, model: Vector, held: HiddenState) -> Vector:
        """What Q_s encodes; `model` is x."""

    @abstractmethod
    def advance(self, held: HiddenState, version: int, payload: Payload, quantizer: Quantizer) -> HiddenState:
        """The hidden state of version + 1: the one function that server and clients apply."""


@final
class HiddenStateDifference(Downlink):
    """q = Q_s(x − x̂), x̂ ← x̂ + q."""

    def target(self, model: Vector, held: HiddenState) -> Vector:
        return model - held.vector

    def advance(self, held: HiddenState, version: int, payload: Payload, quantizer: Quantizer) -> HiddenState:
        vector = held.vector.copy()
        quantizer.add_decoded_(vector, payload)
        return HiddenState.of(vector, version + 1)


@final
class DirectModel(Downlink):
    """x̂ = Q_s(x): the server sends its whole quantized model ("Naive" in the paper)."""

    kind = Kind.MODEL

    def target(self, model: Vector, held: HiddenState) -> Vector:
        return model

    def advance(self, held: HiddenState, version: int, payload: Payload, quantizer: Quantizer) -> HiddenState:
        vector = np.zeros_like(held.vector)
        quantizer.add_decoded_(vector, payload)
        return HiddenState.of(vector, version + 1)
