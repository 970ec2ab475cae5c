"""An entry's results as files: table.csv, table.md, figure.png, figure.pdf, index.html and claims.json.

Each states where results come from: command, seeds, settings, versions, machines and time, as the runs recorded them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, final

from qafel import drawing
from qafel.drawing.chart import Panel, panel_styles
from qafel.drawing.page import cards, legend, note, page, table
from qafel.errors import DataError, OutputError
from qafel.files import Lock, read_regular, write_atomically
from qafel.paper.display import Table
from qafel.paper.entry import Claim, Entry, Request, Verdict
from qafel.paper.kept import whole_run
from qafel.paper.measured import EntryRuns
from qafel.report.groups import flatten
from qafel.runs.directory import state_of
from qafel.runs.reading import Run
from qafel.runs.summary import environment
from qafel.search.runner import RunSpec
from qafel.text import human_seconds
from qafel.version import __version__

SettingTexts: TypeAlias = dict[str, str]
"""Dotted keys of a configuration, and their values as text."""

_LEFT_OUT = ("name", "description", "seed")
_TORCH = "torch"
_CLAIMS_BYTES = 16 << 20
_MARKS = {
    "pass": "✓ pass",
    "by construction": "✓ by construction",
    "fail": "✗ fail",
    "undecided": "? undecided",
    "not comparable": "– not comparable",
}


@final
@dataclass(frozen=True, slots=True)
class Environment:
    """Versions and machine of a process."""

    versions: tuple[tuple[str, str], ...]
    hardware: str | None
    """None for runs made before it was recorded: of these only qafel's version is known."""

    @staticmethod
    def of(summary: Mapping[str, Any], with_torch: bool) -> Environment:
        """What a summary says of it. PyTorch may be loaded where it has no part."""
        found, machine = summary.get("versions"), summary.get("hardware")
        versions = {"qafel": summary.get("qafel_version", "unknown")} | (found if isinstance(found, dict) else {})
        listed = tuple((name, str(value)) for name, value in versions.items() if with_torch or name != _TORCH)
        if not isinstance(machine, dict):
            return Environment(listed, None)
        cores = machine.get("cores")
        return Environment(listed, f"{cores} {'core' if cores == 1 else 'cores'}, {machine.get('processor')}")

    @property
    def qafel(self) -> str:
        return dict(self.versions)["qafel"]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions)
        return f"{versions} {f'on {self.hardware}' if self.hardware else '(machine and other versions not recorded)'}"

    def to_json(self) -> dict[str, Any]:
        return {"versions": dict(self.versions), "hardware": self.hardware}


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """What it takes to repeat an entry, and what it took."""

    command: str
    measured: EntryRuns
    each: tuple[int, int]
    """The fewest and the most seeds of a method at a place in the sweep."""
    made_with: dict[Environment, int]
    """How many runs each made, or made a part of."""
    written_with: Environment
    common: SettingTexts
    """Settings that all runs share."""
    differing: dict[str, SettingTexts]
    """Settings that differ, by method; several values are listed."""

    @property
    def wall_s(self) -> float:
        """Of all runs together, as each recorded its own."""
        return sum(run.number("wall_s") for run in self.measured.runs())

    def extent(self) -> str:
        """How many runs, with which seeds, and how long they took."""
        fewest, most = self.each
        each = f" ({fewest} to {most} for each point)" if fewest != most else ""
        seeds = _listed([str(seed) for seed in self.measured.seeds])
        return f"{len(self.measured.pairs)} runs, seeds {seeds}{each}; {human_seconds(self.wall_s)} of run time in all."

    def sentence(self) -> str:
        """The same, and versions and machines."""
        several = len(self.made_with) > 1
        made = "; ".join(f"{f'{count} ' if several else ''}with {place}" for place, count in self.made_with.items())
        parts = [
            self.extent(),
            f"Made {made}.",
            "" if self._is_written_where_made() else f"Results written with {self.written_with}.",
            self.of_other_versions(),
        ]
        return " ".join(part for part in parts if part)

    def of_other_versions(self) -> str:
        """A word of warning where runs were made by another version than the present one."""
        others: Counter[str] = Counter()
        for place, count in self.made_with.items():
            if place.qafel != __version__:
                others[place.qafel] += count
        if not others:
            return ""
        found = ", ".join(f"{count} by qafel {version}" for version, count in others.items())
        again = "To make them again, choose another --out and no --results."
        return f"Not made by the present qafel {__version__}: {found}. {again}"

    def seeds_each(self) -> str:
        """How many seeds a figure's points and curves stand for."""
        fewest, most = self.each
        if most == 1:
            seeds = len(self.measured.seeds)
            return "1 seed" if seeds == 1 else f"{seeds} seeds, one a curve"
        return f"{most if fewest == most else f'{fewest} to {most}'} seeds: mean and range"

    def qafel(self) -> str:
        """The versions of qafel that made the runs."""
        return " and ".join(dict.fromkeys(place.qafel for place in self.made_with))

    def _is_written_where_made(self) -> bool:
        """Torch aside, which writing does not need."""
        made = {Environment(tuple(v for v in e.versions if v[0] != _TORCH), e.hardware) for e in self.made_with}
        return made == {self.written_with}


def provenance(measured: EntryRuns, command: str) -> Provenance:
    """All that is known of how the runs came to be; `command` is the one that results state."""
    each = Counter((planned.method, *sorted(planned.at.items())) for planned, _ in measured.pairs)
    ends = min(each.values()), max(each.values())
    made_with = Counter(place for pair in measured.pairs for place in environments(*pair))
    written_with = Environment.of(environment(), with_torch=False)
    return Provenance(command, measured, ends, made_with, written_with, *_settings(measured))


def _settings(measured: EntryRuns) -> tuple[SettingTexts, dict[str, SettingTexts]]:
    """What all runs have in common, and for each method what not."""
    flat = [
        (planned.method, flatten(planned.config.model_dump(exclude=set(_LEFT_OUT), exclude_none=True)))
        for planned, _ in measured.pairs
    ]
    keys = list(dict.fromkeys(key for _, config in flat for key in config))
    everywhere = {key: {config.get(key) for _, config in flat} for key in keys}
    common = {key: str(found.pop()) for key, found in everywhere.items() if len(found) == 1 and None not in found}
    differing: dict[str, SettingTexts] = {method: {} for method in measured.methods}
    for method, own in differing.items():
        for key in (key for key in keys if key not in common):
            if values := dict.fromkeys(config[key] for name, config in flat if name == method and key in config):
                own[key] = _listed(list(values))
    return common, differing


def environments(planned: RunSpec, run: Run) -> list[Environment]:
    """Where a run was made: several places where it was interrupted and went on elsewhere."""
    before = run.summary.get("resumed_from")
    places = [run.summary, *(before if isinstance(before, list) else ())]
    return list(dict.fromkeys(Environment.of(place, not planned.cheap) for place in places))


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 12 else f"{', '.join(values[:5])}, … {values[-1]}"


@final
@dataclass(frozen=True)
class EntryResult:
    """What came of an entry, and where its files lie."""

    entry: Entry
    table: Table
    panels: Sequence[Panel]
    verdicts: Sequence[tuple[Claim, Verdict]]
    notes: Sequence[str]
    source: Provenance
    folder: Path

    def csv(self) -> str:
        comments = [
            f"{self.entry.title}. {self.entry.paper}.",
            self.source.command,
            self.source.sentence(),
            *self.notes,
            *self.settings(),
            *(f"{claim.text}: {verdict}" for claim, verdict in self.verdicts),
        ]
        return self.table.csv(comments)

    def markdown(self) -> str:
        """A section to be pasted into a document as it is."""
        settings = "\n".join(f"- {line}" for line in self.settings())
        folded = f"<details><summary>Settings</summary>\n\n{settings}\n\n</details>"
        source = f"{self.source.sentence()}\n\n{folded}"
        return self.section(self.entry.title, "figure.png", source)

    def section(self, title: str, figure: str, source: str) -> str:
        """The same under a title, with the figure at another place, and at the end what `source` says of the runs."""
        claims = "\n".join(
            f"| {claim.text} ({claim.where}) | **{verdict.result}** | {verdict.because} |".replace("\n", " ")
            for claim, verdict in self.verdicts
        )
        parts = [
            f"## {title}",
            f"{self.entry.paper}. `{self.source.command}`",
            f"![{title}]({figure})",
            self.table.markdown(),
            *self.notes,
            f"| claim | here | measured |\n|---|---|---|\n{claims}" if claims else "",
            source,
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def settings(self) -> list[str]:
        """A line for what all runs share, and one for each method that differs."""
        of = {"all runs": self.source.common} | self.source.differing
        return [f"{whose}: {_by_section(values)}" for whose, values in of.items() if values]

    def claims(self) -> dict[str, Any]:
        """The verdicts and where they come from, for programs."""
        source = self.source
        return {
            "entry": self.entry.name,
            "paper": self.entry.paper,
            "command": source.command,
            "seeds": source.measured.seeds,
            "made_with": [{"runs": count, **place.to_json()} for place, count in source.made_with.items()],
            "written_with": source.written_with.to_json(),
            "runs": len(source.measured.pairs),
            "wall_s": round(source.wall_s, 3),
            "settings": {"common": source.common, "differing": source.differing},
            "claims": [
                {"where": claim.where, "claim": claim.text, **asdict(verdict)} for claim, verdict in self.verdicts
            ],
        }

    def page(self) -> str:
        """Claims, table, interactive charts, settings and provenance in one HTML file that works offline."""
        source = self.source
        claims = [(_MARKS[it.result], claim.text, it.because, claim.where) for claim, it in self.verdicts]
        sections = [
            f'<p class="lead">{escape(self.entry.paper)}. Made by <code>{escape(source.command)}</code>.</p>',
            "<h2>Claims</h2>",
            table(("", "claim", "measured here", "where"), claims),
            "<h2>Measured</h2>",
            table([heading.title for heading in self.table.headings], self.table.shown(), numbers=True),
            *(note(text) for text in self.notes),
            "<h2>Charts</h2>",
            note("Drag to zoom, double-click to see all; tap a name to hide it."),
            f"<section>{legend(panel_styles(self.panels))}{cards(self.panels)}</section>",
            "<h2>Settings that differ</h2>",
            _differences(source),
            f"<details><summary>Settings that all runs share</summary>{table((), source.common.items())}</details>",
            "<h2>Provenance</h2>",
            f"<p>{escape(source.sentence())}</p>",
        ]
        return page(self.entry.title, sections, self.panels)

    def figure(self) -> dict[str, bytes]:
        """The figure for print, by file name."""
        source = self.source
        footer = f"{source.command} · {source.seeds_each()} · qafel {source.qafel()}"
        figure = drawing.printed.draw(self.panels, self.entry.title, footer)
        description = f"{self.entry.paper}. {source.command}. {source.sentence()}"
        return {f"figure{suffix}": drawing.printed.rendered(figure, suffix, description) for suffix in (".png", ".pdf")}


def _differences(source: Provenance) -> str:
    keys = list(dict.fromkeys(key for own in source.differing.values() for key in own))
    if not keys:
        return "<p>All runs have the same settings, but for their seeds.</p>"
    rows = [[method, *(own.get(key, "–") for key in keys)] for method, own in source.differing.items()]
    return table(("", *keys), rows)


def _by_section(settings: SettingTexts) -> str:
    """As in a recipe, each section's name once: [stop] uploads = 100, at_target = true."""
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {value}")
    return "; ".join(f"[{section}] {', '.join(values)}" for section, values in sections.items())


def write_outputs(entry: Entry, measured: EntryRuns, command: str, folder: Path) -> EntryResult:
    """Write all files of an entry to `folder`; they state `command` as what made them."""
    source, verdicts = provenance(measured, command), [(claim, claim.verdict(measured)) for claim in entry.claims]
    shown = entry.table(measured), entry.panels(measured), verdicts, entry.notes(measured)
    result = EntryResult(entry, *shown, source, folder)
    texts = {
        "table.csv": result.csv(),
        "table.md": result.markdown(),
        "index.html": result.page(),
        "claims.json": json.dumps(result.claims(), indent=2, ensure_ascii=False) + "\n",
    }
    contents = {name: text.encode() for name, text in texts.items()} | result.figure()
    busy = OutputError(f"another process writes results to {folder}: wait for its end, or choose another --out")
    with Lock(folder.with_name(f".{folder.name}.lock"), busy, patience_s=60.0, beside=folder):
        for name, content in contents.items():
            write_atomically(folder / name, content, make_folder=True)
    return result


def write_entries(
    entries: Mapping[str, Entry], plans: Mapping[str, Sequence[RunSpec]], out: Path, request: Request
) -> tuple[list[EntryResult], dict[str, str]]:
    """Write the files of every entry that has runs in `plans`, from the finished runs in `out`/runs.

    Return the results and, by entry, why there are none: runs are missing, or damaged.
    """
    results, unwritten = [], {}
    for name, planned in plans.items():
        try:
            measured = read_back(planned, out / "runs", request)
            folder = beside_a_fuller_one(results_folder(out, name, planned, request), len(measured.pairs))
            results.append(write_outputs(entries[name], measured, request.command(name), folder))
        except DataError as error:
            unwritten[name] = str(error)
    return results, unwritten


def finished_runs(planned: Sequence[RunSpec], runs: Path) -> list[RunSpec]:
    """Those of the `planned` runs that are finished in the folder `runs`."""
    return [run for run in planned if state_of(runs / run.folder, run.config) == "finished"]


def read_back(planned: Sequence[RunSpec], runs: Path, request: Request) -> EntryRuns:
    """Load those of the `planned` runs that are finished in the folder `runs`."""
    if not (finished := finished_runs(planned, runs)):
        raise DataError("none of its runs is finished")
    pairs = tuple((run, whole_run(runs / run.folder)) for run in finished)
    return EntryRuns(pairs, request.quick, request.uploads is not None)


def results_folder(out: Path, name: str, runs: Sequence[RunSpec], request: Request) -> Path:
    """Where the results of the entry `name` lie: those of quick or shorter runs, or of another family, apart."""
    family = request.family
    other = family if family and any(run.config.name.startswith(family) for run in runs) else None
    sooner = f"u{request.uploads}" if request.uploads else None
    return out / "-".join(part for part in (name, other, "quick" if request.quick else None, sooner) if part)


def beside_a_fuller_one(folder: Path, runs: int) -> Path:
    """The folder itself; another one if it holds the results of more than `runs` runs: a part does not replace it."""
    try:
        fuller = int(json.loads(read_regular(folder / "claims.json", _CLAIMS_BYTES))["runs"]) > runs
    except (FileNotFoundError, DataError, ValueError, LookupError, TypeError, RecursionError):
        return folder
    return folder.with_name(f"{folder.name}-part") if fuller else folder
