"""Virtual time: the pure core driven by a clock, with real bytes between server and clients.

timing        when clients start, how long they train, how long messages travel
executors     what a client will report, as a job; where jobs run: inline, processes, Ray
fleet         what is known of each client between its trainings
simulation    the clock and the event loop
checkpoint    a simulation saved and restored
live          how a run stands between two rows
run           a plan brought to its end: rows, run directory, checkpoints
api           simulate(task, algorithm): the one way to run
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
