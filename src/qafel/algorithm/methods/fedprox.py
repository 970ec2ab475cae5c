"""FedProx: rounds; μ/2·‖y − y₀‖² in the local loss, partial work accepted. Li et al., MLSys 2020."""

from qafel.algorithm.methods.fedavg import AVERAGE, ROUNDS
from qafel.algorithm.methods.fedbuff import UNQUANTIZED
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE

FEDPROX = Preset(
    "rounds; a proximal term, partial work",
    {**HIDDEN_STATE, **ROUNDS, **UNQUANTIZED, "partial": True},
    {**AVERAGE, "proximal": 0.1},
    rounds=True,
)
