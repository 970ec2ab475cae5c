"""FedAvg and FedSGD: rounds; x ← Σ nₖyₖ / Σ nₖ. McMahan et al., AISTATS 2017."""

from qafel.algorithm.methods.preset import AVERAGE, ROUNDS, UNQUANTIZED, Preset

FEDAVG = Preset("rounds; the average of the cohort's models", {**ROUNDS, **UNQUANTIZED}, AVERAGE, True)
FEDSGD = Preset(
    "rounds; one step on all local data",
    {**ROUNDS, **UNQUANTIZED, "local_steps": 1, "local_epochs": None, "batch_size": None},
    AVERAGE,
    True,
)
