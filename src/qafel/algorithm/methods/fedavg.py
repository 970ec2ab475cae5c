"""FedAvg and FedSGD: rounds; x ← Σ nₖyₖ / Σ nₖ. McMahan et al., AISTATS 2017."""

from qafel.algorithm.methods.fedbuff import UNQUANTIZED
from qafel.algorithm.methods.qafel import HIDDEN_STATE
from qafel.algorithm.wiring import Preset

ROUNDS = {**HIDDEN_STATE, "max_staleness": 0}
"""A cohort of K clients starts from one version; what comes late is not taken."""
AVERAGE = {"aggregation": "weighted-mean", "client_weights": "samples", "server_lr": 1.0}
"""x ← Σ nₖyₖ / Σ nₖ, with nₖ the samples of client k."""
FEDAVG = Preset("rounds; the average of the cohort's models", {**ROUNDS, **UNQUANTIZED}, AVERAGE, True)
FEDSGD = Preset(
    "rounds; one step on all local data",
    {**ROUNDS, **UNQUANTIZED, "local_steps": 1, "local_epochs": None, "batch_size": None},
    AVERAGE,
    True,
)
