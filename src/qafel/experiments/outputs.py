"""An entry's results as files: table.csv, table.md, figure.png, figure.pdf, index.html and claims.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    folder: Path


def read_back(planned: Sequence[Planned], runs: Path, quick: bool) -> Measured:
    """Load the finished runs; those that failed are left out."""
    finished = [run for run in planned if state_of(run.config, runs / run.folder) == "finished"]
    if not finished:
        raise Missing("none of its runs was made")
    return Measured(tuple((run, Run.load(runs / run.folder)) for run in finished), quick)


def write_outputs(entry: Entry, measured: Measured, command: str, folder: Path) -> Outcome:
    """Write all files of an entry."""
    table, panels = entry.table(measured), tuple(entry.panels(measured))
    verdicts = tuple((claim, claim.verdict(measured)) for claim in entry.claims)
    notes, source = tuple(entry.notes(measured)), provenance(measured, command)
    figure = draw(panels, entry.title, f"{command} · {_seeds(source)} · qafel {source.versions['qafel']}")
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
        "table.md": _markdown(entry, table, verdicts, notes, source).encode(),
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
    return Outcome(entry, table, verdicts, folder)


def _markdown(
    entry: Entry,
    table: Table,
    verdicts: Sequence[tuple[Claim, Verdict]],
    notes: Sequence[str],
    source: Provenance,
) -> str:
    """A section to be pasted into a document as it is."""
    claims = "\n".join(
        f"| {claim.text} ({claim.where}) | **{verdict.result}** | {verdict.because} |".replace("\n", " ")
        for claim, verdict in verdicts
    )
    parts = [
        f"## {entry.title}",
        f"{entry.paper}. `{source.command}`",
        f"![{entry.title}]({entry.name}/figure.png)",
        table.markdown(),
        *notes,
        f"| published claim | here | measured |\n|---|---|---|\n{claims}",
        f"{source.sentence()}",
        "<details><summary>Settings</summary>\n\n" + "\n".join(_settings(source, "- ")) + "\n\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def _settings(source: Provenance, bullet: str = "") -> tuple[str, ...]:
    common = ", ".join(f"{key} = {value}" for key, value in source.common.items())
    differing = (
        f"{method}: {', '.join(f'{key} = {value}' for key, value in own.items())}"
        for method, own in source.differing.items()
        if own
    )
    return tuple(bullet + line for line in (f"all runs: {common}", *differing))


def _claims(entry: Entry, verdicts: Sequence[tuple[Claim, Verdict]], source: Provenance) -> dict[str, Any]:
    return {
        "entry": entry.name,
        "paper": entry.paper,
        "command": source.command,
        "seeds": list(source.seeds),
        "versions": source.versions,
        "hardware": source.hardware,
        "runs": source.runs,
        "wall_s": round(source.wall_s, 3),
        "settings": {"common": source.common, "differing": source.differing},
        "claims": [
            {"where": claim.where, "claim": claim.text, "result": verdict.result, "because": verdict.because}
            for claim, verdict in verdicts
        ],
    }


def _seeds(source: Provenance) -> str:
    return "1 seed" if len(source.seeds) == 1 else f"{len(source.seeds)} seeds: mean and range"
