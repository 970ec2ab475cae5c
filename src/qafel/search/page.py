"""A search in words and files: sentences, trials.csv, best.toml, and a page with trials, charts and the recipe."""

from __future__ import annotations

import math
from html import escape
from typing import Any, final

import numpy as np

from qafel.drawing.chart import BLUE, GREY, RED, Axis, Bars, Panel, Series, Style, Symbol, Unit, Values
from qafel.drawing.page import cards, note, page, table
from qafel.files import write_atomically
from qafel.search.space import SECTION, Choices, Range
from qafel.search.sweeps import csv_text
from qafel.search.trials import FARTHEST, Trial, Tuning
from qafel.text import counted

SHOWN = 15
_WIDE = 8.0  # costs that differ by more than this factor get a logarithmic axis
_BEYOND = 0.08  # trials without a score are drawn this share of the range beyond the worst
_MARKS: tuple[tuple[tuple[str, ...], Symbol, str], ...] = (
    (("reached", "finished"), "circle", RED),
    (("pruned",), "circle-open", GREY),
    (("missed", "diverged", "failed"), "x-thin-open", GREY),
)
_STYLES = (
    *(Style(" or ".join(states), colour) for states, _, colour in _MARKS),
    Style("best so far", BLUE),
    Style("best", RED),
    Style("share", BLUE),
)


def short(path: str) -> str:
    """algorithm.client_lr → client_lr, task.arguments.size → task.size"""
    return path.removeprefix(SECTION).replace(".arguments.", ".")


def ranked(tuning: Tuning) -> list[Trial]:
    """The trials: the best one, then the good ones by score, then the others by the way that was left."""
    best = tuning.best
    return sorted(tuning.trials, key=lambda trial: (trial is not best, trial.score, trial.gap, trial.number))


def figure(tuning: Tuning, trial: Trial) -> str:
    """A trial's score for people, or the share of the way to the target that was left."""
    if trial.good:
        return tuning.objective.text(trial.score)
    return f"{trial.gap:.0%} left" if 0 < trial.gap < FARTHEST else "–"


def unseen(tuning: Tuning, trial: Trial) -> str:
    """The trial's score on unseen seeds; empty if it was not checked."""
    check = tuning.checks.get(trial.number)
    if check is None:
        return ""
    return tuning.objective.text(check.score) if check.good else check.state


def best_trials(tuning: Tuning, count: int) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table of the best trials, as text."""
    head = ["trial", *map(short, tuning.search), tuning.objective.name, "unseen", "outcome"]
    rows = [
        [*map(str, (one.number, *one.settings.values())), figure(tuning, one), unseen(tuning, one), one.state]
        for one in ranked(tuning)[:count]
    ]
    return head, rows


def lead_sentence(tuning: Tuning) -> str:
    """The result in a sentence."""
    objective, best = tuning.objective, tuning.best
    label = objective.label[0].upper() + objective.label[1:]
    count = f"{counted(len(tuning.trials), 'trial')}{_remarks(tuning)}"
    seeds = "" if tuning.seeds == 1 else f" of {tuning.seeds} seeds each"
    if best is None:
        return f"{label}: none of {count}{seeds} reached it."
    settings = ", ".join(f"{short(path)} = {value}" for path, value in best.settings.items())
    found = f"{label}: {objective.text(best.score)} with {settings}; found in {count}{seeds}"
    return f"{found}{_comparison(tuning, best)}{_on_unseen_seeds(tuning, best)}."


def failures(tuning: Tuning) -> list[str]:
    """The errors of failed trials, each once, with the numbers of the trials."""
    numbers: dict[str, list[str]] = {}
    for trial in tuning.trials:
        if trial.state == "failed":
            numbers.setdefault(trial.error, []).append(str(trial.number))
    return [
        f"trial{'' if len(those) == 1 else 's'} {', '.join(those)} failed: {error}" for error, those in numbers.items()
    ]


def _remarks(tuning: Tuning) -> str:
    """How many trials failed, and whether all settings were tried."""
    failed = sum(trial.state == "failed" for trial in tuning.trials)
    remarks = [f"{failed} failed"] if failed else []
    remarks += ["all settings were tried"] if tuning.exhausted else []
    return f" ({'; '.join(remarks)})" if remarks else ""


def _on_unseen_seeds(tuning: Tuning, best: Trial) -> str:
    check = tuning.checks.get(best.number)
    if check is None:
        return ""
    if check.good:
        return f"; on {counted(len(check.runs), 'unseen seed')} {tuning.objective.text(check.score)}"
    return f"; but on unseen seeds it {check.state}, like all checked trials: search with more seeds"


def _comparison(tuning: Tuning, best: Trial) -> str:
    """The best trial compared with the recipe's settings; empty if the search does not contain them."""
    first = next((trial for trial in tuning.trials if trial.number == 0), None)
    if first is None or tuning.recipe_settings is None or best.number == 0:
        return ""
    text = tuning.objective.text
    if not first.good:
        return f" (with the recipe's settings it {first.state})"
    if tuning.objective.name == "metric":
        return f" (the recipe's settings give {text(first.score)})"
    return f", {best.score / first.score:.3g} times what the recipe's settings take ({text(first.score)})"


@final
class Heights:
    """The place of each trial on the axis of the objective. Trials without a score are at its bad end."""

    def __init__(self, tuning: Tuning) -> None:
        objective, more = tuning.objective, tuning.objective.more_is_better
        scores = np.array([objective.displayed(trial.score) if trial.good else math.nan for trial in tuning.trials])
        measured: list[float] = scores[~np.isnan(scores)].tolist() or [1.0]
        good, bad = (max(measured), min(measured)) if more else (min(measured), max(measured))
        log = not more and good > 0 and bad > _WIDE * good
        beyond = _BEYOND * (abs(bad - good) or abs(bad) or 1.0)
        edge = 1.3 * bad if log else bad - beyond if more else bad + beyond
        self.of: Values = np.where(np.isnan(scores), edge, scores)
        unit: Unit = "" if objective.name == "metric" else "B" if "bytes" in objective.name else "count"
        self.axis = Axis(objective.label, log, unit, fixed=more or good <= 0)
        scale = np.log10 if log else np.asarray
        self.shades: Values = ((scale(self.of) - scale(good)) / ((scale(bad) - scale(good)) or 1.0)).clip(0.0, 1.0)
        ends = [objective.text(objective.displayed(end)) for end in (good, bad)]
        self.dark_is_good = f"Dark is good{': {} to {}'.format(*ends) if good != bad else ''}."
        lost = sum(not trial.good for trial in tuning.trials)
        self.note = f"At the edge: trials without a score ({lost} of {len(scores)})." if lost else ""


def search_panels(tuning: Tuning) -> tuple[Panel, ...]:
    """The charts: the trials in order, the settings, and their importance."""
    heights = Heights(tuning)
    panels = [_history(tuning, heights)]
    spread = [path for path, dimension in tuning.search.items() if isinstance(dimension, Range)]
    if len(spread) >= 2:
        panels.append(_map(tuning, heights, spread[0], spread[1]))
    panels += [_slice(tuning, heights, path) for path in tuning.search]
    if tuning.importance:
        panels.append(_importance(tuning))
    return tuple(panels)


def _history(tuning: Tuning, heights: Heights) -> Panel:
    numbers = np.array([float(trial.number) for trial in tuning.trials])
    good = np.array([tuning.objective.displayed(trial.score) if trial.good else math.nan for trial in tuning.trials])
    best = (np.fmax if tuning.objective.more_is_better else np.fmin).accumulate(good)
    series = (Series("best so far", numbers, best, kind="steps"), *_marks(tuning, numbers, heights.of))
    x = Axis("trial", unit="integer", fixed=True)
    return Panel("history", "Trial by trial", x, heights.axis, series, heights.note, wide=True)


def _slice(tuning: Tuning, heights: Heights, path: str) -> Panel:
    key, series = f"by-{short(path).replace('_', '-')}", _marks(tuning, _places(tuning, path), heights.of)
    return Panel(key, f"By {short(path)}", _axis(tuning, path), heights.axis, series)


def _map(tuning: Tuning, heights: Heights, across: str, up: str) -> Panel:
    """Two settings, with a point for each trial, coloured by its cost."""
    x, y = _places(tuning, across), _places(tuning, up)
    series = _marks(tuning, x, y, heights.shades)
    if (best := tuning.best) is not None:
        at = tuning.trials.index(best)
        series += (Series("best", x[[at]], y[[at]], kind="rings"),)
    words = f"{heights.dark_is_good} The ring is the best trial."
    axes = _axis(tuning, across), _axis(tuning, up)
    return Panel("map", f"{short(across)} and {short(up)}", *axes, series, words, wide=True)


def _importance(tuning: Tuning) -> Panel:
    bars = tuple(
        Bars("share", np.array([float(row)]), np.array([share]), (f"{short(path)}: {share:.0%}",), f"{share:.0%}")
        for row, (path, share) in enumerate(tuning.importance.items())
    )
    words = "PED-ANOVA: how well a setting separates the best tenth of the trials from the rest. Rough for few trials."
    y = Axis("", names=tuple(short(path) for path in tuning.importance))
    return Panel("importance", "Importance", Axis("share", unit="%"), y, (), words, bars, "rows")


def _marks(tuning: Tuning, x: Values, y: Values, shades: Values | None = None) -> tuple[Series, ...]:
    """A mark for each trial; the symbol shows its trial."""
    found: list[Series] = []
    for states, symbol, _ in _MARKS:
        chosen = [index for index, trial in enumerate(tuning.trials) if trial.state in states]
        words = tuple(_hover(tuning, tuning.trials[index]) for index in chosen)
        shade = shades[chosen] if shades is not None and symbol == "circle" else None
        if chosen:
            found.append(Series(" or ".join(states), x[chosen], y[chosen], None, None, "marks", words, symbol, shade))
    return tuple(found)


def _axis(tuning: Tuning, path: str) -> Axis:
    """The axis of a setting. No switch changes its scale."""
    dimension = tuning.search[path]
    if isinstance(dimension, Choices):
        return Axis(short(path), names=tuple(str(value) for value in dimension.values), fixed=True)
    return Axis(short(path), dimension.log, fixed=True)


def _places(tuning: Tuning, path: str) -> Values:
    """The places of the trials on the axis of a setting."""
    names, values = _axis(tuning, path).names, [trial.settings[path] for trial in tuning.trials]
    return np.array([float(names.index(str(value)) if names else value) for value in values])


def _hover(tuning: Tuning, trial: Trial) -> str:
    settings = "\n".join(f"{short(path)} {value}" for path, value in trial.settings.items())
    return f"trial {trial.number}: {trial.state}, {figure(tuning, trial)}\n{settings}"


def write_results(tuning: Tuning) -> None:
    """Write trials.csv, index.html and, if a trial succeeded, best.toml to the search's folder."""
    files = {"trials.csv": trials_csv(tuning), "index.html": render_page(tuning)}
    if tuning.tuned is not None:
        files["best.toml"] = f"# Found by `qafel tune`. {lead_sentence(tuning)}\n{tuning.tuned.to_toml()}"
    for name, text in files.items():
        write_atomically(tuning.out / name, text.encode())


def trials_csv(tuning: Tuning) -> str:
    """A row for every trial.

    `value` is the score in the search and `unseen` that on unseen seeds. `gap` is the share of the way that was left.
    """
    named = {short(path): path for path in tuning.search}
    columns = ["trial", "state", *named, "value", "gap", "metric", "uploads", "unseen", "error", "wall_s"]
    rows = [trial_json(tuning, trial) for trial in tuning.trials]
    return csv_text(columns, ({**row, **{name: row["settings"][path] for name, path in named.items()}} for row in rows))


def trial_json(tuning: Tuning, trial: Trial) -> dict[str, Any]:
    """A trial as JSON. `metric` and `uploads` are means over its runs."""
    check = tuning.checks.get(trial.number)
    metrics = [run.metric for run in trial.runs if run.metric is not None]
    return {
        "trial": trial.number,
        "state": trial.state,
        "settings": dict(trial.settings),
        "value": tuning.objective.displayed(trial.score) if trial.good else None,
        "gap": trial.gap if trial.state in ("pruned", "missed") else None,
        "metric": sum(metrics) / len(metrics) if metrics else None,
        "uploads": sum(run.uploads for run in trial.runs) / len(trial.runs) if trial.runs else None,
        "unseen": tuning.objective.displayed(check.score) if check is not None and check.good else None,
        "error": trial.error or None,
        "seeds": [run.seed for run in trial.runs],
        "costs": [tuning.objective.displayed(run.cost) for run in trial.runs] if trial.good else None,
        "wall_s": sum(run.wall_s for run in trial.runs),
    }


def search_json(tuning: Tuning) -> dict[str, Any]:
    """A search as plain values."""
    return {
        "objective": tuning.objective.label,
        "best": None if tuning.best is None else trial_json(tuning, tuning.best),
        "importance": tuning.importance,
        "trials": [trial_json(tuning, trial) for trial in tuning.trials],
        "out": str(tuning.out),
    }


def render_page(tuning: Tuning) -> str:
    """The page's HTML. The same search gives the same bytes, except for times."""
    panels = search_panels(tuning) if tuning.trials else ()
    sections = [
        f'<p class="lead">{escape(lead_sentence(tuning))}</p>',
        table(*best_trials(tuning, SHOWN), numbers=True),
        note(
            "Reached: the mean cost over its seeds. Pruned: ended early, because it was behind the median of the "
            "successful trials. Missed: its budget ended before the target."
        ),
        *(note(sentence[0].upper() + sentence[1:]) for sentence in failures(tuning)),
        "<h2>Charts</h2>",
        note("● reached, ○ pruned, × missed, diverged or failed. Drag to zoom, double-click to see all."),
        cards(panels),
        "<h2>Search space</h2>",
        table((), ((path, str(dimension)) for path, dimension in tuning.search.items())),
    ]
    if tuning.tuned is not None:
        recipe = escape(tuning.tuned.to_toml())
        sections.append(f"<details><summary>best.toml</summary><pre>{recipe}</pre></details>")
    return page(f"Search: {tuning.config.name}", sections, panels, _STYLES)
