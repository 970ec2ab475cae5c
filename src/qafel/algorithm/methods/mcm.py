"""MCM: rounds; quantized both ways, the downlink against a memory. Philippenko and Dieuleveut, NeurIPS 2021."""

from qafel.algorithm.methods.preset import ROUNDS, Preset

MCM = Preset("rounds; quantized both ways, a memory on the downlink", ROUNDS, {"memory_rate": 0.5}, True)
