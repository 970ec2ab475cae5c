"""MCM: rounds; quantized both ways, the downlink against a memory. Philippenko and Dieuleveut, NeurIPS 2021."""

from qafel.algorithm.methods.fedavg import ROUNDS
from qafel.algorithm.wiring import Preset

MCM = Preset("rounds; quantized both ways, a memory on the downlink", ROUNDS, {"memory_rate": 0.5}, True)
