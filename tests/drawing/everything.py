"""Panels with everything that the model of a chart knows."""

import numpy as np

from qafel.drawing.chart import Axis, Bars, Panel, Series

X = np.geomspace(1.0, 1e4, 2000)
FEW = np.array([1.0, 2.0, 4.0, 8.0])
UP, DOWN = FEW + 1, FEW / 2
EVIL = "<img src=x onerror=alert(1)> $x_"

PANELS = (
    Panel(
        "curves",
        "Curves & bands",
        Axis("bytes", log=True, unit="B"),
        Axis(EVIL, log=True),
        (
            Series("curve", X, 1 / X, 0.5 / X, 2 / X),
            Series("one point", FEW[:1], FEW[:1]),
            Series(EVIL, X, np.where(X < 5e3, X, np.nan)),
            Series("curve", FEW[:1], FEW[:1], kind="marks", hover=(EVIL,), symbol="triangle-up"),
        ),
        "A note.",
        targets=(0.01,),
    ),
    Panel(
        "points",
        "Points",
        Axis("x", ticks=(1.0, 4.0)),
        Axis("y", log=True, unit="count"),
        (
            Series("points", FEW, FEW, DOWN, UP, kind="points", hover=("a", "b", "c", EVIL)),
            Series("both", FEW, UP, DOWN, 2 * UP, kind="line-and-points"),
            Series("equal", FEW, FEW, kind="reference"),
            Series("rings", FEW, FEW, kind="rings"),
            Series("steps", FEW, DOWN, kind="steps"),
        ),
    ),
    Panel(
        "marks",
        "Marks",
        Axis("setting", names=("one", "two", EVIL)),
        Axis("share", unit="%", fixed=True),
        tuple(
            Series("both", FEW[:2], FEW[:2] / 10, kind="marks", symbol=symbol, shade=np.array([0.0, 1.0]))
            for symbol in ("circle", "circle-open", "x-thin-open", "triangle-up", "triangle-down")
        ),
    ),
    Panel(
        "grouped",
        "Grouped",
        Axis("τ", unit="integer"),
        Axis("share", unit="%"),
        bars=(Bars("points", FEW, FEW / 15, tuple("abcd")), Bars("both", FEW, FEW / 15)),
        wide=True,
    ),
    Panel(
        "stacked",
        "Stacked",
        Axis("x"),
        Axis("y"),
        bars=(Bars("a", FEW, FEW), Bars("b", FEW, UP, opacity=0.45)),
        arrangement="stacked",
    ),
    Panel(
        "rows",
        "Rows",
        Axis("bytes", unit="B"),
        Axis("", names=("first", EVIL)),
        bars=(
            Bars("a", FEW[:1] - 1, FEW[:1]),
            Bars("b", FEW[:1] - 1, FEW[:1], text="2 B"),
            Bars("a", FEW[:1], FEW[2:3]),
        ),
        arrangement="rows",
    ),
)
