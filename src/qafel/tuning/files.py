"""What a search leaves for people and scripts: trials.csv, and best.toml, a recipe."""

from __future__ import annotations

import csv
import io
from typing import Any

from qafel.results.run_directory import write_atomically
from qafel.tuning.ranking import lead_sentence, short, unseen_value
from qafel.tuning.result import Tuning
from qafel.tuning.trial import Trial


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
