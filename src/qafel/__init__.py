"""Quantized asynchronous federated learning with a shared hidden state.

What is exported is the public surface: the pure core, the simulator, and the tasks that need nothing beyond the core.
The rooms, each of which imports only from those above it (docs/architecture.md):

version       the package's version
errors        every error a user can meet
rng           named random streams
params        a model's tensors as one flat vector
lazy          names that load at their first use
text          numbers and names for people
parts         a user's own parts by import path
files         atomic writes, one lock, checksummed files
workers       supervised worker processes
quantizers    a vector to few bytes and back
algorithm     the paper's Algorithms 1, 2 and 3, pure
drawing       charts as values, for print and for a page
tasks         problems to learn
theory        the paper's bounds as functions
config        every setting of a run; recipes
planning      what a budget affords
runs          what a run is, whoever drives it
simulator     a run in virtual time
deployment    a run over NATS JetStream
report        any runs compared on one page
sweeps        many runs
tuning        a search of a recipe's settings
paper         the paper's figures and tables
bench         every benchmark
cli           the command line
"""

from qafel.algorithm import (
    PRESETS,
    Algorithm,
    Client,
    HiddenState,
    LocalTraining,
    Message,
    PolynomialStaleness,
    Server,
    wire,
)
from qafel.params import Layout, Vector
from qafel.quantizers import Quantizer
from qafel.quantizers import parse as quantizer
from qafel.rng import Stream
from qafel.simulator import (
    AlwaysTraining,
    Constant,
    ConstantRate,
    Evaluation,
    HalfNormal,
    Limits,
    LogNormal,
    Network,
    Poisson,
    Result,
    Rounds,
    Timing,
    Trace,
    Uniform,
    simulate,
)
from qafel.sweeps import Sweep, sweep
from qafel.tasks import Mushrooms, Quadratic, SyntheticLogistic, Task
from qafel.version import __version__

__all__ = [
    "PRESETS",
    "Algorithm",
    "AlwaysTraining",
    "Client",
    "Constant",
    "ConstantRate",
    "Evaluation",
    "HalfNormal",
    "HiddenState",
    "Layout",
    "Limits",
    "LocalTraining",
    "LogNormal",
    "Message",
    "Mushrooms",
    "Network",
    "Poisson",
    "PolynomialStaleness",
    "Quadratic",
    "Quantizer",
    "Result",
    "Rounds",
    "Server",
    "Stream",
    "Sweep",
    "SyntheticLogistic",
    "Task",
    "Timing",
    "Trace",
    "Uniform",
    "Vector",
    "__version__",
    "quantizer",
    "simulate",
    "sweep",
    "wire",
]
