"""An entry's results as files: table.csv, table.md, figure.png, figure.pdf, index.html and claims.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self, final

from plotly.offline import get_plotlyjs

from qafel.drawing.chart import Panel
from qafel.drawing.charts import charts_of, styles_of
from qafel.drawing.figures import draw, rendered
from qafel.drawing.page import cards, chart_data, legend, page, scrolling
from qafel.errors import OutputError
from qafel.files import write_atomically
from qafel.paper.entry import Claim, Entry, Verdict
from qafel.paper.measured import Measured, Missing
from qafel.paper.tables import Table
from qafel.report.tables import flatten
from qafel.runs.reading import Run
from qafel.simulator.summary import environment
from qafel.sweeps.run import Planned, state_of
from qafel.text import human_seconds
from qafel.version import __version__

# Where results come from: command, seeds, settings, versions, machines and time, as the runs recorded them.


_APART = ("name", "description", "seed")


_TORCH = "torch"


@final
@dataclass(frozen=True, slots=True)
class Environment:
    """Versions and machine of a process."""

    versions: tuple[tuple[str, str], ...]
    hardware: str | None
    """None for runs of before it was recorded: of these only qafel's version is known."""

    @classmethod
    def of(cls, summary: Mapping[str, Any], with_torch: bool) -> Self:
        """What a summary says of it. PyTorch may be loaded where it has no part."""
        found, machine = summary.get("versions"), summary.get("hardware")
        versions = {"qafel": summary.get("qafel_version", "unknown")} | (found if isinstance(found, dict) else {})
        listed = tuple((name, str(value)) for name, value in versions.items() if with_torch or name != _TORCH)
        return cls(listed, _machine(machine) if isinstance(machine, dict) else None)

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
    seeds: tuple[int, ...]
    each: tuple[int, int]
    """The fewest and the most seeds of a method at a place in the sweep."""
    made_with: dict[Environment, int]
    """How many runs each made, or made a part of."""
    written_with: Environment
    runs: int
    wall_s: float
    """Of all runs together, as each recorded its own."""
    common: dict[str, str]
    """Settings that all runs share."""
    differing: dict[str, dict[str, str]]
    """Settings that differ, by method; several values are listed."""

    def sentence(self) -> str:
        fewest, most = self.each
        each = f" ({fewest} to {most} for each point)" if fewest != most else ""
        several = len(self.made_with) > 1
        made = "; ".join(f"{f'{count} ' if several else ''}with {place}" for place, count in self.made_with.items())
        parts = [
            f"{self.runs} runs, seeds {_listed([str(seed) for seed in self.seeds])}{each}; "
            f"{human_seconds(self.wall_s)} of run time in all; made {made}.",
            "" if self._is_written_where_made() else f"Results written with {self.written_with}.",
            self.of_other_versions(),
        ]
        return " ".join(part for part in parts if part)

    def of_other_versions(self) -> str:
        """A word of warning where runs were made by another version than the present one."""
        others = {place.qafel: 0 for place in self.made_with if place.qafel != __version__}
        for place, count in self.made_with.items():
            if place.qafel in others:
                others[place.qafel] += count
        found = ", ".join(f"{count} by qafel {version}" for version, count in others.items())
        return f"Not made by the present qafel {__version__}: {found}; another --out makes them anew." if found else ""

    def seeds_each(self) -> str:
        """How many seeds a figure's points and curves stand for."""
        fewest, most = self.each
        if most == 1:
            return "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds, one a curve"
        return f"{most if fewest == most else f'{fewest} to {most}'} seeds: mean and range"

    def qafel(self) -> str:
        """The versions of qafel that made the runs."""
        return " and ".join(dict.fromkeys(place.qafel for place in self.made_with))

    def _is_written_where_made(self) -> bool:
        """Torch aside, which writing does not need."""
        made = {Environment(tuple(v for v in e.versions if v[0] != _TORCH), e.hardware) for e in self.made_with}
        return made == {self.written_with}


def provenance(measured: Measured, command: str) -> Provenance:
    """All that is known of how the runs came to be."""
    common, differing = settings(measured)
    each = Counter((planned.method, *sorted(planned.at.items())) for planned, _ in measured.pairs)
    return Provenance(
        command,
        tuple(measured.seeds),
        (min(each.values()), max(each.values())),
        dict(Counter(place for pair in measured.pairs for place in _environments(*pair))),
        Environment.of(environment(), with_torch=False),
        len(measured.pairs),
        sum(run.number("wall_s") for _, run in measured.pairs),
        common,
        differing,
    )


def settings(measured: Measured) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What all runs have in common, and for each method what not."""
    flat = [
        (planned.method, flatten(planned.config.model_dump(exclude=set(_APART), exclude_none=True)))
        for planned, _ in measured.pairs
    ]
    keys = list(dict.fromkeys(key for _, config in flat for key in config))
    everywhere = {key: {config.get(key) for _, config in flat} for key in keys}
    common = {key: str(found.pop()) for key, found in everywhere.items() if len(found) == 1 and None not in found}
    differing = {
        method: {
            key: _listed(list(values))
            for key in keys
            if key not in common and (values := _values(key, [config for name, config in flat if name == method]))
        }
        for method in measured.methods
    }
    return common, differing


def _environments(planned: Planned, run: Run) -> list[Environment]:
    """Where a run was made: several places where it was interrupted and went on elsewhere."""
    before = run.summary.get("resumed_from")
    places = [run.summary, *(before if isinstance(before, list) else ())]
    return list(dict.fromkeys(Environment.of(place, not planned.cheap) for place in places))


def _machine(hardware: Mapping[str, Any]) -> str:
    """Cores and kind of processor."""
    cores = hardware.get("cores")
    return f"{cores} {'core' if cores == 1 else 'cores'}, {hardware.get('processor')}"


def _values(key: str, configs: Sequence[dict[str, str]]) -> dict[str, None]:
    return dict.fromkeys(config[key] for config in configs if key in config)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 12 else f"{', '.join(values[:5])}, … {values[-1]}"


# An entry's page: claims, table, interactive charts, settings and provenance in one file that works offline.


_MARKS = {"pass": "✓ pass", "fail": "✗ fail", "not comparable": "– not comparable"}


def render_page(
    entry: Entry,
    table: Table,
    panels: Sequence[Panel],
    verdicts: Sequence[tuple[Claim, Verdict]],
    notes: Sequence[str],
    source: Provenance,
) -> str:
    """The page's HTML."""
    charts = charts_of(panels)
    sections = [
        f'<p class="lead">{escape(entry.paper)}. Made by <code>{escape(source.command)}</code>.</p>',
        "<h2>Published claims</h2>",
        _claims(verdicts),
        "<h2>Measured</h2>",
        table.html(),
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        '<h2>Charts</h2><p class="note">Drag to zoom, double-click to see all; tap a name to hide it.</p>',
        f"<section>{legend(styles_of(panels))}{cards(charts)}</section>",
        "<h2>Settings that differ</h2>",
        _differences(source),
        f"<details><summary>Settings that all runs share</summary>{_settings(source.common)}</details>",
        "<h2>Provenance</h2>",
        f"<p>{escape(source.sentence())}</p>",
        f"<footer>Written by qafel {escape(__version__)}.</footer>",
    ]
    return page(escape(f"{entry.title}"), "\n".join(sections), chart_data(charts), get_plotlyjs())


def _claims(verdicts: Sequence[tuple[Claim, Verdict]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_MARKS[verdict.result]}</th><td class="text">{escape(claim.text)}</td>'
        f'<td class="text">{escape(verdict.because)}</td><td class="text">{escape(claim.where)}</td></tr>'
        for claim, verdict in verdicts
    )
    head = "<thead><tr><th></th><th>claim</th><th>measured here</th><th>where</th></tr></thead>"
    return scrolling(f"<table>{head}<tbody>{rows}</tbody></table>")


def _differences(source: Provenance) -> str:
    keys = list(dict.fromkeys(key for own in source.differing.values() for key in own))
    if not keys:
        return "<p>All runs have the same settings, but for their seeds.</p>"
    head = "".join(f'<th scope="col">{escape(key)}</th>' for key in keys)
    rows = "".join(
        f'<tr><th scope="row">{escape(method)}</th>'
        + "".join(f'<td class="text">{escape(own.get(key, "–"))}</td>' for key in keys)
        + "</tr>"
        for method, own in source.differing.items()
    )
    return scrolling(f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>")


def _settings(common: dict[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td class="text">{escape(value)}</td></tr>'
        for key, value in common.items()
    )
    return scrolling(f"<table><tbody>{rows}</tbody></table>")


@final
@dataclass(frozen=True)
class Outcome:
    """An entry's table and verdicts, and where its files lie."""

    entry: Entry
    table: Table
    verdicts: tuple[tuple[Claim, Verdict], ...]
    source: Provenance
    folder: Path


def read_back(planned: Sequence[Planned], runs: Path, quick: bool) -> Measured:
    """Load the finished runs; those that failed are left out."""
    finished = [run for run in planned if state_of(run.config, runs / run.folder) == "finished"]
    if not finished:
        raise Missing("none of its runs was made")
    return Measured(tuple((run, Run.load(runs / run.folder)) for run in finished), quick)


def results_folder(out: Path, name: str, runs: Sequence[Planned], quick: bool, family: str | None) -> Path:
    """Where an entry's results lie: quick ones and those of another family apart from the entry's own."""
    other = family if family and any(run.config.name.startswith(family) for run in runs) else None
    return out / "-".join(part for part in (name, other, "quick" if quick else None) if part)


def beside_a_fuller_one(folder: Path, runs: int) -> Path:
    """The folder itself, or where it holds the results of more runs another one: a part does not replace the whole."""
    try:
        before = json.loads((folder / "claims.json").read_bytes())["runs"]
        fuller = int(before) > runs
    except (OSError, ValueError, LookupError, TypeError):
        return folder
    return folder.with_name(f"{folder.name}-part") if fuller else folder


def write_outputs(entry: Entry, measured: Measured, command: str, folder: Path) -> Outcome:
    """Write all files of an entry."""
    table, panels = entry.table(measured), tuple(entry.panels(measured))
    verdicts = tuple((claim, claim.verdict(measured)) for claim in entry.claims)
    notes, source = tuple(entry.notes(measured)), provenance(measured, command)
    figure = draw(panels, entry.title, f"{command} · {source.seeds_each()} · qafel {source.qafel()}")
    description = f"{entry.paper}. {command}. {source.sentence()}"
    contents = {
        "table.csv": table.csv(
            (
                f"{entry.title}. {entry.paper}.",
                command,
                source.sentence(),
                *notes,
                *_settings_of_outputs(source),
                *(f"{claim.text}: {verdict}" for claim, verdict in verdicts),
            )
        ).encode(),
        "table.md": _markdown(entry, table, verdicts, notes, source, folder.name).encode(),
        "figure.png": rendered(figure, "png", description),
        "figure.pdf": rendered(figure, "pdf", description),
        "index.html": render_page(entry, table, panels, verdicts, notes, source).encode(),
        "claims.json": (
            json.dumps(_claims_of_outputs(entry, verdicts, source), indent=2, ensure_ascii=False) + "\n"
        ).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return Outcome(entry, table, verdicts, source, folder)


def _markdown(
    entry: Entry,
    table: Table,
    verdicts: Sequence[tuple[Claim, Verdict]],
    notes: Sequence[str],
    source: Provenance,
    folder: str,
) -> str:
    """A section to be pasted into a document as it is."""
    claims = "\n".join(
        f"| {claim.text} ({claim.where}) | **{verdict.result}** | {verdict.because} |".replace("\n", " ")
        for claim, verdict in verdicts
    )
    parts = [
        f"## {entry.title}",
        f"{entry.paper}. `{source.command}`",
        f"![{entry.title}]({folder}/figure.png)",
        table.markdown(),
        *notes,
        f"| published claim | here | measured |\n|---|---|---|\n{claims}",
        f"{source.sentence()}",
        "<details><summary>Settings</summary>\n\n" + "\n".join(_settings_of_outputs(source, "- ")) + "\n\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def _settings_of_outputs(source: Provenance, bullet: str = "") -> tuple[str, ...]:
    of = {"all runs": source.common} | source.differing
    return tuple(f"{bullet}{whose}: {_by_section(values)}" for whose, values in of.items() if values)


def _by_section(settings: Mapping[str, str]) -> str:
    """As in a recipe, each section's name once: [stop] uploads = 100, at_target = true."""
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {value}")
    return "; ".join(f"[{section}] {', '.join(values)}" for section, values in sections.items())


def _claims_of_outputs(entry: Entry, verdicts: Sequence[tuple[Claim, Verdict]], source: Provenance) -> dict[str, Any]:
    return {
        "entry": entry.name,
        "paper": entry.paper,
        "command": source.command,
        "seeds": list(source.seeds),
        "made_with": [{"runs": count, **place.to_json()} for place, count in source.made_with.items()],
        "written_with": source.written_with.to_json(),
        "runs": source.runs,
        "wall_s": round(source.wall_s, 3),
        "settings": {"common": source.common, "differing": source.differing},
        "claims": [
            {"where": claim.where, "claim": claim.text, "result": verdict.result, "because": verdict.because}
            for claim, verdict in verdicts
        ],
    }
