"""The client: copy the hidden state, train, upload. Algorithms 2 and 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

import numpy as np

from qafel.algorithm.hidden_state import HiddenState, model_for_start
from qafel.algorithm.messages import Kind, Message, expectations
from qafel.algorithm.wiring import Algorithm
from qafel.params import Vector, require_vector
from qafel.rng import Stream

Train: TypeAlias = Callable[[Vector, Stream], Vector]
"""From y₀ (not to be changed) and a random stream to y_P."""


def local_update(
    start: HiddenState,
    train: Train,
    algorithm: Algorithm,
    seed: int,
    *,
    client: int,
    sequence: int,
    weight: float = 1.0,
    memory: Vector | None = None,
) -> bytes:
    """Copy, train and encode: one whole local update, as the message that crosses. Algorithm 2.

    start      the hidden state that the client copied; with `direct_draw = "start"`, the server's model itself
    algorithm  what server and clients agree on
    train      local training, from y₀ and a random stream to y_P
    seed       the run's seed: with `client` and `sequence` it names the random streams
    client     the client's number
    sequence   how many updates this client made before
    weight     how much this client's updates count
    memory     what its upload is relative to, hᵢ of MCM; None: zero
    """
    if algorithm.direct_draw == "start":
        message = Message.from_bytes(model_for_start(start, algorithm, seed, client, sequence))
        received = algorithm.server_quantizer.decode(message.payload, message.dimension)
        start = HiddenState.of(received, message.version)
    trained = train(start.vector, Stream.named(seed, "train", client, sequence))
    trained = require_vector(trained, start.vector.size, f"the training of client {client}")
    stream = Stream.named(seed, "client-quantizer", client, sequence)
    return make_upload(
        start, trained, algorithm, stream, client=client, sequence=sequence, weight=weight, memory=memory
    )


def make_upload(
    start: HiddenState,
    trained: Vector,
    algorithm: Algorithm,
    stream: Stream,
    *,
    client: int,
    sequence: int,
    weight: float = 1.0,
    memory: Vector | None = None,
) -> bytes:
    """Encode what a client learnt. Q_c(y₀ − y_P), with the version it started from. Algorithm 2, line 6.

    With a memory, Q_c(y₀ − y_P − hᵢ). `trained` is y_P, and `stream` the quantizer's randomness; the others are as in
    `local_update`.
    """
    vector = start.vector - trained if algorithm.upload == "update" else trained
    if memory is not None:
        vector = vector - memory
    quantizer = algorithm.client_quantizer
    payload = quantizer.encode(vector, stream)
    codec, _ = expectations(quantizer, vector.size)
    return Message(Kind.UPLOAD, codec, vector.size, start.version, payload, client, sequence, weight).to_bytes()


def remembered(memory: Vector | None, upload: Message, algorithm: Algorithm) -> Vector:
    """A client's memory once the server has taken its upload. hᵢ ← hᵢ + α Q_c(y₀ − y_P − hᵢ), from zero. MCM.

    What the server did not take must not move it: the server's mean of all memories would no longer be their mean.
    """
    following = np.zeros(upload.dimension, np.float32) if memory is None else memory.copy()
    algorithm.client_quantizer.add_decoded_(following, upload.payload, algorithm.uplink_rate(upload.dimension))
    return following


@final
class Client:
    """One client's state: its number, its hidden state, how many uploads it has made, and its memory if it has one."""

    __slots__ = ("algorithm", "hidden_state", "memory", "number", "seed", "sequence", "weight")

    def __init__(
        self,
        number: int,
        hidden_state: HiddenState,
        algorithm: Algorithm,
        seed: int,
        *,
        weight: float = 1.0,
        sequence: int = 0,
    ) -> None:
        self.number = number
        self.hidden_state = hidden_state
        self.algorithm = algorithm
        self.seed = seed
        self.weight = weight
        self.sequence = sequence
        self.memory: Vector | None = None

    def receive(self, data: bytes) -> bool:
        """Advance the hidden state by a broadcast or snapshot; False if it was known already. Algorithm 3.

        Broadcasts that are missing in between raise `MissedBroadcast`: ask the server to `catch_up`.
        """
        message = Message.from_bytes(data)
        if message.kind is Kind.SNAPSHOT:
            state, held = self._from_snapshot(message), self.hidden_state
            newer = (state.version, state.exact) > (held.version, held.exact)
            self.hidden_state = state if newer else held
            return newer
        if message.version < self.hidden_state.version:
            message.check(self.algorithm.broadcast_kind, self.hidden_state.vector.size, self.algorithm.server_quantizer)
            return False
        self.hidden_state = self.hidden_state.advanced(message, self.algorithm)
        return True

    def restart(self, snapshot: bytes) -> None:
        """Take the snapshot's hidden state whatever this client held: for one that is ahead or has drifted."""
        self.hidden_state = self._from_snapshot(Message.from_bytes(snapshot))

    def _from_snapshot(self, message: Message) -> HiddenState:
        return HiddenState.from_snapshot(message, self.hidden_state.vector.size, self.algorithm)

    def update(self, train: Train) -> bytes:
        """Make this client's next update.

        Broadcasts may be received while `train` runs; the update belongs to the version that was copied.
        """
        sequence = self.sequence
        self.sequence += 1
        return local_update(
            self.hidden_state,
            train,
            self.algorithm,
            self.seed,
            client=self.number,
            sequence=sequence,
            weight=self.weight,
            memory=self.memory,
        )

    def taken(self, upload: bytes) -> None:
        """Note that the server took the last upload: the memory, where the algorithm has one, moves with it."""
        if self.algorithm.uplink_memory_rate:
            self.memory = remembered(self.memory, Message.from_bytes(upload), self.algorithm)
