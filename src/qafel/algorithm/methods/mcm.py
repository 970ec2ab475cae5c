"""MCM: rounds; quantized both ways, each way against a memory. Philippenko and Dieuleveut, NeurIPS 2021.

docs/decisions/mcm-has-both-memories.md
"""

from qafel.algorithm.methods.fedavg import ROUNDS
from qafel.algorithm.wiring import Preset

MCM = Preset(
    "rounds; quantized both ways, a memory each way",
    ROUNDS,
    {"memory_rate": "from-omega", "uplink_memory_rate": "from-omega"},
    True,
)
