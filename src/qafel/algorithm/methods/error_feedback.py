"""FedBuff with error feedback at the clients, so that biased quantizers such as top_k converge.

Client i sends Q_c(eᵢ + Δᵢ) and keeps eᵢ ← eᵢ + Δᵢ − Q_c(eᵢ + Δᵢ) once the server has accepted it. Seide et al., 2014;
Stich et al., 2018. An update that the server rejects leaves eᵢ as it was.
"""

from __future__ import annotations

from typing import final

import numpy as np

from qafel.algorithm.hidden_state import HiddenState
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE
from qafel.algorithm.parts import ClientRule, Needs, Trained
from qafel.algorithm.state import State
from qafel.params import Vector


@final
class ErrorFeedback(ClientRule):
    """eᵢ + y₀ − y_P, with eᵢ what earlier uploads left out."""

    needs = Needs(client_memory=True, exact_uploads=True)
    corrects_bias = True

    def new_memory(self, size: int) -> State:
        return {"error": np.zeros(size, np.float32)}

    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        vector: Vector = memory["error"] + (start.vector - trained.model)
        return vector

    def following(self, start: HiddenState, trained: Trained, memory: State, sent: Vector) -> State:
        return {"error": self.vector(start, trained, memory) - sent}


ERROR_FEEDBACK = Preset(
    "FedBuff with error feedback at the clients",
    {**HIDDEN_STATE, "client_rule": "error-feedback"},
    {"client_quantizer": "top_k:0.1", "server_quantizer": "none"},
)
