"""The methods of the paper's neural figures, by the names that tables and figures use."""

from __future__ import annotations

FEDBUFF, QAFEL, DIRECT = "FedBuff", "QAFeL, 4 bits", "FedBuff, direct 4 bits"
FEDASYNC, FEDASYNC_DIRECT = "FedAsync", "FedAsync, direct 4 bits"
METHODS = {
    FEDBUFF: "fedbuff-{c}",
    QAFEL: "qafel-{c}",
    DIRECT: "fedbuff-direct-{c}",
    FEDASYNC: "fedasync-{c}",
    FEDASYNC_DIRECT: "fedasync-direct-{c}",
    "QAFeL, QSGD 4 bits": "qafel-{c}-qsgd",
    "FedBuff, direct QSGD 4 bits": "fedbuff-direct-{c}-qsgd",
    "FedAsync, direct QSGD 4 bits": "fedasync-direct-{c}-qsgd",
}
"""Every method that has recipes; those of the published runs' quantizer first."""
