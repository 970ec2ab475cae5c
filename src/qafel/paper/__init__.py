"""The paper, one entry per figure and table: real runs, real bytes, and each published claim beside what was measured.

plan         which runs: a configuration each, and a name that says how it differs from its recipe
one_run      a run's folder: finished, to be resumed, or to be made
pool         several runs at once
sweep        all runs of some entries
measured     the runs read back, with their spread over seeds
entry        an entry as data and small functions; a claim and its verdict
tables, panels, figures, charts, page, provenance, outputs    results as files
curves, convex, …    the entries themselves
registry     all of them by name
"""

from qafel.paper.entry import Claim, Entry, Scale, Verdict
from qafel.paper.measured import Measured
from qafel.paper.registry import ENTRIES, entry_named
from qafel.sweeps.run import Planned

__all__ = ["ENTRIES", "Claim", "Entry", "Measured", "Planned", "Scale", "Verdict", "entry_named"]
