"""Client rules: what a client sends. Algorithm 2, line 6. Rules with a memory are with their methods."""

from __future__ import annotations

from typing import final

from qafel.algorithm.hidden_state import HiddenState
from qafel.algorithm.parts import ClientRule, Trained
from qafel.algorithm.state import State
from qafel.params import Vector


@final
class Update(ClientRule):
    """y₀ − y_P."""

    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        return start.vector - trained.model


@final
class Model(ClientRule):
    """y_P itself, which the server mixes into x (FedAsync)."""

    sends_model = True

    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        return trained.model
