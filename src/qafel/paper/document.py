"""docs/reproduction.md: all claims with their verdicts first, what is missing above them, then a section per figure.

Nothing in it is written by hand but for what explains it: every figure comes from finished runs, and every section
states the command that makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from qafel.errors import DataError
from qafel.files import write_atomically
from qafel.paper.entry import Claim, Entry, Request
from qafel.paper.outputs import EntryResult, environments, finished_runs, read_back, results_folder, write_outputs
from qafel.search.runner import RunSpec

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
)
"""What the document is about: entries, and how much of each is run."""

_INTRODUCTION = """# The paper, reproduced

The results of [Quantized and Asynchronous Federated Learning](https://arxiv.org/abs/2410.00242), claim by claim. Every
figure and table that shows results is one command; `qafel paper list` shows them. This document is made from finished
runs alone, those in paper/runs and those that are kept in [results/](../results), by

<!-- not run by the tests: it writes over this file -->
```sh
qafel paper rate                              # its 330 runs are not kept; some minutes
qafel paper document --results results
```

and the command of each section repeats its runs. Verdicts follow 90 % intervals over paired seeds, shown in brackets
([how](decisions/verdicts-by-interval.md)): **pass** and **fail** by an interval are each wrong at most once in
twenty times, **undecided** needs more seeds or longer runs, **by construction** follows from the configuration, **not
comparable** means that the runs cannot decide the claim, **not run** that there are none. "A factor of F would be
seen" states the power: how far from its bound the truth must lie to be told from it four times in five. "In the end" is
the mean over the last tenth of a run's evaluations, three at least; ± is the standard deviation over seeds. Run time is
what runs recorded, on a machine that did other things as well: an upper bound.

FedBuff buffers K updates a step and quantizes nothing; QAFeL is FedBuff with quantizers both ways and the hidden state;
*direct* quantization sends the quantized model itself, without a hidden state; FedAsync steps with every update. The
concurrency is the number of clients that train at once. The [quantizers](quantizers.md) are named with their bits a
coordinate."""

_PARTS = """The published runs on CelebA, with Table III itself, and on Shakespeare are out of reach: CelebA is not here
as a whole, and a published run on Shakespeare, of 50,000 uploads, takes days of a core. `seeds` has the first 280 of
them, up to an hour a seed on a machine that three of them share. `methods` and `bits` have the shape on a part of the
data: 895 of CelebA's 9,343 people, of whom a tenth is held out for the test, and 200 of Shakespeare's 1,129 characters
with at most 128 samples each. There the published accuracy is not met in the uploads that were made, so the target is
another one, made before: what FedBuff reached with a seed of its own, less one point (`qafel paper targets`). On the
part of CelebA `bits` has three of the nine pairs.

No experiment here is about the corollary's cross term of staleness and quantization (of order 1/T), its heterogeneity
term (T^(-2/3)), or the remark that the best compression ratio depends on the quantizer."""


@final
@dataclass(frozen=True)
class Experiment:
    """An entry of the document: its runs, and what came of them if any is finished."""

    entry: Entry
    title: str
    command: str
    name: str
    """Of its folder, its figure and its place in the document."""
    planned: Sequence[RunSpec]
    result: EntryResult | None

    @property
    def missing(self) -> int:
        """Runs that are not finished."""
        return len(self.planned) - (len(self.result.source.measured.pairs) if self.result is not None else 0)

    def verdicts(self) -> list[tuple[Claim, str]]:
        """Each claim, and what the runs say of it."""
        found = dict(self.result.verdicts) if self.result is not None else {}
        return [(claim, found[claim].result if claim in found else "not run") for claim in self.entry.claims]

    def listed(self) -> dict[str, Any]:
        """The experiment as values for JSON."""
        verdicts = [{"claim": claim.text, "where": claim.where, "verdict": word} for claim, word in self.verdicts()]
        counts = {"runs": len(self.planned), "missing": self.missing}
        return {"name": self.name, "command": self.command, **counts, "verdicts": verdicts}

    def section(self) -> str:
        """Its part of the document, behind an anchor."""
        anchor = f'<a id="{self.name}"></a>\n\n'
        if self.result is None:
            head = f"## {self.title}\n\n{self.entry.paper}. `{self.command}`"
            return f"{anchor}{head}\n\nNot run: none of its {len(self.planned)} runs is finished.\n"
        source = f"{self.result.source.extent()} [Settings, versions and machine](reproduction/{self.name}.md)"
        return anchor + self.result.section(self.title, f"images/paper/{self.name}.png", source)


def all_runs(entries: dict[str, Entry]) -> list[RunSpec]:
    """Every run that the document rests on."""
    return [run for name, request in EXPERIMENTS for run in request.all_runs({name: entries[name]})]


def write_document(entries: dict[str, Entry], out: Path, file: Path) -> list[Experiment]:
    """Write the document to `file`, figures and settings beside it, from the finished runs in `out`/runs.

    DataError if a run is damaged, or none is finished: what is written there stays.
    """
    found = [_experiment(entries[name], request, out) for name, request in EXPERIMENTS]
    if all(one.result is None for one in found):
        raise DataError(f"no run is finished in {out / 'runs'}: nothing is written")
    for one in found:
        if one.result is not None:
            picture = (one.result.folder / "figure.png").read_bytes()
            write_atomically(file.parent / "images/paper" / f"{one.name}.png", picture, make_folder=True)
            settings = "\n".join(f"- {line}" for line in one.result.settings())
            text = f"# {one.title}: settings\n\n`{one.command}`\n\n{one.result.source.sentence()}\n\n{settings}\n"
            write_atomically(file.parent / file.stem / f"{one.name}.md", text.encode(), make_folder=True)
    write_atomically(file, _document(found).encode(), make_folder=True)
    return found


def _experiment(entry: Entry, request: Request, out: Path) -> Experiment:
    planned, command = request.all_runs({entry.name: entry}), request.command(entry.name)
    folder, result = results_folder(out, entry.name, planned, request), None
    if finished_runs(planned, out / "runs"):
        result = write_outputs(entry, read_back(planned, out / "runs", request), command, folder)
    title = f"{entry.title} ({request.family})" if request.family else entry.title
    return Experiment(entry, title, command, folder.name, planned, result)


def _document(found: Sequence[Experiment]) -> str:
    head = (_INTRODUCTION, _made_with(found), _missing(found), _PARTS, _claims(found))
    return "\n\n".join((*head, *(one.section().strip() for one in found))) + "\n"


def _claims(found: Sequence[Experiment]) -> str:
    """A row for each claim, with the verdict of every experiment that is about it."""
    counts = Counter(result for one in found for _, result in one.verdicts())
    total = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    rows: dict[tuple[str, str], list[str]] = {}
    for one in found:
        for claim, result in one.verdicts():
            rows.setdefault((claim.text, claim.where), []).append(f"[{one.name}](#{one.name}): **{result}**")
    listed = "\n".join(f"| {text} | {where} | {', '.join(here)} |" for (text, where), here in rows.items())
    return f"## Claims\n\nVerdicts: {total}.\n\n| claim | where | here |\n|---|---|---|\n{listed}"


def _made_with(found: Sequence[Experiment]) -> str:
    """Versions and machines of all runs, each run once, in words."""
    results = [one.result for one in found if one.result is not None]
    runs = {planned.folder: (planned, run) for it in results for planned, run in it.source.measured.pairs}
    places = Counter(place for pair in runs.values() for place in environments(*pair))
    listed = "; ".join(f"{count} with {place}" for place, count in places.most_common())
    return f"**Made with.** {len(runs)} runs: {listed}."


def _missing(found: Sequence[Experiment]) -> str:
    """What is missing, in words."""
    gaps = [f"`{one.command}`: {one.missing} of {len(one.planned)} runs" for one in found if one.missing]
    listed = "\n".join(f"- {gap}" for gap in gaps)
    return f"**What is missing.** Runs that are not finished:\n\n{listed}" if gaps else "**Nothing is missing.**"
