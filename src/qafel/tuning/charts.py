"""The charts of a search: how it went, where it looked, what mattered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from qafel.results.report_chart import BYTES_AXIS, COUNT_AXIS, Chart, Trace, plain
from qafel.results.report_styles import PALETTE
from qafel.tuning.ranking import figure, short
from qafel.tuning.search import Choices, Range
from qafel.tuning.trial import Trial
from qafel.tuning.tune import Tuning

BLUE, RED = PALETTE[0], PALETTE[1]
GREY = PALETTE[6]
_WIDE = 8.0


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
    heights = _Heights(tuning)
    best: list[float] = []
    for trial in tuning.trials:
        now = tuning.objective.shown(trial.score) if trial.good else math.nan
        better = min if tuning.objective.shown(1.0) > 0 else max
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
    heights = _Heights(tuning)
    values = [_plain(tuning, path, trial) for trial in tuning.trials]
    layout = {"xaxis": _setting_axis(tuning, path), "yaxis": heights.axis}
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
    heights = _Heights(tuning)
    logs = [math.log10(value) if heights.log else value for value in heights.measured]
    for state, (states, symbol) in enumerate(_SYMBOLS):
        chosen = [index for index, trial in enumerate(tuning.trials) if trial.state in states]
        if not chosen:
            continue
        marker: dict[str, Any] = {"symbol": symbol, "size": 10, "color": GREY, "line": {"width": 1.5}}
        if state < 2 and logs:
            colours = [math.log10(heights.of[index]) if heights.log else heights.of[index] for index in chosen]
            marker |= {"color": plain(np.array(colours)), "colorscale": "Viridis", "cmin": min(logs), "cmax": max(logs)}
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
    layout = {"xaxis": _setting_axis(tuning, across), "yaxis": _setting_axis(tuning, up)}
    notes = ("Dark is good. The ring is the best trial.",)
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
    (("missed", "diverged"), "x-thin-open"),
)


class _Heights:
    """Where each trial stands on the axis of the objective; what missed or diverged stands at its top."""

    def __init__(self, tuning: Tuning) -> None:
        objective = tuning.objective
        scores = [math.nan if trial.lost else objective.shown(trial.score) for trial in tuning.trials]
        self.measured = [score for score in scores if not math.isnan(score)]
        low, high = (min(self.measured), max(self.measured)) if self.measured else (1.0, 1.0)
        self.log = low > 0 and high > _WIDE * low
        worst = 1.3 * high if self.log else high + 0.08 * (high - low or abs(high) or 1.0)
        if objective.shown(1.0) < 0:
            worst = low - 0.08 * (high - low or abs(low) or 1.0)
        self.of = [worst if math.isnan(score) else score for score in scores]
        lost = sum(trial.lost for trial in tuning.trials)
        self.notes = (f"At the edge: what missed the target or diverged ({lost} of {len(scores)}).",) if lost else ()
        self.toggles = ("y",) if low > 0 and objective.shown(1.0) > 0 else ()
        ticks: dict[str, Any] = {}
        if objective.name != "metric":
            ticks = BYTES_AXIS if "bytes" in objective.name else COUNT_AXIS
        self.axis = {
            "title": {"text": escape(objective.label)},
            "type": "log" if self.log else "linear",
            **({"dtick": "D2"} if self.log and high < 100 * low else {}),
            **ticks,
        }


def _points(tuning: Tuning, across: Sequence[Any], heights: _Heights) -> list[Trace]:
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


def _setting_axis(tuning: Tuning, path: str) -> dict[str, Any]:
    dimension = tuning.search[path]
    axis: dict[str, Any] = {"title": {"text": escape(short(path))}}
    if isinstance(dimension, Choices):
        order = [escape(str(value)) for value in dimension.values]
        return axis | {"type": "category", "categoryorder": "array", "categoryarray": order}
    if not dimension.log:
        return axis | {"type": "linear"}
    decades = math.log10(dimension.high / dimension.low)
    return axis | {"type": "log", "dtick": 1 if decades >= 2 else "D2", "exponentformat": "power"}


def _plain(tuning: Tuning, path: str, trial: Trial) -> Any:
    value = trial.settings[path]
    return escape(str(value)) if isinstance(tuning.search[path], Choices) else value


def _hover(tuning: Tuning, trial: Trial) -> str:
    settings = "<br>".join(f"{short(path)} {escape(str(value))}" for path, value in trial.settings.items())
    return f"trial {trial.number}: {trial.state}, {figure(tuning, trial)}<br>{settings}"
