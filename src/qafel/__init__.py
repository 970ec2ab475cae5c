"""Quantized asynchronous federated learning with a shared hidden state.

What is here is the public surface: the pure core, the simulator, and the tasks that need nothing beyond the core.
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
    "SyntheticLogistic",
    "Task",
    "Timing",
    "Trace",
    "Uniform",
    "Vector",
    "__version__",
    "quantizer",
    "simulate",
    "wire",
]
