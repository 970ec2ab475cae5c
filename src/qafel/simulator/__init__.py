"""Virtual time: the pure core driven by a clock, with real bytes between server and clients.

clock         a heap of (time, priority, serial, event)
draws         numbered random draws
arrivals      who starts when
durations     how long a client trains
network       how long messages travel
timing        the three above as one value
jobs          what a client will report, as a value
executors     where jobs run: inline, processes, ray_cluster
simulation    the event loop
traffic       bytes and staleness, counted as messages cross
measure       evaluations, limits, and what came of it
loop          advance, measure, stop, save
checkpoint    a simulation saved and restored
api           simulate(task, algorithm, timing)
build, run    a configuration to a run directory
"""

from qafel.simulator.api import Result, simulate
from qafel.simulator.measure import Evaluation, Limits, Measurements, Row
from qafel.simulator.run import run
from qafel.simulator.simulation import Simulation
from qafel.simulator.timing import Network, Timing
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
    "Measurements",
    "Network",
    "Poisson",
    "Result",
    "Rounds",
    "Row",
    "Simulation",
    "Timing",
    "Trace",
    "Uniform",
    "run",
    "simulate",
]
