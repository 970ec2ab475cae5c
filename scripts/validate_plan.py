"""What `qafel plan` foretells against what happens: uploads to a target, for pairs and seeds that were fixed before.

    python -m scripts.validate_plan mushrooms quadratic logistic cifar10 --folder plan-validation

The pilot has seed 100 and 20,000 uploads a run; it sees none of the pairs, but for its anchors (the roughest client
quantizer beside an exact server, and the other way round). Each pair is then run with seeds of its own. No check
corrects a prediction here. Finished runs are not made again. The table goes to docs/planning.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

from qafel.config import Config
from qafel.search.planning import Candidates, PlanRequest, checked_candidates
from qafel.search.planning.pilot import Pair, measured_errors, pilot_runs, read_pilot
from qafel.search.planning.plan import Prediction, Predictor
from qafel.search.runner import RunSpec, perform
from reproduction.entry import Change, configuration, uploads_limit
from reproduction.pareto import pair_change
from reproduction.published import load_published
from reproduction.store import Store

TRELLIS = (
    ("trellis:4", "trellis:4,scale=least"),
    ("trellis:2", "trellis:2,scale=least"),
    ("trellis:1", "trellis:1,scale=least"),
    ("trellis:0.5", "trellis:1,scale=least"),
    ("trellis:0.5", "trellis:0.5,scale=least"),
    ("trellis:0.25", "trellis:0.5,scale=least"),
    ("trellis:0.25", "trellis:0.25,scale=least"),
    ("qsgd:4", "qsgd:4"),
)
SMALL = (
    ("rotated:4", "rotated:4"),
    ("rotated:3", "rotated:3"),
    ("rotated:2", "rotated:3"),
    ("rotated:1", "rotated:3"),
    ("rotated:1", "sign"),
    ("qsgd:4", "qsgd:4"),
    ("qsgd:2", "qsgd:4"),
    ("rand_k:0.25", "top_k:0.25"),
)
NETWORK = (("trellis:0.75", "trellis:1"), *TRELLIS[1:])
OWN_RECIPES = {("cifar10-qafel-c100", NETWORK[0]): "cifar10-qafel-c100-trellis"}
"""Pairs that are recipes of their own, with the same bits and results."""
CASES: dict[str, tuple[str, float, tuple[tuple[str, str], ...], tuple[int, ...], int]] = {
    "mushrooms": ("mushrooms-qafel-4bit", 0.003, SMALL, (0, 1, 2), 100_000),
    "quadratic": ("quadratic-qafel", 0.002, TRELLIS, (0, 1, 2), 60_000),
    "logistic": ("logistic-qafel", 0.0005, TRELLIS, (0, 1, 2), 60_000),
    "cifar10": ("cifar10-qafel-c100", 0.6, NETWORK, (0, 1), 120_000),
}
"""By task: recipe, target, pairs, seeds, and where a run ends that does not meet the target."""
PILOT_UPLOADS, PILOT_SEED = 20_000, 100


def run_of(recipe: str, target: float, pair: tuple[str, str], seed: int, most: int) -> RunSpec:
    """A run of a pair to the target."""
    if (recipe, pair) in OWN_RECIPES:
        return RunSpec("pair", configuration(OWN_RECIPES[recipe, pair], seed))
    aim = Change("", ()) if load_published(recipe).evaluation.target == target else Change(
        f"to{target:g}",
        (f"evaluation.target={target}", "stop.at_target=true", 'evaluation.unit="uploads"', "evaluation.every=100"),
    )  # fmt: skip
    changes = [it for it in (pair_change(*pair), aim) if it.settings]
    return RunSpec("pair", configuration(recipe, seed, *changes, uploads_limit(most)))


def predictor_of(config: Config, pairs: tuple[tuple[str, str], ...], folder: Path) -> Predictor:
    """The pilot, made and read."""
    layout = config.task.make().layout
    asked = Candidates([up for up, _ in pairs], [down for _, down in pairs], [config.algorithm.buffer_size])
    candidates = checked_candidates(asked, layout, strict=False)  # theory warns of some, and users run them
    request = PlanRequest(
        config=config,
        candidates=candidates,
        target=config.evaluation.target,
        pilot_uploads=PILOT_UPLOADS,
        seed=PILOT_SEED,
        most_uploads=math.inf,
    )
    planned = pilot_runs(config, candidates, PILOT_UPLOADS, PILOT_SEED)
    for run in planned:
        print("pilot", run.folder, perform(run.config, folder / run.folder), flush=True)
    models = [folder / planned[0].folder / "model.safetensors"]
    errors = measured_errors(config, candidates, models, PILOT_SEED)
    return Predictor(request, read_pilot(planned, folder, errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=CASES)
    parser.add_argument("--folder", type=Path, default=Path("plan-validation"))
    parser.add_argument("--results", type=Path, help="a folder of kept runs, as of `python -m reproduction`")
    parser.add_argument("--finished", action="store_true", help="make no run; show what is there")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    for task in arguments.tasks:
        recipe, target, pairs, seeds, most = CASES[task]
        config = load_published(recipe, [f"evaluation.target={target}"])
        predictor = predictor_of(config, pairs, folder)
        rows = []
        for pair in pairs:
            predicted = predictor.predict(Pair(*pair, config.algorithm.buffer_size))
            took = []
            for seed in seeds:
                run = run_of(recipe, target, pair, seed, most)
                store = Store(folder, arguments.results)
                if not arguments.finished and store.unfinished([run]):
                    perform(run.config, folder / run.folder)
                took += [found.at_target(found.column("uploads")) for _, found in store.load([run])]
            rows.append(row(pair, predicted, took))
            print(rows[-1], flush=True)
        summarise(task, rows)


def row(pair: tuple[str, str], predicted: Prediction, took: list[float]) -> dict[str, object]:
    """A pair's prediction beside what its runs took."""
    mean = statistics.fmean(took) if took else math.nan
    foretold = predicted.uploads
    each = predicted.sizes.upload_bytes + predicted.sizes.broadcast_bytes / predicted.pair.buffer_size
    return {
        "pair": " / ".join(pair),
        "predicted": round(foretold.middle) if math.isfinite(foretold.middle) else None,
        "range": [round(it) if math.isfinite(it) else None for it in (foretold.low, foretold.high)],
        "simulated": took,
        "ratio": foretold.middle / mean if math.isfinite(mean) else None,
        "predicted MB": each * foretold.middle / 1e6,
        "simulated MB": each * mean / 1e6,
    }


def summarise(task: str, rows: list[dict[str, object]]) -> None:
    """The errors, whether the order by bytes is right, and how often runs fell into the range."""
    ratios = [float(str(it["ratio"])) for it in rows if it["ratio"] is not None]
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    order = [sorted(rows, key=lambda it: float(str(it[key]))) for key in ("predicted MB", "simulated MB")]
    same = [it["pair"] for it in order[0]] == [it["pair"] for it in order[1]]
    print(json.dumps({"task": task, "median error": statistics.median(errors), "worst": errors[-1], "order": same}))


if __name__ == "__main__":
    main()
