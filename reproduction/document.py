"""docs/reproduction.md, a summary, and docs/reproduction-details.md, a section per experiment.

Every figure comes from finished runs. Every section states the command that makes its runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from qafel.errors import DataError
from qafel.search import RunSpec
from qafel.text import counted
from reproduction.entry import Claim, Entry, Request, Verdict
from reproduction.outputs import EntryResult, environments, read_runs, results_folder
from reproduction.store import Store, write_file

EXPERIMENTS: tuple[tuple[str, Request], ...] = (
    ("related-work", Request()),
    ("direct-vs-unquantized", Request()),
    ("rate", Request()),
    ("qafel-vs-direct-qsgd", Request()),
    ("qafel-vs-direct-topk", Request()),
    ("local-steps", Request()),
    ("cifar10", Request()),
    ("celeba", Request()),
    ("shakespeare", Request()),
    ("seeds", Request(uploads=280)),
    ("bits", Request(family="cifar10")),
    ("bits", Request(family="celeba-part")),
    ("methods", Request()),
    ("methods", Request(family="celeba-part")),
    ("methods", Request(seeds=2, family="shakespeare-small")),
    ("targets", Request()),
    ("pareto", Request()),
    ("pareto-cifar10", Request()),
    ("downlink-cifar10", Request()),
    ("downlink-mushrooms", Request()),
)
"""The experiments of the document: entries with options."""

OUTCOMES = ("pass", "by construction", "fail", "undecided", "not comparable", "not run")

_INTRODUCTION = """# The paper, reproduced

This page compares the claims of
[Quantized and Asynchronous Federated Learning](https://arxiv.org/abs/2410.00242) with our runs.
[The details](reproduction-details.md) have every claim, table and figure."""

_METHODS = """FedBuff buffers K updates per server step and quantizes nothing. QAFeL is FedBuff with quantizers in both
directions and the hidden state. *Direct* quantization sends the quantized model itself, without a hidden state.
FedAsync makes a step with every update."""

_VERDICTS = """## How to read the verdicts

| verdict | meaning |
|---|---|
| pass, fail | A 90 % interval over paired seeds decides the claim. |
| by construction | The configuration implies the claim. No run could refute it. |
| undecided | The interval contains the claim's bound. More seeds or longer runs are needed. |
| not comparable | The runs cannot decide the claim: they are missing, or differ from the published ones. |
| not run | No run of this experiment is finished. |

- Each end of an interval is wrong at most once in twenty cases **if the logarithms of the ratios are close to normal**.
  Two to five seeds cannot verify that.
- **No correction covers all claims together.** With {passes} passes at 5 % each, some may be wrong by chance.
- "Similar" means: the whole interval lies within a factor of 1.25. A similar method can still need more uploads. Where
  the interval lies above 1, the verdict states by how much.

[Method](reproduction-method.md) explains the statistics."""

_REPEAT = """## Repeat it

<!-- run by tests/reproduction/test_command.py -->
```sh
python -m reproduction list                                              # all entries
python -m reproduction qafel-vs-direct-qsgd                              # one entry, one minute
python -m reproduction cifar10 --results reproduction/results --finished # from stored runs
```

`python -m reproduction document --results reproduction/results` writes both pages. It needs the 330 runs of
`python -m reproduction rate`, which are not stored and take some minutes."""

_DETAILS = """# The paper, reproduced: details

[The summary](reproduction.md) explains the verdicts. Each section here has one experiment: its command, figure, table,
claims and settings.

- Numbers in brackets are 90 % intervals over paired seeds; ± is the standard deviation over seeds.
- "Detectable factor: F" states the power: a bound that lies a factor of F away from the truth is decided in four of
  five cases.
- A final value is the mean over the last tenth of a run's evaluations, at least three.
- Run time is an upper bound: the machine did other work as well.
- Concurrency is the number of clients that train at the same time.
- The [quantizers](quantizers.md) are named with their bits per coordinate."""

_LIMITS = """## What these runs do not cover

- **CelebA and Shakespeare as published.** The whole of CelebA is not available here. A published run on Shakespeare,
  with 50,000 uploads, takes days of a core. `seeds` has the first 280 uploads.
- **Parts of the data instead.** `methods` and `bits` use 895 of CelebA's 9,343 people, a tenth of them for the test.
  They use 200 of Shakespeare's 1,129 characters with at most 128 samples each.
- **Other targets on these parts.** The published accuracy is out of reach there. The target is the accuracy that
  FedBuff reached with a separate seed, minus one point (`targets`). It was set before the other runs.
- **Table III.** On the part of CelebA, `bits` has three of the nine pairs.
- **Theory.** No experiment tests the corollary's cross term of staleness and quantization (of order 1/T), its
  heterogeneity term (T^(-2/3)), or the remark that the best compression ratio depends on the quantizer."""


@final
@dataclass(frozen=True)
class Experiment:
    """An entry of the document: its runs, and its result if any run is finished."""

    entry: Entry
    title: str
    command: str
    name: str
    """The name of its folder, its figure and its anchor."""
    planned: Sequence[RunSpec]
    result: EntryResult | None

    @property
    def missing(self) -> int:
        """The number of runs that are not finished."""
        return len(self.planned) - (len(self.result.source.measured.pairs) if self.result is not None else 0)

    def verdicts(self) -> list[tuple[Claim, Verdict | None]]:
        """Each claim with its verdict; None if no run is finished."""
        found = dict(self.result.verdicts) if self.result is not None else {}
        return [(claim, found.get(claim)) for claim in self.entry.claims]

    def counts(self) -> Counter[str]:
        return Counter(_outcome(verdict) for _, verdict in self.verdicts())

    def to_json(self) -> dict[str, Any]:
        verdicts = [
            {"claim": claim.text, "where": claim.where, "verdict": _outcome(verdict)}
            for claim, verdict in self.verdicts()
        ]
        counts = {"runs": len(self.planned), "missing": self.missing}
        return {"name": self.name, "command": self.command, **counts, "verdicts": verdicts}

    def section(self) -> str:
        """Its section of the details, with an anchor."""
        anchor = f'<a id="{self.name}"></a>\n\n'
        if self.result is None:
            head = f"## {self.title}\n\n{self.entry.paper}. `{self.command}`"
            return f"{anchor}{head}\n\nNot run: none of its {len(self.planned)} runs is finished.\n"
        return anchor + self.result.markdown(self.title, f"images/paper/{self.name}.png", self.result.source.extent())


def _outcome(verdict: Verdict | None) -> str:
    return "not run" if verdict is None else verdict.result


def all_runs(entries: Mapping[str, Entry]) -> list[RunSpec]:
    """Every run of the document."""
    return [run for name, request in EXPERIMENTS for run in request.all_runs({name: entries[name]})]


def write_document(entries: Mapping[str, Entry], out: Path, store: Store, file: Path) -> list[Experiment]:
    """Write the summary to `file`, the details and the figures beside it, from finished runs.

    DataError if a run is damaged or no run is finished. In that case nothing is written.
    """
    found = [_experiment(entries[name], request, out, store) for name, request in EXPERIMENTS]
    results = [one.result for one in found if one.result is not None]
    if not results:
        raise DataError(f"No run is finished in {store.runs}: nothing is written.")
    for one in found:
        if one.result is not None:
            one.result.write()
            picture = (one.result.folder / "figure.png").read_bytes()
            write_file(file.parent / "images/paper" / f"{one.name}.png", picture)
    details = file.with_name(f"{file.stem}-details.md")
    write_file(details, _joined(_DETAILS, _made_with(results), *(one.section().strip() for one in found)))
    passes = sum(one.counts()["pass"] for one in found)
    parts = _INTRODUCTION, _key_claims(found, details.name), _METHODS, _table(found, details.name)
    write_file(file, _joined(*parts, _VERDICTS.format(passes=passes), _missing(found), _LIMITS, _REPEAT))
    return found


def _joined(*parts: str) -> bytes:
    return ("\n\n".join(part for part in parts if part) + "\n").encode()


def _experiment(entry: Entry, request: Request, out: Path, store: Store) -> Experiment:
    planned, command = request.all_runs({entry.name: entry}), request.command(entry.name)
    folder, result = results_folder(out, entry.name, planned, request), None
    if store.finished(planned):
        result = EntryResult.of(entry, read_runs(planned, store, request), command, folder)
    title = f"{entry.title} ({request.family})" if request.family else entry.title
    return Experiment(entry, title, command, folder.name, planned, result)


def _key_claims(found: Sequence[Experiment], details: str) -> str:
    """A row for each key claim, with the verdict of every experiment about it."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in found:
        for claim, verdict in one.verdicts():
            if claim.key:
                link = f"[{one.name}]({details}#{one.name}): **{_outcome(verdict)}**"
                brief = f", {verdict.brief}" if verdict is not None and verdict.brief else ""
                rows.setdefault((claim.text, claim.where), []).append(link + brief)
    listed = "\n".join(f"| {text} | {where} | {'<br>'.join(here)} |" for (text, where), here in rows.items())
    return f"| main claim | in the paper | here |\n|---|---|---|\n{listed}"


def _table(found: Sequence[Experiment], details: str) -> str:
    """A row for each experiment, with the number of claims per verdict."""
    total = sum((one.counts() for one in found), Counter[str]())
    lines = [("experiment", "in the paper", *OUTCOMES), ("---", "---", *("--:" for _ in OUTCOMES))]
    for one in found:
        counts = one.counts()
        cells = (str(counts[outcome] or "") for outcome in OUTCOMES)
        lines.append((f"[{one.title}]({details}#{one.name})", one.entry.paper, *cells))
    lines.append(("all", "", *(str(total[outcome]) for outcome in OUTCOMES)))
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"## All experiments\n\nThe number of claims per verdict:\n\n{table}"


def _made_with(results: Sequence[EntryResult]) -> str:
    """Versions and machines of all runs, each run once."""
    runs = {planned.folder: (planned, run) for it in results for planned, run in it.source.measured.pairs}
    places = Counter(place for pair in runs.values() for place in environments(*pair))
    listed = "\n".join(f"| {count} | {place} |" for place, count in places.most_common())
    return f"{counted(len(runs), 'run')} made these results:\n\n| runs | made with |\n|--:|---|\n{listed}"


def _missing(found: Sequence[Experiment]) -> str:
    gaps = [f"- `{one.command}`: {one.missing} of {len(one.planned)} runs" for one in found if one.missing]
    return "## Missing runs\n\n" + ("\n".join(gaps) if gaps else "None.")
