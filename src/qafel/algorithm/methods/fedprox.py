"""FedProx: rounds; μ/2·‖y − y₀‖² in the local loss, partial work taken. Li et al., MLSys 2020."""

from qafel.algorithm.methods.preset import AVERAGE, ROUNDS, UNQUANTIZED, Preset

FEDPROX = Preset(
    "rounds; a proximal term, partial work",
    {**ROUNDS, **UNQUANTIZED, "partial_work": True},
    {**AVERAGE, "proximal": 0.1},
    True,
)
