"""Virtual time: a clock drives the pure core, with real bytes between server and clients.

timing: when clients start, how long they train, how long messages travel.
executors: jobs, and where they run: inline, processes, Ray.
fleet: the simulator's record of each client.
simulation: the clock and the event loop.
checkpoint: saves and restores a simulation.
run: one run to its end, with listeners, run directory and checkpoints.
api: `simulate(task, algorithm)`.
"""

from qafel.config import Evaluation, Limits, Network, Timing
from qafel.runs.progress import Progress, Row
from qafel.simulator.api import Result, simulate
from qafel.simulator.simulation import Simulation
from qafel.simulator.timing.arrivals import AlwaysTraining, ConstantRate, Poisson, Rounds, Trace
from qafel.simulator.timing.durations import Constant, Durations, HalfNormal, LogNormal, Uniform

__all__ = [
    "AlwaysTraining",
    "Constant",
    "ConstantRate",
    "Durations",
    "Evaluation",
    "HalfNormal",
    "Limits",
    "LogNormal",
    "Network",
    "Poisson",
    "Progress",
    "Result",
    "Rounds",
    "Row",
    "Simulation",
    "Timing",
    "Trace",
    "Uniform",
    "simulate",
]
