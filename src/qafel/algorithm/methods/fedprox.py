"""FedProx: rounds; μ/2·‖y − y₀‖² in the local loss, partial work taken. Li et al., MLSys 2020."""

from qafel.algorithm.methods.fedavg import AVERAGE, ROUNDS
from qafel.algorithm.methods.fedbuff import UNQUANTIZED
from qafel.algorithm.wiring import Preset

FEDPROX = Preset(
    "rounds; a proximal term, partial work",
    {**ROUNDS, **UNQUANTIZED, "partial_work": True},
    {**AVERAGE, "proximal": 0.1},
    True,
)
