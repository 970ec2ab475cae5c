"""FedBuff: QAFeL with identity quantizers. Nguyen et al., AISTATS 2022.

docs/decisions/algorithm.md
"""

from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE

UNQUANTIZED = {"client_quantizer": "none", "server_quantizer": "none"}
DIRECT = {"downlink": "direct"}
"""The server sends Q_s(x): no hidden state ("Naive" in the paper)."""
FEDBUFF = Preset("QAFeL with identity quantizers", {**HIDDEN_STATE, **UNQUANTIZED})
FEDBUFF_DIRECT = Preset("the server sends its quantized model, no hidden state", DIRECT)
