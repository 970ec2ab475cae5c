"""The paper's algorithms, pure: bytes in, bytes out; no clock, no socket, no torch, no global random state.

In the order in which data flows:

    hidden_state   x̂ ← x̂ + q: the one function that server and clients apply; what a client missed   (Algorithm 3)
    client         copy x̂, train, encode the upload                                 (Algorithm 2)
    messages       the frame around everything that crosses
    server         receive(upload) → its staleness, and a broadcast if it filled the buffer   (Algorithm 1)
      aggregation    which uploads were counted before; how much a late one weighs; the sum of up to K; x ← x − η_g v
      own            a user's staleness law, aggregation and step
      state          the one check of arrays that come back from a checkpoint
    wiring         all that server and clients must agree on, as one value
    methods        QAFeL and its relatives, as wiring of the above
"""

from qafel.algorithm.aggregation import PolynomialStaleness
from qafel.algorithm.client import Client, local_update, make_upload
from qafel.algorithm.hidden_state import BroadcastLog, HiddenState
from qafel.algorithm.messages import Kind, Message
from qafel.algorithm.methods import PRESETS, wire
from qafel.algorithm.own import Aggregator, StalenessLaw, Step
from qafel.algorithm.server import Accepted, Checkpoint, Server, require_checkpoints, restore_server, save_server
from qafel.algorithm.wiring import Algorithm, LocalTraining

__all__ = [
    "PRESETS",
    "Accepted",
    "Aggregator",
    "Algorithm",
    "BroadcastLog",
    "Checkpoint",
    "Client",
    "HiddenState",
    "Kind",
    "LocalTraining",
    "Message",
    "PolynomialStaleness",
    "Server",
    "StalenessLaw",
    "Step",
    "local_update",
    "make_upload",
    "require_checkpoints",
    "restore_server",
    "save_server",
    "wire",
]
