"""FedAsync: one update a step, models mixed, x ← (1 − α_τ)x + α_τ y, α_τ = η_g s(τ). Xie et al., 2019."""

from qafel.algorithm.methods.fedbuff import DIRECT, UNQUANTIZED
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE

_ONE = {"buffer_size": 1}
FEDASYNC = Preset("one update a step, models mixed", {**HIDDEN_STATE, **UNQUANTIZED, **_ONE}, {"client_rule": "model"})
FEDASYNC_DIRECT = Preset("one update a step, no hidden state", {**DIRECT, **_ONE})
FEDASYNC_HIDDEN = Preset("one update a step, hidden state", {**HIDDEN_STATE, **_ONE})
"""QAFeL with one update a step."""
