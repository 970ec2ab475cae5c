"""`qafel tune`: search a recipe's settings for the fewest uploads or bytes to its target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, final

import typer
from rich.progress import TextColumn, TimeElapsedColumn

from qafel import drawing
from qafel.cli import advanced
from qafel.cli.console import (
    JsonOption,
    LiveBars,
    QuietOption,
    RecipeName,
    SetOption,
    StartOption,
    console,
    errors,
    figures_table,
    print_json,
    with_start,
)
from qafel.cli.run import warn_of_unfit_quantizers
from qafel.config import load_recipe
from qafel.runs.bars import bar_column, has_room
from qafel.search import ObjectiveName, Tuning, parse_search
from qafel.search import tune as search_for
from qafel.search.page import trial_json, write_results
from qafel.search.result import SearchProgress, best_trials, failures, lead_sentence, short
from qafel.search.space import uneven
from qafel.simulator import Row
from qafel.simulator.executors import ExecutorName
from qafel.text import counted

SHOWN = 8


def tune(
    recipe: RecipeName,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="A.B=SPEC", help="A setting to search, as low:high, low:high:log or a,b,c; repeatable."),
    ] = None,
    objective: Annotated[ObjectiveName, typer.Option(help="The cost to minimise.")] = "uploads",
    target: Annotated[float | None, typer.Option(help="The metric to reach; by default the recipe's target.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="The number of trials, with those in the folder.")] = 30,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each trial; their mean counts.")] = 1,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="The folder for results; by default tune/NAME.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials that run in parallel.")] = 1,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
    seconds: Annotated[float | None, advanced(min=0, help="Start no trial after this many seconds.")] = None,
    check: Annotated[int, advanced(min=0, help="New seeds on which the best trials run again at the end.")] = 5,
    start_from: StartOption = None,
    seed: Annotated[int | None, advanced(help="The seed of the search, and the first seed of the runs.")] = None,
    executor: Annotated[ExecutorName, advanced(help="Where the clients of a trial train.")] = "inline",
) -> None:
    """Search settings, by default learning rates, for the least cost of reaching a target. Resumes if it was stopped.

    Example: qafel tune mushrooms-qafel-4bit --target 0.01 --trials 40 --set stop.server_steps=2000
    """
    drawing.require_drawing()
    config = load_recipe(recipe, with_start(settings, start_from), seed)
    space = parse_search(search or (), config)
    if (warning := uneven(config, space)) is not None:
        errors.print(f"[yellow]warning:[/] {warning}", highlight=False)
    with _TuneProgress(config.name, trials, quiet) as progress:
        tuning = search_for(
            config,
            space,
            objective=objective,
            target=target,
            trials=trials,
            seconds=seconds,
            seeds=seeds,
            check=check,
            out=out,
            workers=workers,
            executor=executor,
            watch=progress.update,
            progress=progress.row,
            save=write_results,
        )
    if json_output:
        print_json(_json(tuning))
    else:
        _show(tuning)
    if (best := tuning.tuned) is None:
        raise typer.Exit(1)
    if tuning.layout is not None and any("quantizer" in path for path in tuning.search):
        warn_of_unfit_quantizers(best.algorithm.compose(tuning.layout), tuning.layout.size)


@final
class _TuneProgress(LiveBars):
    """A bar with the number of finished trials, the best one, and the trial that runs."""

    def __init__(self, name: str, trials: int, quiet: bool) -> None:
        super().__init__(
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            bar_column(errors),
            TextColumn("{task.fields[best]}"),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[row]}"),
            TimeElapsedColumn(),
            quiet=quiet,
        )
        self._bar = self.bars.add_task(name, total=trials, best="", row="")
        self._shown_s = 0.0

    def update(self, now: SearchProgress) -> None:
        wide = has_room(self.bars.console)
        settings = ", ".join(f"{short(path)} {value}" for path, value in now.trial.settings.items()) if wide else ""
        best = "" if now.best is None else f"best {now.objective.text(now.best.score)} (trial {now.best.number}) ·"
        what = f"{'checking ' if now.checking else ''}trial {now.trial.number}"
        self.bars.update(self._bar, completed=now.done, best=best, description=f"{what}: {settings}" if wide else what)

    def __exit__(self, *error: object) -> None:
        if not any(error):  # a search may end early
            self.bars.update(self._bar, total=self.bars.tasks[0].completed)
        super().__exit__(*error)

    def row(self, row: Row) -> None:
        if abs(row.wall_s - self._shown_s) > 0.1:
            self._shown_s = row.wall_s
            self.bars.update(self._bar, row=f"· {counted(row.uploads, 'upload')}, metric {row.metric:.3g}")


def _json(tuning: Tuning) -> dict[str, Any]:
    return {
        "objective": tuning.objective.label,
        "best": None if tuning.best is None else trial_json(tuning, tuning.best),
        "importance": tuning.importance,
        "trials": [trial_json(tuning, trial) for trial in tuning.trials],
        "out": str(tuning.out),
    }


def _show(tuning: Tuning) -> None:
    head, rows = best_trials(tuning, SHOWN)
    table = figures_table("", *head, words=0)
    table.columns[-1].justify = "left"
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for sentence in (*failures(tuning), lead_sentence(tuning)):
        console.print(sentence, highlight=False, markup=False)
    files = ["recipe  " + str(tuning.out / "best.toml")] if tuning.best is not None else []
    for line in (*files, f"trials  {tuning.out / 'trials.csv'}", f"page    {tuning.out / 'index.html'}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
