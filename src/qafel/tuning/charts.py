"""The charts of a search: how it went, where it looked, what mattered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from qafel.results.report_chart import Chart, Trace, plain
from qafel.results.report_styles import PALETTE
from qafel.tuning.axes import Heights, setting_axis
from qafel.tuning.ranking import figure, short
from qafel.tuning.result import Tuning
from qafel.tuning.search import Choices, Range
from qafel.tuning.trial import Trial

BLUE, RED = PALETTE[0], PALETTE[1]
GREY = PALETTE[6]


def charts_of(tuning: Tuning) -> tuple[Chart, ...]:
    """All charts there is something to show in."""
    charts = [_history(tuning)]
    spread = [path for path, dimension in tuning.search.items() if isinstance(dimension, Range)]
    if len(spread) >= 2:
        charts.append(_map(tuning, spread[0], spread[1]))
    charts += [_slice(tuning, path) for path in tuning.search]
    if tuning.importance:
        charts.append(_importance(tuning))
    return tuple(charts)


def _history(tuning: Tuning) -> Chart:
    heights = Heights(tuning)
    best: list[float] = []
    for trial in tuning.trials:
        now = tuning.objective.shown(trial.score) if trial.good else math.nan
        better = max if tuning.objective.more_is_better else min
        before = best[-1] if best else math.nan
        best.append(before if math.isnan(now) else now if math.isnan(before) else better(before, now))
    numbers = np.array([float(trial.number) for trial in tuning.trials])
    line: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "meta": {"run": 0},
        "x": plain(numbers),
        "y": plain(np.array(best)),
        "line": {"color": BLUE, "width": 1.8, "shape": "hv"},
        "hovertemplate": "best up to trial %{x}: %{y:.4~s}<extra></extra>",
    }
    layout = {"xaxis": {"title": {"text": "trial"}, "type": "linear"}, "yaxis": heights.axis}
    traces = (line, *_points(tuning, [trial.number for trial in tuning.trials], heights))
    return Chart("history", "Trial by trial", heights.notes, traces, layout, heights.toggles, wide=True)


def _slice(tuning: Tuning, path: str) -> Chart:
    heights = Heights(tuning)
    values = [_plain(tuning, path, trial) for trial in tuning.trials]
    layout = {"xaxis": setting_axis(tuning, path), "yaxis": heights.axis}
    return Chart(
        f"by-{short(path).replace('_', '-')}",
        f"By {short(path)}",
        (),
        tuple(_points(tuning, values, heights)),
        layout,
        heights.toggles,
    )


def _map(tuning: Tuning, across: str, up: str) -> Chart:
    """Two settings, one point a trial, its colour what it cost."""
    traces = []
    heights = Heights(tuning)
    for state, (states, symbol) in enumerate(_SYMBOLS):
        chosen = [index for index, trial in enumerate(tuning.trials) if trial.state in states]
        if not chosen:
            continue
        marker: dict[str, Any] = {"symbol": symbol, "size": 10, "color": GREY, "line": {"width": 1.5}}
        if state < 2 and heights.measured:
            marker |= {"color": plain(np.array([heights.colour(heights.of[index]) for index in chosen]))}
            marker |= heights.colours
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": " or ".join(states),
                "meta": {"run": state},
                "x": [_plain(tuning, across, tuning.trials[index]) for index in chosen],
                "y": [_plain(tuning, up, tuning.trials[index]) for index in chosen],
                "text": [_hover(tuning, tuning.trials[index]) for index in chosen],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": marker,
            }
        )
    if (best := tuning.best) is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "best",
                "meta": {"run": 3},
                "x": [_plain(tuning, across, best)],
                "y": [_plain(tuning, up, best)],
                "hoverinfo": "skip",
                "marker": {"symbol": "circle-open", "size": 20, "color": RED, "line": {"width": 2.5}},
            }
        )
    layout = {"xaxis": setting_axis(tuning, across), "yaxis": setting_axis(tuning, up)}
    notes = (f"Dark is good{heights.darkest_to_brightest}. The ring is the best trial.",)
    title = f"{short(across)} and {short(up)}"
    return Chart("map", title, notes, tuple(traces), layout, height=420, wide=True)


def _importance(tuning: Tuning) -> Chart:
    names = [escape(short(path)) for path in tuning.importance]
    shares = np.array(list(tuning.importance.values()))
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "meta": {"run": 0},
        "x": plain(100 * shares),
        "y": names,
        "marker": {"color": BLUE},
        "hovertemplate": "%{y}: %{x:.0f} %<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "share, %"}, "type": "linear", "range": [0, 100]},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    notes = ("PED-ANOVA: how much a setting tells the best tenth of the trials from the rest. Rough for few trials.",)
    return Chart("importance", "What mattered", notes, (bars,), layout, height=120 + 40 * len(names))


_SYMBOLS = (
    (("reached", "finished"), "circle"),
    (("cut off",), "circle-open"),
    (("missed", "diverged", "failed"), "x-thin-open"),
)


def _points(tuning: Tuning, across: Sequence[Any], heights: Heights) -> list[Trace]:
    traces: list[Trace] = []
    for state, (states, symbol) in enumerate(_SYMBOLS):
        chosen = [index for index, trial in enumerate(tuning.trials) if trial.state in states]
        if chosen:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": " or ".join(states),
                    "meta": {"run": state},
                    "x": [across[index] for index in chosen],
                    "y": plain(np.array([heights.of[index] for index in chosen])),
                    "text": [_hover(tuning, tuning.trials[index]) for index in chosen],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {
                        "symbol": symbol,
                        "size": 8,
                        "color": RED if state < 2 else GREY,
                        "line": {"width": 1.5},
                    },
                }
            )
    return traces


def _plain(tuning: Tuning, path: str, trial: Trial) -> Any:
    value = trial.settings[path]
    return escape(str(value)) if isinstance(tuning.search[path], Choices) else value


def _hover(tuning: Tuning, trial: Trial) -> str:
    settings = "<br>".join(f"{short(path)} {escape(str(value))}" for path, value in trial.settings.items())
    return f"trial {trial.number}: {trial.state}, {figure(tuning, trial)}<br>{settings}"
