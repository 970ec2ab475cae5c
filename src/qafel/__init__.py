"""Quantized asynchronous federated learning with a shared hidden state.

The names below are the public interface. Each loads at its first use: PyTorch, for example, loads with `TorchTask`.
The package consists of these rooms. A room imports only from rooms above it (docs/architecture.md).

version       the package's version
errors        every error a user can meet
rng           named random streams
params        a model's tensors as one flat vector
lazy          names that load at their first use
compiled      how loops are compiled, and vectors of lanes in them
text          numbers and names for people
parts         custom parts by import path
files         atomic writes, one lock, checksummed files
http          a small HTTP server with limits
workers       supervised worker processes
quantizers    a vector to few bytes and back
algorithm     the paper's Algorithms 1, 2 and 3, pure
drawing       charts as values, for print and for a page
tasks         problems to learn
theory        the paper's bounds as functions
config        every setting of a run; recipes
runs          what a run is, whoever drives it
report        any runs compared on one page
watch         the same, live
simulator     a run in virtual time
deployment    a run over NATS JetStream
search        many runs: sweeps, tuning, planning
bench         every benchmark
cli           the command line
"""

from typing import TYPE_CHECKING

from qafel.lazy import lazily
from qafel.version import __version__

if TYPE_CHECKING:
    from qafel import errors as errors
    from qafel.algorithm import (
        METHODS,
        Accumulator,
        Algorithm,
        CatchUp,
        Client,
        ClientRule,
        Direction,
        Downlink,
        HiddenState,
        Kept,
        LocalTraining,
        Message,
        Needs,
        Next,
        Part,
        PolynomialStaleness,
        Rows,
        Server,
        ServerRule,
        Trained,
        Upload,
        method,
    )
    from qafel.config import Evaluation, Limits, Network, Timing
    from qafel.params import Layout, Vector
    from qafel.quantizers import Quantizer
    from qafel.quantizers import parse as quantizer
    from qafel.rng import Stream
    from qafel.search import Sweep, sweep
    from qafel.simulator import (
        AlwaysTraining,
        Constant,
        ConstantRate,
        HalfNormal,
        LogNormal,
        Poisson,
        Result,
        Rounds,
        Trace,
        Uniform,
        simulate,
    )
    from qafel.tasks import Mushrooms, Quadratic, SyntheticLogistic, Task
    from qafel.tasks.datasets.partition import Partition, split
    from qafel.tasks.datasets.samples import ArraySamples
    from qafel.tasks.neural import TorchTask as TorchTask  # not in __all__: `import *` needs no PyTorch

_HOMES = {
    "algorithm": "METHODS Accumulator Algorithm CatchUp Client ClientRule Direction Downlink HiddenState Kept "
    "LocalTraining Message Needs Next Part PolynomialStaleness Rows Server ServerRule Trained Upload method",
    "config": "Evaluation Limits Network Timing",
    "params": "Layout Vector",
    "quantizers": "Quantizer",
    "rng": "Stream",
    "search": "Sweep sweep",
    "simulator": "AlwaysTraining Constant ConstantRate HalfNormal LogNormal Poisson Result Rounds Trace Uniform "
    "simulate",
    "tasks": "Mushrooms Quadratic SyntheticLogistic Task",
    "tasks.datasets.partition": "Partition split",
    "tasks.datasets.samples": "ArraySamples",
    "tasks.neural": "TorchTask",
}
_ROOMS = "errors rng params text parts quantizers algorithm tasks theory config runs report search simulator"

__getattr__, __dir__ = lazily(
    __name__,
    {name: f"qafel.{home}:{name}" for home, names in _HOMES.items() for name in names.split()}
    | {room: f"qafel.{room}" for room in _ROOMS.split()}
    | {"quantizer": "qafel.quantizers:parse"},
)

__all__ = [
    "METHODS",
    "Accumulator",
    "Algorithm",
    "AlwaysTraining",
    "ArraySamples",
    "CatchUp",
    "Client",
    "ClientRule",
    "Constant",
    "ConstantRate",
    "Direction",
    "Downlink",
    "Evaluation",
    "HalfNormal",
    "HiddenState",
    "Kept",
    "Layout",
    "Limits",
    "LocalTraining",
    "LogNormal",
    "Message",
    "Mushrooms",
    "Needs",
    "Network",
    "Next",
    "Part",
    "Partition",
    "Poisson",
    "PolynomialStaleness",
    "Quadratic",
    "Quantizer",
    "Result",
    "Rounds",
    "Rows",
    "Server",
    "ServerRule",
    "Stream",
    "Sweep",
    "SyntheticLogistic",
    "Task",
    "Timing",
    "Trace",
    "Trained",
    "Uniform",
    "Upload",
    "Vector",
    "__version__",
    "method",
    "quantizer",
    "simulate",
    "split",
    "sweep",
]
