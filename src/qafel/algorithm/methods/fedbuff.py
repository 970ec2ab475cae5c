"""FedBuff: QAFeL with identity quantizers. Nguyen et al., AISTATS 2022.

docs/decisions/fedbuff-is-qafel-with-identity-quantizers.md
"""

from qafel.algorithm.methods.preset import DIRECT, HIDDEN_STATE, UNQUANTIZED, Preset

FEDBUFF = Preset("QAFeL with identity quantizers", {**HIDDEN_STATE, **UNQUANTIZED})
FEDBUFF_DIRECT = Preset("the server sends its quantized model, no hidden state", DIRECT)
"""The server sends Q_s(x): "Naive" in the paper."""
