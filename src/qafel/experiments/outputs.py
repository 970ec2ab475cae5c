"""An entry's results as files: table.csv, table.md, figure.png, figure.pdf, index.html and claims.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from qafel.errors import OutputError
from qafel.experiments.entry import Claim, Entry, Verdict
from qafel.experiments.figures import draw, rendered
from qafel.experiments.measured import Measured, Missing
from qafel.experiments.one_run import state_of
from qafel.experiments.page import render_page
from qafel.experiments.plan import Planned
from qafel.experiments.provenance import Provenance, provenance
from qafel.experiments.tables import Table
from qafel.results.run_directory import write_atomically
from qafel.results.runs import Run


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
                *_settings(source),
                *(f"{claim.text}: {verdict}" for claim, verdict in verdicts),
            )
        ).encode(),
        "table.md": _markdown(entry, table, verdicts, notes, source, folder.name).encode(),
        "figure.png": rendered(figure, "png", description),
        "figure.pdf": rendered(figure, "pdf", description),
        "index.html": render_page(entry, table, panels, verdicts, notes, source).encode(),
        "claims.json": (json.dumps(_claims(entry, verdicts, source), indent=2, ensure_ascii=False) + "\n").encode(),
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
        "<details><summary>Settings</summary>\n\n" + "\n".join(_settings(source, "- ")) + "\n\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def _settings(source: Provenance, bullet: str = "") -> tuple[str, ...]:
    of = {"all runs": source.common} | source.differing
    return tuple(f"{bullet}{whose}: {_by_section(values)}" for whose, values in of.items() if values)


def _by_section(settings: Mapping[str, str]) -> str:
    """As in a recipe, each section's name once: [stop] uploads = 100, at_target = true."""
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {value}")
    return "; ".join(f"[{section}] {', '.join(values)}" for section, values in sections.items())


def _claims(entry: Entry, verdicts: Sequence[tuple[Claim, Verdict]], source: Provenance) -> dict[str, Any]:
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
