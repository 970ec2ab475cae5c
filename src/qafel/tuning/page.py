"""The page of a search: its best trials, its charts, its recipe; one file that works offline."""

from __future__ import annotations

from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from qafel.results.report_numbers import human_metric, human_seconds
from qafel.results.report_page import page
from qafel.results.report_parts import cards, chart_data, scrolling
from qafel.results.run_directory import write_atomically
from qafel.tuning.charts import charts_of
from qafel.tuning.files import trial_json
from qafel.tuning.ranking import failures, figure, lead_sentence, ranked, short, unseen
from qafel.tuning.result import Tuning
from qafel.version import __version__

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
