"""`sweep`: make runs, compare them in a report and list them in a table."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from numpy.typing import NDArray

from qafel import drawing
from qafel.drawing.page import table
from qafel.errors import ConfigError, DataError, OutputError
from qafel.files import write_atomically, writing
from qafel.runs.progress import Row
from qafel.runs.reading import History, Run, number_of
from qafel.runs.seeds import Spread
from qafel.runs.trackers import NOT_TRACKED, Track, track_of
from qafel.search.grid import Recipe, as_settings, grid, require_sound, seeds_of
from qafel.search.runner import RunSpec, Watcher, make_runs, unfinished
from qafel.simulator.executors import ExecutorName
from qafel.text import counted, human_bytes, human_count, human_metric
from qafel.workers import worker_count

if TYPE_CHECKING:
    from qafel.drawing.printed import Plot

_SCALAR = str | int | float | bool


@final
@dataclass(frozen=True, eq=False)
class Sweep:
    """The result of a sweep: a row for each run, with the varied settings and the figures of its summary."""

    rows: list[dict[str, Any]]
    folder: Path
    """The folder of the run directories and the report."""
    report: Path | None
    """The page that compares the runs. None if no run has an evaluation."""
    failed: Mapping[str, str]
    """The reasons of failures by run directory."""
    varied: Sequence[str] = ()
    """The paths of the settings that were varied."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self._table[column]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"Sweep({counted(len(self.rows), 'run')} × {len(self.columns)} columns in {self.folder}{failed})"

    def _repr_html_(self) -> str:
        head, rows = self.over_seeds()
        drawn = "" if self.report is None else self.plot()._repr_html_()
        return table(head, rows, numbers=True) + drawn

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each run. Needs the extra `pandas`."""
        return self._table.to_pandas()

    def plot(self) -> Plot:
        """The metric by server steps and by bytes. Runs that differ only by seed are one curve with their range.

        A notebook shows the result; `.save("plot.png")` writes it, and `.figure` is the matplotlib figure.
        """
        from qafel.report import comparison_figure  # noqa: PLC0415  (loads the drawing libraries)

        found = (_load(self.folder / row["run"], {}) for row in self.rows)
        return drawing.printed.Plot(comparison_figure([run for run in found if run is not None]))

    def over_seeds(self) -> tuple[list[str], list[list[str]]]:
        """The head and the rows of a table as text, with a row for all seeds of a configuration.

        Figures are mean ± standard deviation over finished seeds. The last column counts the others.
        """
        kinds: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            # Spaces, so that a long name is wrapped between settings.
            values = (f"{path.rpartition('.')[2]}={row[path]}" for path in self.varied if path in row)
            kinds.setdefault(" ".join((row["recipe"], *values)), []).append(row)
        metrics = {row["metric_name"] for row in self.rows if row.get("metric_name")}
        final = f"final {metrics.pop()}" if len(metrics) == 1 else "final metric"
        rows = [[name, *_over_seeds(same)] for name, same in kinds.items()]
        return ["run", "seeds", final, "uploads", "traffic", ""], rows

    @property
    def _table(self) -> History:
        columns = self.columns
        return History([{key: row.get(key) for key in columns} for row in self.rows])


def sweep(
    recipes: Recipe | Sequence[Recipe],
    *,
    seeds: int | Sequence[int] = 5,
    settings: Mapping[str, object] | None = None,
    out: str | Path = "sweep",
    workers: int = 1,
    track: str | Sequence[str] = (),
) -> Sweep:
    """Run every recipe with every seed and every combination of settings, and compare them in a report.

    Finished runs in `out` are kept, and interrupted ones resume. A run that fails does not stop the others.

    recipes    One recipe or a list: names, TOML files, or the content of such a file as a table.
    seeds      The number of seeds, from 0 on, or a list of seeds.
    settings   Values by the path of a setting. The sweep varies lists, such as {"algorithm.client_lr": [1, 2]}.
    out        The folder for the run directories, report.html and table.csv.
    workers    The number of processes. With several, a script needs `if __name__ == "__main__":`.
    track      Trackers that show the runs: "tensorboard", "mlflow", "wandb".
    """
    several = [recipes] if isinstance(recipes, str | Path | Mapping) else recipes
    if not isinstance(several, Sequence) or not all(isinstance(recipe, str | Path | Mapping) for recipe in several):
        raise ConfigError(f"`recipes` must be names, TOML files or tables; got {recipes!r}.")
    if not isinstance(settings, Mapping | None):
        raise ConfigError(
            f'`settings` must be values by path, as {{"algorithm.client_lr": [0.5, 1]}}; got {settings!r}.'
        )
    if not isinstance(out, str | Path) or not str(out):
        raise ConfigError(f"`out` must be the path of a folder; got {out!r}.")
    worker_count(workers)
    chosen, trackers = seeds_of(seeds), track_of(track)
    runs, folder = grid(several, chosen, as_settings(settings or {})), Path(out)
    for warning in require_sound(unfinished(runs, folder)):
        warnings.warn(warning, stacklevel=2)
    return make_sweep(runs, folder, Silence(), workers, trackers)


def make_sweep(
    runs: Sequence[RunSpec], folder: Path, watcher: Watcher, workers: int, track: Track = NOT_TRACKED
) -> Sweep:
    """Make the unfinished runs in `folder`, then the report and the table."""
    if (folder / "config.toml").exists():
        raise OutputError(f"{folder} is a run directory. Choose another `out` for the sweep.")
    with writing(f"results to {folder}", "; choose another folder, `out`"):
        folder.mkdir(parents=True, exist_ok=True)
    executor: ExecutorName = "inline" if workers == 1 else "processes"
    failed = make_runs(runs, folder, watcher, executor=executor, workers=workers, track=track)
    rows, loaded = [], []
    for spec in runs:
        if (run := _load(folder / spec.folder, failed)) is not None:
            loaded.append(run)
        rows.append(_row(spec, run, failed.get(spec.folder)))
    varied = list(dict.fromkeys(path for spec in runs for path in spec.at))
    found = Sweep(rows, folder, _write_report(loaded, folder, failed), failed, varied)
    write_atomically(folder / "table.csv", _csv(found).encode())
    return found


def _load(path: Path, failed: dict[str, str]) -> Run | None:
    """A run, finished or not. None if it is damaged or empty; then it is added to `failed`."""
    try:
        return Run.load(path)
    except DataError as error:
        failed.setdefault(path.name, str(error))
        return None


def _row(spec: RunSpec, run: Run | None, failure: str | None) -> dict[str, Any]:
    summary = {} if run is None else run.summary
    figures = {key: value for key, value in summary.items() if value is None or isinstance(value, _SCALAR)}
    names = {"run": spec.folder, "recipe": spec.method, "seed": spec.config.seed, **spec.at}
    status = (
        {"status": summary.get("status", "unfinished")} if failure is None else {"status": "failed", "error": failure}
    )
    return {**names, **status, **{key: value for key, value in figures.items() if key not in names and key != "status"}}


def _over_seeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    ended = [row for row in rows if row["status"] == "finished"]
    others = [row["status"] for row in rows if row["status"] != "finished"]

    def spread(*keys: str) -> Spread:
        return Spread.of(sum(number_of(row[key]) for key in keys) for row in ended)

    return [
        str(len(ended)),
        spread("metric_final").text(human_metric),
        human_count(spread("uploads").mean),
        human_bytes(spread("upload_bytes_total", "broadcast_bytes_total").mean),
        ", ".join(f"{others.count(status)} {status}" for status in dict.fromkeys(others)),
    ]


def _csv(found: Sweep) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, found.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.rows)
    return text.getvalue()


def _write_report(runs: Sequence[Run], folder: Path, failed: Mapping[str, str]) -> Path | None:
    from qafel.report import comparison_figure, write_report  # noqa: PLC0415  (loads the drawing libraries)

    if not runs:
        return None
    shown = {run.path.name for run in runs}
    left_out = [f"{name} (failed)" for name in failed if name not in shown]
    page = write_report(
        runs, folder / "report.html", title=f"{counted(len(runs), 'run')} of a sweep", left_out=left_out
    )
    drawing.printed.save_figure(comparison_figure(runs), page.with_suffix(".png"))
    return page


@final
class Silence:
    """A watcher that ignores the progress of runs."""

    def started(self, run: RunSpec) -> None: ...

    def progressed(self, run: RunSpec, row: Row) -> None: ...

    def noted(self, run: RunSpec, text: str) -> None: ...

    def ended(self, run: RunSpec, status: str) -> None: ...
