"""QAFeL: K updates a step, quantized both ways, hidden state. Ortega and Jafarkhani, 2024. The general case."""

from qafel.algorithm.methods.preset import HIDDEN_STATE, Preset

QAFEL = Preset("K updates a step, quantized both ways, hidden state", HIDDEN_STATE)
