"""Compare the predictions of `qafel plan` with full runs, on settings that were not used to build it.

    python scripts/validate_plan.py --folder plan-validation --out docs/benchmarks/plan.csv

For each setting the script makes a plan with seeds 100 to 102. Then it runs every candidate to the target with seeds 0
to 2, and the recommended pair with seeds 0 to 9. It writes a row for each run and prints a summary as Markdown: how
many of the ten seeds lie in the stated range, and what the recommended pair costs compared with the best candidate.
Finished runs are used again, so the script can be interrupted.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qafel.config import Config, load_recipe
from qafel.runs.reading import Run
from qafel.search.planning import BudgetPlan, Candidates, Pair, PlanRequest, evaluation_interval, make_plan, with_pair
from qafel.search.runner import RunSpec, perform
from qafel.tasks import Task

ROTATED = ("rotated:4", "rotated:2", "rotated:1"), ("rotated:4", "rotated:3")
TRELLIS = (
    ("trellis:2", "trellis:0.5", "trellis:0.25"),
    ("trellis:2,scale=least", "trellis:0.5,scale=least"),
)
FIELDS = ("setting", "pair", "seed", "uploads", "bytes", "predicted", "low", "high", "recommended")


class Case(NamedTuple):
    """A setting, its target and the length of its pilot. The limit ends a run that does not reach the target."""

    recipe: str
    settings: tuple[str, ...]
    target: float
    pilot_uploads: int
    quantizers: tuple[Sequence[str], Sequence[str]] = ROTATED
    limit: int = 60_000


CASES = {
    "mushrooms, K = 50": Case(
        "mushrooms-qafel-4bit", ("algorithm.buffer_size=50", "algorithm.server_lr=0.5"), 0.003, 8000
    ),
    "mushrooms, 200 clients, K = 20": Case(
        "mushrooms-qafel-4bit",
        ("task.clients=200", "algorithm.buffer_size=20", "algorithm.server_lr=0.2"),
        0.012,
        12_000,
    ),
    "mushrooms, 50 clients, K = 5": Case(
        "mushrooms-qafel-4bit",
        ("task.clients=50", "algorithm.buffer_size=5", "algorithm.server_lr=0.05"),
        0.004,
        5000,
    ),
    "quadratic, d = 500, 50 clients": Case("quadratic-qafel", ("task.dimension=500", "task.clients=50"), 0.005, 8000),
    "quadratic, d = 1500, 200 clients, K = 20": Case(
        "quadratic-qafel",
        ("task.dimension=1500", "task.clients=200", "algorithm.buffer_size=20", "algorithm.server_lr=0.04"),
        0.0025,
        5000,
        TRELLIS,
    ),
    "quadratic, d = 300, noise 2, K = 5": Case(
        "quadratic-qafel",
        ("task.dimension=300", "task.noise=2.0", "algorithm.buffer_size=5", "algorithm.server_lr=0.01"),
        0.001,
        4000,
    ),
    "logistic, 50 clients, K = 5": Case(
        "logistic-qafel",
        ("task.dimension=400", "task.clients=50", "algorithm.buffer_size=5", "algorithm.server_lr=0.025"),
        0.003,
        8000,
    ),
    "logistic, 200 clients, K = 20": Case(
        "logistic-qafel",
        (
            "task.dimension=400",
            "task.clients=200",
            "task.heterogeneity=0.1",
            "algorithm.buffer_size=20",
            "algorithm.server_lr=0.1",
        ),
        0.001,
        5000,
    ),
}


def plan_of(case: Case, config: Config, task: Task, folder: Path) -> BudgetPlan:
    """The plan of a case."""
    size = config.algorithm.buffer_size
    request = PlanRequest(
        config=config,
        candidates=Candidates(*case.quantizers, [size, 2 * size]),
        target=case.target,
        pilot_uploads=case.pilot_uploads,
        counted="sent",
    )

    def make(runs: Sequence[RunSpec]) -> None:
        for run in runs:
            perform(run.config, folder / run.folder, task=task)

    return make_plan(request, folder, make)


def costs_of(case: Case, config: Config, task: Task, pair: Pair, seed: int, folder: Path) -> tuple[float, float]:
    """Uploads, and bytes uploaded and broadcast, of a run of a pair to the target."""
    every = evaluation_interval(with_pair(config, pair, "run"))
    evaluation = {"unit": "uploads", "every": every, "target": case.target}
    name = f"to-target-{pair.client}-{pair.server}-k{pair.buffer_size}".replace(":", "").replace(",", "-")
    made = with_pair(config, pair, name, stop={"uploads": case.limit, "at_target": True}, evaluation=evaluation)
    spec = RunSpec(name, made.model_copy(update={"seed": seed}))
    perform(spec.config, folder / spec.folder, task=task)
    run = Run.load(folder / spec.folder)
    sent = run.column("upload_bytes_total") + run.column("broadcast_bytes_total")
    return run.at_target(run.column("uploads")), run.at_target(sent)


def validate(name: str, case: Case, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows and the summary of a case."""
    config = load_recipe(case.recipe, [*case.settings, "evaluation.unit=uploads", "evaluation.every=100"])
    task = config.task.make()
    place = folder / "".join(letter if letter.isalnum() else "-" for letter in name)
    plan = plan_of(case, config, task, place)
    predicted = {it.pair: it for it in (plan.recommended, *plan.others)}
    best, rows = plan.recommended, []
    for pair in plan.request.candidates.pairs():
        for seed in range(10 if pair == best.pair else 3):
            uploads, sent = costs_of(case, config, task, pair, seed, place)
            row = {"setting": name, "pair": str(pair), "seed": seed, "uploads": uploads, "bytes": sent}
            if (it := predicted.get(pair)) is not None:
                row |= {"predicted": round(it.uploads.middle), "low": it.uploads.low, "high": it.uploads.high}
            rows.append(row | {"recommended": pair == best.pair})
    return rows, summary_of(name, case, plan, rows)


def summary_of(name: str, case: Case, plan: BudgetPlan, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How the predictions of a case compare with its runs."""
    best = plan.recommended
    took = [row["uploads"] for row in rows if row["recommended"]]
    costs: dict[str, list[float]] = {}
    for row in rows:
        if row["seed"] < 3:
            costs.setdefault(row["pair"], []).append(row["bytes"])
    means = {pair: statistics.fmean(values) for pair, values in costs.items()}
    return {
        "setting": name,
        "target / pilot": statistics.median(took) / case.pilot_uploads,
        "measured": best.measured,
        "predicted": f"{best.uploads.middle:,.0f} ({best.uploads.low:,.0f} to {best.uploads.high:,.0f})",
        "runs": f"{min(took):,.0f} to {max(took):,.0f}",
        "inside": sum(best.uploads.low <= value <= best.uploads.high for value in took),
        "of": len(took),
        "cost": means[str(best.pair)] / min(value for value in means.values() if math.isfinite(value)),
        "pair": str(best.pair),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("plan-validation"), help="the folder of all runs")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/plan.csv"), help="the file of the rows")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    print("| setting | target / pilot | predicted uploads | runs | inside | cost / best |\n|---|---|---|---|---|---|")
    for name, case in CASES.items():
        more, summary = validate(name, case, arguments.folder)
        rows += more
        found.append(summary)
        shown = f"{summary['target / pilot']:.1f}{' (reached)' if summary['measured'] else ''}"
        inside = f"{summary['inside']} of {summary['of']}"
        cells = (name, shown, summary["predicted"], summary["runs"], inside, f"{summary['cost']:.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)
    inside, seeds = (sum(it[key] for it in found) for key in ("inside", "of"))
    worst = max(it["cost"] for it in found)
    print(f"\n{inside} of {seeds} seeds ({inside / seeds:.0%}) lie in the range. The largest cost is {worst:.2f}.")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
