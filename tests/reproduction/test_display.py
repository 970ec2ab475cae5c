"""Tables and curves of runs."""

from __future__ import annotations

import numpy as np

from reproduction.display import Heading, Table, curve
from reproduction.neural import QAFEL
from tests.reproduction.made_up import made_up


def test_a_curve_reaches_as_far_as_its_longest_run():
    """A run that met its target ends; the others go on."""
    short, long = (made_up(QAFEL, np.linspace(0, 1, rows), seed)[1] for seed, rows in enumerate((3, 5)))
    mean = curve(QAFEL, [short, long], "uploads")
    assert mean.x.tolist() == [0, 10, 20, 30, 40]
    assert mean.y.tolist() == [0, 0.375, 0.75, 0.75, 1]
    assert (mean.low[1], mean.high[1], mean.low[3]) == (0.25, 0.5, 0.75)


def test_a_bar_in_a_cell_does_not_end_it():
    table = Table((Heading("a"), Heading("b")), (("x|y", 1.0),))
    assert table.markdown().splitlines()[-1] == "| x\\|y | 1 |"
