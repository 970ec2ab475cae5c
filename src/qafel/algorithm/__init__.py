"""The paper's algorithms, pure: bytes in, bytes out. No clock, no socket, no torch, no global random state.

algorithm: a method as a composition of parts. Server and clients agree on it.

parts: the protocols of parts, their needs, and the client rules without memory.

state: saves parts, and checks what it restores.

hidden_state: x̂ and the downlinks that move it (Algorithm 3).

catch_up: what a client downloads before it starts.

client: copies x̂, trains, encodes the upload (Algorithm 2).

messages: the frame of every message.

server: receives uploads, steps and broadcasts (Algorithm 1).

admission: duplicates and staleness of uploads.

accumulators: from uploads to Δ̄.

server_rules: from x and Δ̄ to the next x.

methods: QAFeL and related methods. One method, one file.
"""

from qafel.algorithm.accumulators import Kept
from qafel.algorithm.admission import PolynomialStaleness, StalenessLaw
from qafel.algorithm.algorithm import Algorithm, LocalTraining
from qafel.algorithm.catch_up import CatchUp, Held, Means, Offer, Plan
from qafel.algorithm.client import Client, Made
from qafel.algorithm.hidden_state import Downlink, HiddenState
from qafel.algorithm.messages import Kind, Message
from qafel.algorithm.methods import METHODS, AlgorithmSettings, method
from qafel.algorithm.parts import (
    Accumulator,
    Batch,
    ClientRule,
    Direction,
    Needs,
    Next,
    Part,
    ServerRule,
    Trained,
    Upload,
    require_provided,
)
from qafel.algorithm.server import Accepted, Admitted, Server, require_savable, restore_server, save_server
from qafel.algorithm.state import Checkpoint, Rows, State

__all__ = [
    "METHODS",
    "Accepted",
    "Accumulator",
    "Admitted",
    "Algorithm",
    "AlgorithmSettings",
    "Batch",
    "CatchUp",
    "Checkpoint",
    "Client",
    "ClientRule",
    "Direction",
    "Downlink",
    "Held",
    "HiddenState",
    "Kept",
    "Kind",
    "LocalTraining",
    "Made",
    "Means",
    "Message",
    "Needs",
    "Next",
    "Offer",
    "Part",
    "Plan",
    "PolynomialStaleness",
    "Rows",
    "Server",
    "ServerRule",
    "StalenessLaw",
    "State",
    "Trained",
    "Upload",
    "method",
    "require_provided",
    "require_savable",
    "restore_server",
    "save_server",
]
