"""`sweep`: run every recipe with every seed and every combination of settings, and compare the runs in a report.

algorithm.client_lr=0.5,1,2                                  Three values.
algorithm.client_quantizer=top_k:0.5,round=down,qsgd:4       Two values: `key=…` belongs to the value before it.
task.arguments={a = 1, b = 2}                                One value: quotes and brackets protect commas.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

import tomli_w
from numpy.typing import NDArray

from qafel import drawing
from qafel.config import Config, load_recipe
from qafel.config.sections import read_value
from qafel.drawing.page import table
from qafel.errors import ConfigError, DataError, OutputError, PartFailed, UserError
from qafel.files import write_atomically, writing
from qafel.runs.reading import BYTES, History, Run, Spread, number_of
from qafel.runs.trackers import NOT_TRACKED, Track, track_of
from qafel.search.runner import RunSpec, Watcher, make_runs, unfinished
from qafel.simulator.api import quantizer_warnings
from qafel.simulator.executors import ExecutorName
from qafel.simulator.simulation import Simulation
from qafel.tasks.protocol import Task
from qafel.text import counted, human_bytes, human_count, human_metric, split_list
from qafel.workers import worker_count

if TYPE_CHECKING:
    from qafel.drawing.printed import Plot

Recipe: TypeAlias = str | Path | Mapping[str, Any]
"""A recipe's name, a TOML file, or the content of such a file as a table."""
Settings: TypeAlias = Mapping[str, Sequence[str]]
"""The values of each setting by its path, as in `--set`: TOML or plain text."""

_MOST_SEEDS = 10_000
_LONGEST = 120  # letters of a name; folders of many file systems end at 255 bytes


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
        """The metric by server steps and by total bytes. Runs that differ only by seed are one curve with their range.

        A notebook shows the result; `.save("plot.png")` writes it, and `.figure` is the matplotlib figure.
        """
        from qafel.report import comparison_figure  # noqa: PLC0415  (loads the drawing libraries)

        found = (_loaded(self.folder / row["run"], {}) for row in self.rows)
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
        return ["run", "seeds", final, "uploads", "total bytes", ""], rows

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
    return make_sweep(runs, folder, Watcher(), workers, trackers)


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
        if (run := _loaded(folder / spec.folder, failed)) is not None:
            loaded.append(run)
        rows.append(_row(spec, run, failed.get(spec.folder)))
    varied = list(dict.fromkeys(path for spec in runs for path in spec.at))
    found = Sweep(rows, folder, _write_report(loaded, folder, failed), failed, varied)
    write_atomically(folder / "table.csv", csv_text(found.columns, rows).encode())
    return found


def _loaded(path: Path, failed: dict[str, str]) -> Run | None:
    """A run, finished or not. None if it is damaged or empty; then it is added to `failed`."""
    try:
        return Run.load(path)
    except DataError as error:
        failed.setdefault(path.name, str(error))
        return None


def _row(spec: RunSpec, run: Run | None, failure: str | None) -> dict[str, Any]:
    summary = {} if run is None else run.summary
    row = {"run": spec.folder, "recipe": spec.method, "seed": spec.config.seed, **spec.at}
    row |= {"status": "failed", "error": failure} if failure else {"status": summary.get("status", "unfinished")}
    simple = str | int | float | bool | None
    return row | {key: value for key, value in summary.items() if key not in row and isinstance(value, simple)}


def _over_seeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    ended = [row for row in rows if row["status"] == "finished"]
    others = [row["status"] for row in rows if row["status"] != "finished"]

    def spread(*keys: str) -> Spread:
        return Spread.of(sum(number_of(row.get(key)) for key in keys) for row in ended)

    return [
        str(len(ended)),
        spread("metric_final").text(human_metric),
        human_count(spread("uploads").mean),
        human_bytes(spread(*BYTES).mean),
        ", ".join(f"{others.count(status)} {status}" for status in dict.fromkeys(others)),
    ]


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A CSV file with these columns. Other values of a row are left out."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
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


def parse_seeds(text: str) -> list[int]:
    """The seeds of `--seeds`: "5" means 0 to 4, "3,7,9" a list, and "7," a single seed."""
    try:
        listed = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        listed = []
    return seeds_of(listed if "," in text or not listed else listed[0])


def seeds_of(seeds: object) -> list[int]:
    """The list of seeds that a number of seeds, or a list of them, means."""
    if isinstance(seeds, int) and 0 < seeds <= _MOST_SEEDS:
        return list(range(seeds))
    listed = list(seeds) if isinstance(seeds, Iterable) else []
    if listed and all(isinstance(seed, Integral) and -(2**63) <= int(seed) < 2**63 for seed in listed):
        return list(dict.fromkeys(map(int, listed)))
    raise ConfigError(
        f"`seeds` must be a number up to {_MOST_SEEDS:,} (5: seeds 0 to 4) or a list of 64-bit numbers (3,7,9; one "
        f"seed: 7,); got {seeds!r}."
    )


def parse_settings(texts: Iterable[str]) -> Settings:
    """The values of `--set A.B=C` and `--set A.B=1,2,3`. A repeated setting has all values."""
    found: dict[str, list[str]] = {}
    for text in texts:
        path, equals, values = (part.strip() for part in text.partition("="))
        split = split_list(values)
        if not equals or not path or not all(split):
            raise ConfigError(f"A setting must be section.key=value or section.key=a,b,c; got {text!r}.")
        found[path] = list(dict.fromkeys([*found.get(path, ()), *split]))
    return found


def as_settings(values: Mapping[str, object]) -> Settings:
    """Python values as `--set` takes them. A list or tuple holds several values."""
    return {
        path: [_toml(path, one) for one in (several if isinstance(several, list | tuple) else (several,))]
        for path, several in values.items()
    }


def _toml(path: str, value: Any) -> str:
    try:
        return tomli_w.dumps({"v": value.item() if hasattr(value, "item") else value}).removeprefix("v = ").strip()
    except TypeError:
        raise ConfigError(f"{path} takes numbers, text or booleans; got {value!r}.") from None


def grid(recipes: Sequence[Recipe], seeds: Sequence[int], settings: Settings) -> list[RunSpec]:
    """Every recipe with every combination of settings and every seed. Raises `ConfigError` for a mistake in any.

    The name of a run is the recipe's name with the values that vary.
    """
    if "seed" in settings:
        raise ConfigError("Set the seeds of a sweep by `seeds`, not by the setting seed.")
    recipes = [recipe for place, recipe in enumerate(recipes) if recipe not in recipes[:place]]
    if empty := [path for path, values in settings.items() if not values]:
        raise ConfigError(f"{empty[0]} needs at least one value.")
    if not recipes or not seeds:
        raise ConfigError("A sweep needs at least one recipe and one seed.")
    runs: list[RunSpec] = []
    for base, recipe in zip(_names(recipes, settings), recipes, strict=True):
        for values in itertools.product(*settings.values()):
            chosen = dict(zip(settings, values, strict=True))
            varied = {path: value for path, value in chosen.items() if len(settings[path]) > 1}
            config = _load(recipe, chosen, seeds[0], varied)
            name = _short("-".join((base, *(f"{_key(path, varied)}={value}" for path, value in varied.items()))))
            if any(run.config.name == name for run in runs):
                name = f"{name}-{_digest(repr((base, varied)))}"
            at = {path: _shown(config.value(path), text) for path, text in varied.items()}
            runs += [RunSpec(base, config.model_copy(update={"name": name, "seed": seed}), at) for seed in seeds]
    return runs


def _names(recipes: Sequence[Recipe], settings: Settings) -> list[str]:
    """A name for each recipe: the name of its file if several recipes share a name."""
    first = {path: values[0] for path, values in settings.items()}
    names = [_load(recipe, first, 0, {}).name for recipe in recipes]
    shared = Counter(names)
    names = [
        name if shared[name] == 1 or isinstance(recipe, Mapping) else Path(recipe).stem
        for name, recipe in zip(names, recipes, strict=True)
    ]
    if doubled := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"Several recipes have the name {doubled[0]!r}. Give each a different `name`.")
    return names


def _load(recipe: Recipe, settings: Mapping[str, str], seed: int, varied: Mapping[str, str]) -> Config:
    overrides = [f"{path}={value}" for path, value in settings.items()]
    try:
        if isinstance(recipe, Mapping):
            return Config.from_toml(tomli_w.dumps(recipe), "the recipe", overrides, seed)
        return load_recipe(str(recipe), overrides, seed)
    except ConfigError as error:
        raise ConfigError(f"{error}{_where(varied)}") from None


def _where(varied: Mapping[str, object]) -> str:
    return f" (at {', '.join(f'{path}={value}' for path, value in varied.items())})" if varied else ""


def _key(path: str, varied: Mapping[str, str]) -> str:
    """The last part of a setting's path; the whole path if another one has the same last part."""
    last = path.rpartition(".")[2]
    return path if sum(other.rpartition(".")[2] == last for other in varied) > 1 else last


def _short(name: str) -> str:
    """The name as a folder name: short, and without special characters."""
    plain = re.sub(r"[^\w.+=-]+", "-", name.replace('"', "")).strip("-")
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 9]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _shown(value: Any, text: str) -> Any:
    """A setting's value for a table: the text that set it if the configuration states another setting instead.

    A custom part appears as its call.
    """
    value = read_value(text) if value is None else value
    return value if isinstance(value, str | int | float) else str(value)


def require_sound(runs: Iterable[RunSpec]) -> list[str]:
    """Start one run of each configuration without writing anything, so that mistakes show before the sweep begins.

    Returns the warnings about quantizers, each once.
    """
    found: dict[str, None] = {}
    task: Task | None = None
    made: Config | None = None
    kinds: dict[str, RunSpec] = {}
    for run in runs:
        kinds.setdefault(run.config.name, run)
    for run in kinds.values():
        config = run.config
        try:
            if task is None or made is None or made.task != config.task:
                task, made = None, config  # one in memory at a time
                task = config.task.make()
            algorithm, start = config.algorithm.compose(task.layout), config.initial_model(task)
            simulation = Simulation(task, algorithm, config.timing, config.seed, start=start)
            if run.cheap:  # some mistakes show only when a client trains
                simulation.begin()
                simulation.advance()
        except UserError as error:
            kind = PartFailed if isinstance(error, PartFailed) else ConfigError
            raise kind(f"{run.folder}: {error}") from error.__cause__
        except Exception:  # the run itself will fail, and the others continue
            continue
        found |= dict.fromkeys(quantizer_warnings(algorithm, task.layout.size))
    return list(found)
