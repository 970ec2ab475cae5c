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
from qafel.version import __version__ as __version__

if TYPE_CHECKING:
    from qafel import errors as errors
    from qafel.algorithm import METHODS as METHODS
    from qafel.algorithm import Accumulator as Accumulator
    from qafel.algorithm import Algorithm as Algorithm
    from qafel.algorithm import CatchUp as CatchUp
    from qafel.algorithm import Client as Client
    from qafel.algorithm import ClientRule as ClientRule
    from qafel.algorithm import Direction as Direction
    from qafel.algorithm import Downlink as Downlink
    from qafel.algorithm import HiddenState as HiddenState
    from qafel.algorithm import Kept as Kept
    from qafel.algorithm import LocalTraining as LocalTraining
    from qafel.algorithm import Message as Message
    from qafel.algorithm import Needs as Needs
    from qafel.algorithm import Next as Next
    from qafel.algorithm import Part as Part
    from qafel.algorithm import PolynomialStaleness as PolynomialStaleness
    from qafel.algorithm import Rows as Rows
    from qafel.algorithm import Server as Server
    from qafel.algorithm import ServerRule as ServerRule
    from qafel.algorithm import Trained as Trained
    from qafel.algorithm import Upload as Upload
    from qafel.algorithm import method as method
    from qafel.config import Evaluation as Evaluation
    from qafel.config import Limits as Limits
    from qafel.config import Network as Network
    from qafel.config import Timing as Timing
    from qafel.params import Layout as Layout
    from qafel.params import Vector as Vector
    from qafel.quantizers import Quantizer as Quantizer
    from qafel.quantizers import parse
    from qafel.rng import Stream as Stream
    from qafel.search import Sweep as Sweep
    from qafel.search import sweep as sweep
    from qafel.simulator import AlwaysTraining as AlwaysTraining
    from qafel.simulator import Constant as Constant
    from qafel.simulator import ConstantRate as ConstantRate
    from qafel.simulator import HalfNormal as HalfNormal
    from qafel.simulator import LogNormal as LogNormal
    from qafel.simulator import Poisson as Poisson
    from qafel.simulator import Result as Result
    from qafel.simulator import Rounds as Rounds
    from qafel.simulator import Trace as Trace
    from qafel.simulator import Uniform as Uniform
    from qafel.simulator import simulate as simulate
    from qafel.tasks import Mushrooms as Mushrooms
    from qafel.tasks import Quadratic as Quadratic
    from qafel.tasks import SyntheticLogistic as SyntheticLogistic
    from qafel.tasks import Task as Task
    from qafel.tasks.datasets.partition import Partition as Partition
    from qafel.tasks.datasets.partition import split as split
    from qafel.tasks.datasets.samples import ArraySamples as ArraySamples
    from qafel.tasks.neural import TorchTask as TorchTask

    quantizer = parse

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

_LAZY = (
    {name: f"qafel.{home}:{name}" for home, names in _HOMES.items() for name in names.split()}
    | {room: f"qafel.{room}" for room in _ROOMS.split()}
    | {"quantizer": "qafel.quantizers:parse"}
)
__getattr__, __dir__ = lazily(__name__, _LAZY)
# Without TorchTask: `import *` needs no PyTorch.
__all__ = sorted({"__version__", *_LAZY} - {"TorchTask", *_ROOMS.split()})  # noqa: PLE0605
