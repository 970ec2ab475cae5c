"""The page of a search: its best trials, its charts, its recipe; one file that works offline."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, final

import numpy as np
from plotly.offline import get_plotlyjs

from qafel.drawing.chart import BYTES_AXIS, COUNT_AXIS, Chart, Trace, plain
from qafel.drawing.page import cards, chart_data, page, scrolling
from qafel.drawing.styles import PALETTE
from qafel.files import write_atomically
from qafel.text import human_metric, human_seconds
from qafel.tuning.result import Tuning, failures, figure, lead_sentence, ranked, short, unseen, unseen_value
from qafel.tuning.search import Choices, Range
from qafel.tuning.trial import Trial
from qafel.version import __version__

# The axes of a search's charts: what it cost, and the settings.


_WIDE = 8.0


_BEYOND = 0.08


@final
class Heights:
    """Where each trial stands on the axis of the objective; the lost stand at its bad end."""

    def __init__(self, tuning: Tuning) -> None:
        self._objective = objective = tuning.objective
        scores = [math.nan if trial.lost else objective.shown(trial.score) for trial in tuning.trials]
        self.measured = [score for score in scores if not math.isnan(score)]
        self.low, self.high = (min(self.measured), max(self.measured)) if self.measured else (1.0, 1.0)
        self.log = not objective.more_is_better and self.low > 0 and self.high > _WIDE * self.low
        self.of = [self._bad_end() if math.isnan(score) else score for score in scores]
        lost = sum(trial.lost for trial in tuning.trials)
        what = "missed the target, diverged or failed"
        self.notes = (f"At the edge: what {what} ({lost} of {len(scores)}).",) if lost else ()
        self.toggles = ("y",) if self.low > 0 and not objective.more_is_better else ()

    @property
    def axis(self) -> dict[str, Any]:
        ticks: dict[str, Any] = {}
        if self._objective.name != "metric":
            ticks = BYTES_AXIS if "bytes" in self._objective.name else COUNT_AXIS
        if self.log and self.high < 100 * self.low:
            # A tick a decade would be too few; some three a decade are at 2, 5 and 10. As a number of ticks and not as
            # plotly's dtick "D2" it serves a linear axis too, to which the page can switch.
            ticks = ticks | {"tickmode": "auto", "nticks": max(3, int(3 * math.log10(self.high / self.low)))}
        return {"title": {"text": escape(self._objective.label)}, "type": "log" if self.log else "linear", **ticks}

    @property
    def colours(self) -> dict[str, Any]:
        """The colour scale of a map: dark is good."""
        ends = {"cmin": self.colour(self.low), "cmax": self.colour(self.high)}
        return {"colorscale": "Viridis", "reversescale": self._objective.more_is_better, **ends}

    @property
    def darkest_to_brightest(self) -> str:
        """What the ends of the colour scale stand for; nothing where they are the same."""
        if not self.measured or self.low == self.high:
            return ""
        ends = [self._objective.text(self._objective.shown(end)) for end in (self.low, self.high)]
        return ": {} to {}".format(*(reversed(ends) if self._objective.more_is_better else ends))

    def colour(self, height: float) -> float:
        """Where a height is on the colour scale."""
        return math.log10(height) if self.log else height

    def _bad_end(self) -> float:
        if self.log:
            return 1.3 * self.high
        beyond = _BEYOND * (self.high - self.low or abs(self.high) or 1.0)
        return self.low - beyond if self._objective.more_is_better else self.high + beyond


def setting_axis(tuning: Tuning, path: str) -> dict[str, Any]:
    """The axis of a setting that was searched. It keeps its scale: no switch changes it."""
    dimension = tuning.search[path]
    axis: dict[str, Any] = {"title": {"text": escape(short(path))}}
    if isinstance(dimension, Choices):
        order = [escape(str(value)) for value in dimension.values]
        return axis | {"type": "category", "categoryorder": "array", "categoryarray": order}
    if not dimension.log:
        return axis | {"type": "linear"}
    decades = math.log10(dimension.high / dimension.low)
    return axis | {"type": "log", "dtick": 1 if decades >= 2 else "D2", "exponentformat": "power"}


# The charts of a search: how it went, where it looked, what mattered.


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


# What a search leaves for people and scripts: trials.csv, and best.toml, a recipe.


def write_files(tuning: Tuning) -> None:
    """Write trials.csv, and best.toml where some trial did what it should."""
    write_atomically(tuning.out / "trials.csv", trials_csv(tuning).encode())
    if tuning.best is not None:
        head = f"# Found by `qafel tune`. {lead_sentence(tuning)}\n"
        recipe = tuning.config_of(tuning.best.settings).to_toml()
        write_atomically(tuning.out / "best.toml", (head + recipe).encode())


def trials_csv(tuning: Tuning) -> str:
    """A row for every trial.

    `value` is measured, `unseen` with other seeds; `estimate` is what the search took a cut-off trial for; `error` says
    why a trial failed.
    """
    rows = [trial_json(tuning, trial) for trial in tuning.trials]
    text = io.StringIO(newline="")
    names = [
        "trial",
        "state",
        *map(short, tuning.search),
        "value",
        "estimate",
        "gap",
        "metric",
        "uploads",
        "unseen",
        "error",
        "wall_s",
    ]
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, **{short(path): value for path, value in row["settings"].items()}} for row in rows)
    return text.getvalue()


def trial_json(tuning: Tuning, trial: Trial) -> dict[str, Any]:
    """A trial as JSON. `metric` and `uploads` are means over its runs."""
    outcome = trial.outcome
    assert outcome is not None
    metrics = [run.metric for run in outcome.runs if run.metric is not None]
    return {
        "trial": trial.number,
        "state": outcome.state,
        "settings": dict(trial.settings),
        "value": tuning.objective.shown(trial.score) if trial.good else None,
        "estimate": trial.score if outcome.state == "cut off" else None,
        "gap": outcome.gap if outcome.state in ("cut off", "missed") else None,
        "metric": sum(metrics) / len(metrics) if metrics else None,
        "uploads": sum(run.uploads for run in outcome.runs) / len(outcome.runs) if outcome.runs else None,
        "unseen": unseen_value(tuning, trial),
        "error": outcome.error or None,
        "seeds": [run.seed for run in outcome.runs],
        "costs": [tuning.objective.shown(run.cost) for run in outcome.runs] if trial.good else None,
        "wall_s": outcome.wall_s,
    }


SHOWN = 15


def write_page(tuning: Tuning) -> Path:
    path = tuning.out / "index.html"
    write_atomically(path, render_page(tuning).encode())
    return path


def render_page(tuning: Tuning) -> str:
    """The page's HTML. The same search gives the same bytes, but for the seconds it took."""
    charts = charts_of(tuning) if tuning.trials else ()
    sections = [
        f'<p class="lead">{escape(lead_sentence(tuning))}</p>',
        _table(tuning),
        '<p class="note">Reached: measured, the mean over its seeds. Cut off: it could no longer be the best; '
        "after ≈ stands an estimate, which steers the search, never a result. Missed: its budget ended first.</p>",
        *(f'<p class="note">{escape(sentence[0].upper() + sentence[1:])}</p>' for sentence in failures(tuning)),
        '<h2>Charts</h2><p class="note">● reached, ○ cut off (estimate), × missed, diverged or failed. Drag to zoom, '
        "double-click to see all.</p>",
        cards(charts),
        "<h2>What was searched</h2>",
        _searched(tuning),
    ]
    if tuning.best is not None:
        recipe = escape(tuning.config_of(tuning.best.settings).to_toml())
        sections.append(f"<details><summary>best.toml</summary><pre>{recipe}</pre></details>")
    sections.append(f"<footer>Written by qafel {escape(__version__)}.</footer>")
    return page(escape(f"Search: {tuning.config.name}"), "\n".join(sections), chart_data(charts), get_plotlyjs())


def _table(tuning: Tuning) -> str:
    objective = tuning.objective
    names = ["trial", "outcome", *map(short, tuning.search), objective.label, "on unseen seeds"]
    names += [objective.metric_name, "took"]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = []
    for trial in ranked(tuning)[:SHOWN]:
        assert trial.outcome is not None
        metric = trial_json(tuning, trial)["metric"]
        cells = [
            trial.state,
            *(str(value) for value in trial.settings.values()),
            figure(tuning, trial),
            unseen(tuning, trial),
            "–" if metric is None else human_metric(metric),
            human_seconds(trial.outcome.wall_s),
        ]
        own = " · the recipe's own" if trial.number == 0 and tuning.starts_with_own else ""
        body = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{trial.number}{escape(own)}</th>{body}</tr>')
    return scrolling(f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>')


def _searched(tuning: Tuning) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(path)}</th><td class="text">{escape(str(dimension))}</td></tr>'
        for path, dimension in tuning.search.items()
    )
    return scrolling(f"<table><tbody>{rows}</tbody></table>")
