"""The files of an entry: table.csv, table.md, figure.png, figure.pdf, index.html and claims.json.

Each file states the provenance of its runs: command, seeds, settings, versions, machines and time, as recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, final

from qafel import __version__
from qafel.drawing.chart import Panel, panel_styles
from qafel.drawing.page import cards, legend, note, page, table
from qafel.drawing.printed import draw, rendered
from qafel.errors import DataError
from qafel.runs import Run
from qafel.search import RunSpec
from qafel.text import counted, human_seconds
from reproduction.comparison import EntryRuns
from reproduction.display import Table
from reproduction.entry import Claim, Entry, Request, Verdict
from reproduction.store import Store, write_file

SettingTexts: TypeAlias = dict[str, str]
"""Settings as text, by their paths."""

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
    """Versions and machine of a process; `hardware` is None if the run did not record it."""

    versions: tuple[tuple[str, str], ...]
    hardware: str | None

    @staticmethod
    def of(summary: Mapping[str, Any], with_torch: bool) -> Environment:
        """The environment that a summary states. A task without a network may have loaded PyTorch: leave it out."""
        found, machine = summary.get("versions"), summary.get("hardware")
        versions = {"qafel": summary.get("qafel_version", "unknown")} | (found if isinstance(found, dict) else {})
        listed = tuple((name, str(value)) for name, value in versions.items() if with_torch or name != "torch")
        if not isinstance(machine, dict):
            return Environment(listed, None)
        return Environment(listed, f"{counted(machine['cores'], 'core')}, {machine['processor']}")

    @property
    def qafel(self) -> str:
        return dict(self.versions)["qafel"]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions)
        return f"{versions} {f'on {self.hardware}' if self.hardware else '(machine and other versions not recorded)'}"

    def to_json(self) -> dict[str, Any]:
        return {"versions": dict(self.versions), "hardware": self.hardware}


def environments(planned: RunSpec, run: Run) -> list[Environment]:
    """The environments that made a run: several if it was interrupted and resumed elsewhere."""
    before = run.summary.get("resumed_from")
    places = [run.summary, *(before if isinstance(before, list) else ())]
    return list(dict.fromkeys(Environment.of(place, not planned.cheap) for place in places))


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """The command that makes an entry's runs, the runs, and what they recorded of themselves."""

    command: str
    measured: EntryRuns

    @property
    def made_with(self) -> Counter[Environment]:
        """Runs per environment."""
        return Counter(place for pair in self.measured.pairs for place in environments(*pair))

    @property
    def seeds_per_point(self) -> tuple[int, int]:
        """The fewest and the most seeds of a method at a place in the sweep."""
        each = Counter((planned.method, *sorted(planned.at.items())) for planned, _ in self.measured.pairs)
        return min(each.values()), max(each.values())

    @property
    def wall_s(self) -> float:
        """The time of all runs together."""
        return sum(run.number("wall_s") for run in self.measured.runs())

    def extent(self) -> str:
        """Number of runs, seeds and time."""
        fewest, most = self.seeds_per_point
        each = f" ({fewest} to {most} per point)" if fewest != most else ""
        seeds = _listed([str(seed) for seed in self.measured.seeds])
        return (
            f"{counted(len(self.measured.pairs), 'run')}, seeds {seeds}{each}; run time {human_seconds(self.wall_s)}."
        )

    def sentence(self) -> str:
        """The extent, versions and machines."""
        found = self.made_with
        made = "; ".join(f"{f'{count} ' if len(found) > 1 else ''}with {place}" for place, count in found.items())
        return " ".join(part for part in (self.extent(), f"Made {made}.", self.of_other_versions()) if part)

    def of_other_versions(self) -> str:
        """A warning if another version than the present one made some runs."""
        others: Counter[str] = Counter()
        for place, count in self.made_with.items():
            if place.qafel != __version__:
                others[place.qafel] += count
        if not others:
            return ""
        found = ", ".join(f"{count} by qafel {version}" for version, count in others.items())
        return f"Runs of another version than {__version__}: {found}. To repeat them, use a new --out and no --results."

    def seeds_in_figure(self) -> str:
        """The seeds behind a point or a curve of the figure."""
        fewest, most = self.seeds_per_point
        if most == 1:
            seeds = len(self.measured.seeds)
            return "1 seed" if seeds == 1 else f"{seeds} seeds, one per curve"
        return f"{most if fewest == most else f'{fewest} to {most}'} seeds: mean and range"

    def qafel_versions(self) -> str:
        return " and ".join(dict.fromkeys(place.qafel for place in self.made_with))

    def settings(self) -> tuple[SettingTexts, dict[str, SettingTexts]]:
        """The settings that all runs share, and by method those that differ."""
        flat = [
            (planned.method, dict(_flat(planned.config.model_dump(exclude=_LABELS, exclude_none=True))))
            for planned, _ in self.measured.pairs
        ]
        keys = list(dict.fromkeys(key for _, config in flat for key in config))
        everywhere = {key: {config.get(key) for _, config in flat} for key in keys}
        common = {key: str(found.pop()) for key, found in everywhere.items() if len(found) == 1 and None not in found}
        differing: dict[str, SettingTexts] = {method: {} for method in self.measured.methods}
        for method, settings in differing.items():
            for key in (key for key in keys if key not in common):
                if values := dict.fromkeys(config[key] for name, config in flat if name == method and key in config):
                    settings[key] = _listed(list(values))
        return common, differing


_LABELS = {"name", "description", "seed"}


def _flat(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Each value of nested sections as text, with its path."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 12 else f"{', '.join(values[:5])}, … {values[-1]}"


@final
@dataclass(frozen=True)
class EntryResult:
    """An entry's table, figure and verdicts, and the folder of its files."""

    entry: Entry
    table: Table
    panels: Sequence[Panel]
    verdicts: Sequence[tuple[Claim, Verdict]]
    notes: Sequence[str]
    source: Provenance
    folder: Path

    @staticmethod
    def of(entry: Entry, measured: EntryRuns, command: str, folder: Path) -> EntryResult:
        """The result of an entry's runs."""
        verdicts = [(claim, claim.verdict(measured)) for claim in entry.claims]
        shown = entry.table(measured), entry.panels(measured), verdicts, entry.notes(measured)
        return EntryResult(entry, *shown, Provenance(command, measured), folder)

    def write(self) -> None:
        """Write all files."""
        texts = {
            "table.csv": self.csv(),
            "table.md": self.markdown(self.entry.title, "figure.png", self.source.sentence()),
            "index.html": self.page(),
            "claims.json": json.dumps(self.claims(), indent=2, ensure_ascii=False) + "\n",
        }
        for name, content in {**{name: text.encode() for name, text in texts.items()}, **self.figure()}.items():
            write_file(self.folder / name, content)

    def csv(self) -> str:
        comments = [
            f"{self.entry.title}. {self.entry.paper}.",
            self.source.command,
            self.source.sentence(),
            *self.notes,
            *self._settings(),
            *(f"{claim.text}: {verdict}" for claim, verdict in self.verdicts),
        ]
        return self.table.csv(comments)

    def markdown(self, title: str, figure: str, source: str) -> str:
        """A section of a document, with the figure at this path; `source` describes the runs."""
        claims = "\n".join(
            f"| {claim.text} ({claim.where}) | **{verdict.result}** | {verdict.because} |".replace("\n", " ")
            for claim, verdict in self.verdicts
        )
        settings = "\n".join(self._settings())
        parts = [
            f"## {title}",
            f"{self.entry.paper}. `{self.source.command}`",
            f"![{title}]({figure})",
            self.table.markdown(),
            *self.notes,
            f"| claim | verdict | measured |\n|---|---|---|\n{claims}" if claims else "",
            source,
            f'<details markdown="1"><summary>Settings</summary>\n\n```text\n{settings}\n```\n\n</details>',
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _settings(self) -> list[str]:
        """The settings that all runs share, and those of each method that differ: a line per section."""
        common, differing = self.source.settings()
        of = {"all runs": common} | differing
        return [line for whose, values in of.items() if values for line in (f"{whose}:", *_by_section(values))]

    def claims(self) -> dict[str, Any]:
        """The verdicts and their provenance as JSON."""
        source, (common, differing) = self.source, self.source.settings()
        return {
            "entry": self.entry.name,
            "paper": self.entry.paper,
            "command": source.command,
            "seeds": source.measured.seeds,
            "made_with": [{"runs": count, **place.to_json()} for place, count in source.made_with.items()],
            "runs": len(source.measured.pairs),
            "wall_s": round(source.wall_s, 3),
            "settings": {"common": common, "differing": differing},
            "claims": [
                {"where": claim.where, "claim": claim.text, **asdict(verdict)} for claim, verdict in self.verdicts
            ],
        }

    def page(self) -> str:
        """One HTML file that works offline: claims, table, interactive charts, settings and provenance."""
        common, differing = self.source.settings()
        claims = [(_MARKS[it.result], claim.text, it.because, claim.where) for claim, it in self.verdicts]
        command = escape(self.source.command)
        sections = [
            f'<p class="lead">{escape(self.entry.paper)}. Made by <code>{command}</code>.</p>',
            "<h2>Claims</h2>",
            table(("", "claim", "measured here", "where"), claims),
            "<h2>Measured</h2>",
            table([heading.title for heading in self.table.headings], self.table.texts(), numbers=True),
            *(note(text) for text in self.notes),
            "<h2>Charts</h2>",
            note("Drag to zoom, double-click to see all; tap a name to hide it."),
            f"<section>{legend(panel_styles(self.panels))}{cards(self.panels)}</section>",
            "<h2>Settings that differ</h2>",
            _differences(differing),
            f"<details><summary>Settings that all runs share</summary>{table((), common.items())}</details>",
            "<h2>Provenance</h2>",
            f"<p>{escape(self.source.sentence())}</p>",
        ]
        return page(self.entry.title, sections, self.panels)

    def figure(self) -> dict[str, bytes]:
        """The figure for print, by file name."""
        source = self.source
        footer = f"{source.command} · {source.seeds_in_figure()} · qafel {source.qafel_versions()}"
        drawn = draw(self.panels, self.entry.title, footer)
        description = f"{self.entry.paper}. {source.command}. {source.sentence()}"
        return {f"figure{suffix}": rendered(drawn, suffix, description) for suffix in (".png", ".pdf")}


def _differences(differing: Mapping[str, SettingTexts]) -> str:
    keys = list(dict.fromkeys(key for settings in differing.values() for key in settings))
    if not keys:
        return "<p>All runs have the same settings, except for their seeds.</p>"
    rows = [[method, *(settings.get(key, "–") for key in keys)] for method, settings in differing.items()]
    return table(("", *keys), rows)


def _by_section(settings: SettingTexts) -> list[str]:
    """A line per section: [stop] uploads = 100, at_target = true."""
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {value}")
    return [f"  [{section}] {', '.join(values)}" for section, values in sections.items()]


def write_entries(
    entries: Mapping[str, Entry], plans: Mapping[str, Sequence[RunSpec]], out: Path, store: Store, request: Request
) -> tuple[list[EntryResult], dict[str, str]]:
    """Write the files of every entry in `plans`, from its finished runs.

    Return the results and, by entry, the reason for a missing result: no run is finished, or one is damaged.
    """
    results, unwritten = [], {}
    for name, planned in plans.items():
        try:
            measured = read_runs(planned, store, request)
            folder = beside_larger(results_folder(out, name, planned, request), len(measured.pairs))
            results.append(EntryResult.of(entries[name], measured, request.command(name), folder))
            results[-1].write()
        except DataError as error:
            unwritten[name] = str(error)
    return results, unwritten


def read_runs(planned: Sequence[RunSpec], store: Store, request: Request) -> EntryRuns:
    """Load those of the `planned` runs that are finished."""
    if not (pairs := tuple(store.load(planned))):
        raise DataError("No run is finished.")
    return EntryRuns(pairs, request.quick, request.uploads is not None)


def results_folder(out: Path, name: str, runs: Sequence[RunSpec], request: Request) -> Path:
    """The folder of an entry's results. Quick runs, shorter runs and other families have their own."""
    family = request.family
    other = family if family and any(run.config.name.startswith(family) for run in runs) else None
    shorter = f"u{request.uploads}" if request.uploads else None
    return out / "-".join(part for part in (name, other, "quick" if request.quick else None, shorter) if part)


def beside_larger(folder: Path, runs: int) -> Path:
    """The folder itself; `folder`-part if it holds the results of more than `runs` runs, so that these stay."""
    try:
        larger = int(json.loads((folder / "claims.json").read_bytes())["runs"]) > runs
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return folder
    return folder.with_name(f"{folder.name}-part") if larger else folder
