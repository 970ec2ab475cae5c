"""FedAvg and FedSGD: rounds; x ← Σ nₖyₖ / Σ nₖ. McMahan et al., AISTATS 2017."""

from qafel.algorithm.methods.fedbuff import UNQUANTIZED
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE

ROUNDS = {"max_staleness": 0}
"""A cohort of K clients starts from one version; late updates are rejected."""
AVERAGE = {"accumulator": "weighted-mean", "client_weights": "samples", "server_lr": 1.0}
"""x ← Σ nₖyₖ / Σ nₖ, with nₖ the samples of client k."""
FEDAVG = Preset(
    "rounds; the average of the cohort's models", {**HIDDEN_STATE, **ROUNDS, **UNQUANTIZED}, AVERAGE, rounds=True
)
FEDSGD = Preset(
    "rounds; one step on all local data",
    {**HIDDEN_STATE, **ROUNDS, **UNQUANTIZED, "local_steps": 1, "local_epochs": None, "batch_size": None},
    AVERAGE,
    rounds=True,
)
