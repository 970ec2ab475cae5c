"""The shared hidden state x̂, and the one function that moves it.

The invariant of the whole system: server and clients hold bit-identical x̂ at equal version. It holds because both
sides advance theirs with `advance`, from the same bytes, in version order; and it is checked, because every
broadcast carries the digest of the x̂ that must result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import xxhash

from qafel.algorithm.messages import Kind, Message
from qafel.errors import Drifted, MissedBroadcast
from qafel.params import Vector
from qafel.quantizers import Identity
from qafel.quantizers.protocol import Payload, Quantizer
from qafel.rng import Stream

_SNAPSHOT_CODEC = Identity()
_NO_RANDOMNESS = Stream((0, 0))


def advance(hidden_state: Vector, kind: Kind, payload: Payload, quantizer: Quantizer) -> Vector:
    """The next hidden state, as a new vector.

    x̂ᵗ⁺¹ = x̂ᵗ + q. Algorithm 1, line 13; Algorithm 3, line 4. (Direct quantization: x̂ᵗ⁺¹ = 0 + Q_s(x).)
    """
    following = hidden_state.copy() if kind is Kind.BROADCAST else np.zeros_like(hidden_state)
    quantizer.add_decoded_(following, payload)
    return following


@final
@dataclass(frozen=True, slots=True, eq=False)
class HiddenState:
    """x̂ at one version. It is never changed, so that all who start from a version share one vector."""

    vector: Vector
    version: int
    digest: int

    @staticmethod
    def of(vector: Vector, version: int = 0) -> HiddenState:
        """Take over a vector (it becomes read-only)."""
        vector.flags.writeable = False
        return HiddenState(vector, version, xxhash.xxh3_64_intdigest(vector.data))

    def advanced(self, message: Message, kind: Kind, quantizer: Quantizer) -> HiddenState:
        """The hidden state after a broadcast of the agreed kind, or an error that says why there is none.

        A difference needs the version it is based on; a whole model replaces any older one.
        """
        message.check(kind, self.vector.size, quantizer)
        if kind is Kind.BROADCAST and message.version != self.version:
            raise MissedBroadcast(
                f"this hidden state is at version {self.version}, the broadcast starts from {message.version}: catch up"
            )
        following = HiddenState.of(advance(self.vector, kind, message.payload, quantizer), message.version + 1)
        if following.digest != message.digest:
            raise Drifted(
                f"version {following.version} should have digest {message.digest:016x}, got {following.digest:016x}: "
                "this hidden state has drifted, start again from a snapshot"
            )
        return following

    def to_snapshot(self) -> bytes:
        """The whole hidden state as one message."""
        payload = _SNAPSHOT_CODEC.encode(self.vector, _NO_RANDOMNESS)
        return Message(
            Kind.SNAPSHOT, _SNAPSHOT_CODEC.codec, self.vector.size, self.version, payload, digest=self.digest
        ).to_bytes()

    @staticmethod
    def from_snapshot(message: Message, dimension: int) -> HiddenState:
        message.check(Kind.SNAPSHOT, dimension, _SNAPSHOT_CODEC)
        state = HiddenState.of(_SNAPSHOT_CODEC.decode(message.payload, dimension), message.version)
        if state.digest != message.digest:
            raise Drifted(f"the snapshot of version {state.version} does not match its digest: ask for another")
        return state
