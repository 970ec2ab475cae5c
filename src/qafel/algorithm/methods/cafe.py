"""CAFe: a client sends how its update differs from the last aggregate. Ortega et al., 2025; here for a buffer.

p = −q/η_g is the aggregate that x̂'s last move q implies. A client that starts from version v sends Q_c(Δ − gpᵛ). The
server adds gpᵛ: Δ̄ = (1/K)Σ wₖ(gpᵛ + Q_c(Δₖ − gpᵛ)). Both ends know q, so biased quantizers such as top_k converge
further, and no client has a memory. The server keeps a broadcast for each version that an update may start from.
docs/decisions/algorithm.md
"""

from __future__ import annotations

from typing import final

import numpy as np

from qafel.algorithm.accumulators import BufferedMean
from qafel.algorithm.algorithm import Algorithm
from qafel.algorithm.hidden_state import Downlink, HiddenState
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.parts import ClientRule, Next, Trained, Upload
from qafel.algorithm.server_rules import SGD, is_number
from qafel.algorithm.state import Rows, State
from qafel.errors import DataError, MessageError, require
from qafel.params import Vector
from qafel.quantizers.protocol import Payload, Quantizer


@final
class AggregateFeedback(ClientRule):
    """y₀ − y_P − gp, with p the aggregate that the last move implies; zero before the first move."""

    corrects_bias = True

    def __init__(self, gain: float = 1.0, *, lr: float, momentum: float) -> None:
        """`gain`: g, the share of the last aggregate that clients expect again."""
        require(is_number(gain) and 0 <= gain <= 1, "the gain of aggregate feedback lies in [0, 1]", gain)
        self.rate, self._steps = gain * (1 - momentum) / lr, (lr, momentum)

    def problem(self, algorithm: Algorithm) -> str | None:
        rule, most = algorithm.server_rule, algorithm.max_staleness
        ends = isinstance(algorithm.accumulator, FeedbackMean), isinstance(algorithm.downlink, KeptDifference)
        if not all(ends) or most is None:
            return 'aggregate feedback needs accumulator = "feedback-mean", downlink = "kept", and a max_staleness'
        steps = isinstance(rule, SGD) and (rule.lr, rule.momentum) == self._steps
        fits = steps and algorithm.client_weights == "equal"
        return None if fits else "aggregate feedback needs the server rule sgd with server_lr, and equal weights"

    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        update: Vector = start.vector - trained.model
        return update if start.memory is start.vector else update + np.float32(self.rate) * start.memory


@final
class FeedbackMean(BufferedMean):
    """The mean of K updates, each with the aggregate that its client left out."""

    def __init__(self) -> None:
        super().__init__("mean")

    def problem(self, algorithm: Algorithm) -> str | None:
        fits = isinstance(algorithm.client_rule, AggregateFeedback)
        return None if fits else 'accumulator = "feedback-mean" needs client_rule = "aggregate-feedback"'

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        assert isinstance(algorithm.client_rule, AggregateFeedback)
        assert algorithm.max_staleness is not None
        self.moves = Rows(dtype=np.uint8)
        """The broadcast that led to each of the last versions."""
        self._rate, self._quantizer = algorithm.client_rule.rate, algorithm.server_quantizer
        self._most = algorithm.max_staleness
        super().begin_(algorithm, size, clients)

    def add_(self, upload: Upload, quantizer: Quantizer) -> Next:
        following = super().add_(upload, quantizer)
        if (move := self.moves.get(upload.version)) is not None:
            weight = upload.weight * upload.staleness_weight * upload.factor
            self._quantizer.add_decoded_(self.total, move, -self._rate * weight)
        return following

    def moved_(self, version: int, payload: Payload) -> None:
        self.moves[version] = payload
        self.moves.pop(version - self._most - 1, None)

    def restore_(self, state: State) -> None:
        try:
            for move in state["moves"].values():
                self._quantizer.decode(move, self.size)
        except MessageError as error:
            raise DataError(f"a kept broadcast is damaged: {error}") from None
        super().restore_(state)


@final
class KeptDifference(Downlink):
    """q = Q_s(x − x̂), x̂ ← x̂ + q. Both ends keep q."""

    def keeps_memory(self, quantizer: Quantizer, size: int) -> bool:
        return True

    def target(self, model: Vector, held: HiddenState) -> Vector:
        return model - held.vector

    def advance(self, held: HiddenState, version: int, payload: Payload, quantizer: Quantizer) -> HiddenState:
        move = quantizer.decode(payload, held.vector.size)
        return HiddenState.of(held.vector + move, version + 1, move)


CAFE = Preset(
    "clients send how their update differs from the last aggregate",
    {"client_rule": "aggregate-feedback", "accumulator": "feedback-mean", "downlink": "kept"},
    {"client_quantizer": "top_k:0.1", "server_quantizer": "trellis:4", "max_staleness": 100},
)
