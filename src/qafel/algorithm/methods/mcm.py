"""MCM: rounds; quantized both ways, each way against a memory. Philippenko and Dieuleveut, NeurIPS 2021.

Up: client i sends Q_c(y₀ − y_P − hᵢ), and hᵢ ← hᵢ + α Q_c(…). The server keeps h̄, the mean of all memories, alone:
Δ̄ = h̄ + (1/K)Σ Q_c(…). Down: q = Q_s(x − h), x̂ ← h + q, h ← h + αq. docs/decisions/algorithm.md
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias, final

import numpy as np

from qafel.algorithm.accumulators import BufferedMean
from qafel.algorithm.admission import weigh
from qafel.algorithm.algorithm import Algorithm
from qafel.algorithm.hidden_state import Downlink, HiddenState
from qafel.algorithm.methods.fedavg import ROUNDS
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.parts import Batch, ClientRule, Direction, Needs, Trained
from qafel.algorithm.state import State
from qafel.errors import require
from qafel.params import Vector
from qafel.quantizers.protocol import Payload, Quantizer

Rate: TypeAlias = float | Literal["from-omega"]
"""A memory's rate α: a number, or 1/(2(1 + ω)) with the ω of the quantizer whose messages it takes up."""


@final
class Memory(ClientRule):
    """Q_c(y₀ − y_P − hᵢ): an upload relative to the client's memory, which takes up α of it."""

    needs = Needs(client_memory=True, exact_uploads=True)

    def __init__(self, rate: Rate = "from-omega", *, client_quantizer: Quantizer) -> None:
        self._rate, self._quantizer = _checked(rate), client_quantizer

    def rate(self, size: int) -> float:
        return rate_of(self._rate, self._quantizer, size)

    def problem(self, algorithm: Algorithm) -> str | None:
        # The server keeps the mean of the clients' memories alone: it must weigh all of them alike.
        plain = isinstance(algorithm.accumulator, MemoryMean) and algorithm.client_weights == "equal"
        fits = plain and algorithm.max_staleness == 0 and weigh(algorithm.staleness, 0) == 1
        rule = 'client_rule = "memory" needs accumulator = "memory-mean", equal weights and rounds (max_staleness = 0)'
        return None if fits else f"{rule}, and a staleness law that is 1 at 0"

    def new_memory(self, size: int) -> State:
        return {"h": np.zeros(size, np.float32)}

    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        vector: Vector = start.vector - trained.model - memory["h"]
        return vector

    def following(self, start: HiddenState, trained: Trained, memory: State, sent: Vector) -> State:
        return {"h": memory["h"] + np.float32(self.rate(sent.size)) * sent}


@final
class MemoryMean(BufferedMean):
    """h̄ + (1/K)Σ of what was sent; h̄ then moves by the mean change of the clients' memories."""

    needs = Needs(clients=True)

    def __init__(self) -> None:
        super().__init__("mean")

    def problem(self, algorithm: Algorithm) -> str | None:
        fits = isinstance(algorithm.client_rule, Memory)
        return None if fits else 'accumulator = "memory-mean" needs client_rule = "memory"'

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        assert isinstance(algorithm.client_rule, Memory)
        assert clients is not None
        self.memory: Vector = np.zeros(size, np.float32)
        self._move = algorithm.client_rule.rate(size) / clients
        super().begin_(algorithm, size, clients)

    def direction(self, batch: Batch, model: Vector) -> Direction:
        return super().direction(batch, model)._replace(memory=self.memory)

    def stepped_(self, batch: Batch, quantizer: Quantizer) -> None:
        self.memory = self.memory + np.float32(self._move) * batch.content["total"]


@final
class MemoryDifference(Downlink):
    """q = Q_s(x − h), x̂ ← h + q, h ← h + αq."""

    def __init__(self, rate: Rate = "from-omega") -> None:
        self._rate = _checked(rate)
        require(self._rate, 'a downlink memory\'s rate lies in (0, 1], or is "from-omega"', rate)

    def rate(self, quantizer: Quantizer, size: int) -> float:
        return rate_of(self._rate, quantizer, size)

    def target(self, model: Vector, held: HiddenState) -> Vector:
        return model - held.memory

    def advance(self, held: HiddenState, version: int, payload: Payload, quantizer: Quantizer) -> HiddenState:
        vector = held.memory.copy()
        quantizer.add_decoded_(vector, payload)
        rate = self.rate(quantizer, vector.size)
        if rate == 1:
            return HiddenState.of(vector, version + 1)
        memory = held.memory.copy()
        quantizer.add_decoded_(memory, payload, rate)
        return HiddenState.of(vector, version + 1, memory)


def _checked(rate: Rate) -> Rate:
    number = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 1
    require(number or rate == "from-omega", 'a memory\'s rate lies in [0, 1], or is "from-omega"', rate)
    return rate


@lru_cache(maxsize=64)
def rate_of(rate: Rate, quantizer: Quantizer, size: int) -> float:
    """α as a number, for a model of `size` parameters."""
    if not isinstance(rate, str):
        return rate
    omega = quantizer.omega(size)
    require(math.isfinite(omega), f"{quantizer.spec} does not bound ω: state the memory's rate", rate)
    return 1 / (2 * (1 + omega))


MCM = Preset(
    "rounds; quantized both ways, a memory each way",
    {**ROUNDS, "client_rule": "memory", "accumulator": "memory-mean", "downlink": "memory"},
    rounds=True,
)
