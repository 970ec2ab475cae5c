"""Many runs: recipes × seeds × values of settings, resumable and in parallel, a run directory each.

grid       what a sweep runs, and whether all of it can be
making     runs made: finished ones left alone, interrupted ones taken up
table      sweep(…): the runs made, their report, and a table of what came of them
"""

from qafel.sweeps.table import Sweep, sweep

__all__ = ["Sweep", "sweep"]
