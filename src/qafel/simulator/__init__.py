"""Virtual time: the pure core driven by a clock, with real bytes between server and clients.

clock        a heap of (time, priority, serial, event)
durations    how long a client trains
traffic      bytes and staleness, counted as messages cross
simulation   the event loop
run          a configuration to a run directory
"""

from qafel.simulator.durations import HalfNormal
from qafel.simulator.run import run
from qafel.simulator.simulation import Row, Simulation

__all__ = ["HalfNormal", "Row", "Simulation", "run"]
