"""A client: local training from a copied hidden state (Algorithm 2), and the background (Algorithm 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias, final

import numpy as np

from qafel.algorithm.algorithm import Algorithm, LocalTraining
from qafel.algorithm.catch_up import linked_start
from qafel.algorithm.hidden_state import HiddenState
from qafel.algorithm.messages import Kind, Message, expectations
from qafel.algorithm.parts import Trained
from qafel.algorithm.state import State
from qafel.errors import ConfigError, PartFailed
from qafel.params import Vector, require_vector
from qafel.parts import errors_of, raise_part_failed
from qafel.rng import Stream
from qafel.text import path_of

Train: TypeAlias = Callable[[HiddenState, LocalTraining, Stream], Vector | Trained]
"""From the hidden state (not to be changed), local training and a random stream to the trained model."""


class Made(NamedTuple):
    """An upload, and the client's memory once the server has accepted it."""

    upload: bytes
    memory: State


@final
class Client:
    """One client's state: its number, its hidden state, how many uploads it has made, and its memory."""

    __slots__ = ("_codec", "algorithm", "hidden_state", "initial", "memory", "number", "seed", "sequence", "weight")

    def __init__(
        self,
        number: int,
        hidden_state: HiddenState,
        algorithm: Algorithm,
        seed: int,
        *,
        weight: float = 1.0,
        sequence: int = 0,
        memory: State | None = None,
    ) -> None:
        """`memory`: what the client rule keeps; None: that of a client that never uploaded."""
        self.number = number
        self.hidden_state = hidden_state
        self.algorithm = algorithm
        self.seed = seed
        self.weight = weight
        self.sequence = sequence
        self.initial: HiddenState | None = None
        """x⁰, if this client can make it."""
        self._codec, _ = expectations(algorithm.client_quantizer, hidden_state.vector.size)
        self.memory = algorithm.client_rule.new_memory(hidden_state.vector.size) if memory is None else memory

    def receive(self, data: bytes) -> bool:
        """Advance the hidden state by a broadcast, snapshot or linked start. Algorithm 3.

        Return False if the message was known already.

        Broadcasts that are missing in between raise `MissedBroadcast`.
        """
        message = Message.from_bytes(data)
        if message.kind is Kind.START:
            part = self.algorithm.catch_up
            self.hidden_state = linked_start(message, part, self.hidden_state, self.initial)
            return True
        if message.kind is Kind.SNAPSHOT:
            state, held = self._from_snapshot(message), self.hidden_state
            newer = (state.version, state.exact) > (held.version, held.exact)
            self.hidden_state = state if newer else held
            return newer
        if message.version < self.hidden_state.version:
            algorithm = self.algorithm
            message.check(algorithm.downlink.kind, self.hidden_state.vector.size, algorithm.server_quantizer)
            return False
        self.hidden_state = self.hidden_state.advanced(message, self.algorithm)
        return True

    def restart(self, snapshot: bytes) -> None:
        """Take the snapshot's hidden state whatever this client held: for one that is ahead or has drifted."""
        self.hidden_state = self._from_snapshot(Message.from_bytes(snapshot))

    def _from_snapshot(self, message: Message) -> HiddenState:
        return HiddenState.from_snapshot(message, self.hidden_state.vector.size, self.algorithm)

    def begin(self) -> Client:
        """A copy of this client for its next update: it trains from the x̂ of now while this one moves on."""
        copied = Client(
            self.number, self.hidden_state, self.algorithm, self.seed,
            weight=self.weight, sequence=self.sequence, memory=self.memory,
        )  # fmt: skip
        self.sequence += 1
        return copied

    def update(self, train: Train, local: LocalTraining | None = None) -> Made:
        """Copy x̂, train, encode. Algorithm 2, lines 2 to 6. The upload is Q_c(y₀ − y_P) with the version of y₀.

        local  the algorithm's by default
        """
        algorithm, rule, sequence = self.algorithm, self.algorithm.client_rule, self.sequence
        self.sequence += 1
        start = algorithm.catch_up.start(self.hidden_state, algorithm, self.seed, self.number, sequence)
        size, quantizer = start.vector.size, algorithm.client_quantizer
        try:
            local = rule.local((local or algorithm.local).at(start.version), start, self.memory)
        except Exception as error:
            raise_part_failed(error, rule, "local")
        if not isinstance(local, LocalTraining):
            raise PartFailed(f"{path_of(rule)}.local returned {type(local).__name__}, not a LocalTraining")
        if local.correction is not None:
            if not rule.needs.correction:
                raise ConfigError(f"{path_of(rule)} corrects gradients: declare needs = qafel.Needs(correction=True)")
            if np.shape(local.correction) != (size,):
                shape = list(np.shape(local.correction))
                raise PartFailed(f"{path_of(rule)}.local returned a correction of shape {shape}, expected [{size}]")
        trained = as_trained(
            train(start, local, Stream.named(self.seed, "train", self.number, sequence)),
            *(size, lambda: f"the training of client {self.number}"),
        )
        try:
            vector = rule.vector(start, trained, self.memory)
        except Exception as error:
            raise_part_failed(error, rule, "vector")
        vector = require_vector(vector, size, lambda: f"{path_of(rule)}.vector")
        kept = trained if rule.needs.client_memory else None
        del trained  # frees a large model before it is encoded
        payload = quantizer.encode(vector, Stream.named(self.seed, "client-quantizer", self.number, sequence))
        del vector
        message = Message(Kind.UPLOAD, self._codec, size, start.version, payload, self.number, sequence, self.weight)
        memory = self.memory
        if kept is not None:
            with errors_of(rule, "following"):
                memory = rule.following(start, kept, memory, quantizer.decode(payload, size))
            _require_memory(memory, self.memory, rule)
        return Made(message.to_bytes(), memory)


def _require_memory(found: object, before: State, rule: object) -> None:
    """Raise `PartFailed` unless `following` returned a memory of the same names, types and lengths."""
    if not isinstance(found, Mapping) or found.keys() != before.keys():
        names = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise PartFailed(f"{path_of(rule)}.following returned {names}, not a memory of {sorted(before)}")
    for name, old in before.items():
        new = found[name]
        if not isinstance(new, np.ndarray) or (new.dtype, new.shape) != (old.dtype, old.shape):
            kind = f"{new.dtype}{list(new.shape)}" if isinstance(new, np.ndarray) else type(new).__name__
            raise PartFailed(
                f"{path_of(rule)}.following returned {name} as {kind}, and new_memory as {old.dtype}{list(old.shape)}"
            )


def as_trained(found: object, size: int, what: str | Callable[[], str]) -> Trained:
    """What local training returned, a vector or `Trained`; `PartFailed` names it by `what` if it is neither."""
    if isinstance(found, Trained):
        return found._replace(model=require_vector(found.model, size, what))
    return Trained(require_vector(found, size, what))
