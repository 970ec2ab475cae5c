"""FedAsync: one update a step, models mixed, x ← (1 − α_τ)x + α_τ y, α_τ = η_g s(τ). Xie et al., 2019."""

from qafel.algorithm.methods.preset import DIRECT, HIDDEN_STATE, ONE_UPDATE_A_STEP, UNQUANTIZED, Preset

FEDASYNC = Preset(
    "one update a step, models mixed", {**HIDDEN_STATE, **UNQUANTIZED, **ONE_UPDATE_A_STEP}, {"upload": "model"}
)
FEDASYNC_DIRECT = Preset("one update a step, no hidden state", {**DIRECT, **ONE_UPDATE_A_STEP})
FEDASYNC_HIDDEN = Preset("one update a step, hidden state", {**HIDDEN_STATE, **ONE_UPDATE_A_STEP})
"""QAFeL with one update a step."""
