"""QAFeL: K updates a step, quantized both ways, hidden state. Ortega and Jafarkhani, 2024. The general case."""

from qafel.algorithm.methods.preset import Preset

HIDDEN_STATE = {"downlink": "difference"}
"""The server sends Q_s(x − x̂), which moves the hidden state."""
FOUR_BITS = {"client_quantizer": "trellis:4", "server_quantizer": "trellis:4"}
"""The published four bits a coordinate, by the quantizer with the least error at them (docs/quantizers.md)."""
QAFEL = Preset("K updates a step, quantized both ways, hidden state", default={**HIDDEN_STATE, **FOUR_BITS})
