"""Measure the effect of malicious clients on mushrooms: f − f* by defence and by number of malicious clients.

    python scripts/attackers.py --seeds 3 --steps 1000 --workers 2

The recipe mushrooms-qafel-4bit in virtual time: 100 clients that always train. Uploads pass the deployed server's
checks (`UploadChecker`). A malicious client sends its reversed update with the largest accepted norm; it knows the
median. A flooding client also starts twenty times as often. The table in docs/security.md is this script's output.
"""

from __future__ import annotations

import argparse
import heapq
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from qafel.algorithm import Client, HiddenState, LocalTraining, Message, Server
from qafel.config import load_recipe
from qafel.deployment.server import DefenceSettings
from qafel.deployment.server.intake import RunningMedian, UploadChecker, resolved
from qafel.errors import RejectedUpload
from qafel.rng import Stream

RECIPE = "mushrooms-qafel-4bit"
FASTER = 20.0


class Case(NamedTuple):
    """A row of the table."""

    name: str
    defence: DefenceSettings
    accumulator: str = "mean"
    floods: bool = False


CASES = [
    Case("the default", DefenceSettings()),
    Case("the default, flooding", DefenceSettings(), floods=True),
    Case("without shares, flooding", DefenceSettings(max_share=None), floods=True),
    Case("`--max-share 1`, flooding", DefenceSettings(max_share=1.0), floods=True),
    Case("`accumulator = median`", DefenceSettings(), "median"),
    Case("`accumulator = median`, flooding", DefenceSettings(), "median", floods=True),
    Case("`accumulator = trimmed-mean`", DefenceSettings(), "trimmed-mean"),
    Case("`accumulator = trimmed-mean`, flooding", DefenceSettings(), "trimmed-mean", floods=True),
    Case("`--max-norm-ratio 3`", DefenceSettings(max_norm_ratio=3.0)),
    Case("`--max-norm-ratio 3`, flooding", DefenceSettings(max_norm_ratio=3.0), floods=True),
    Case("`--max-norm-ratio 10`", DefenceSettings(max_norm_ratio=10.0)),
    Case("`--max-norm-ratio 10 --norm-excess reject`", DefenceSettings(max_norm_ratio=10.0, norm_excess="reject")),
]


class Outcome(NamedTuple):
    """The result of one run."""

    error: float
    """f − f*."""
    malicious: float
    """The share of malicious updates among the accepted ones."""
    refused: float
    """The share of the honest updates that were rejected."""


def attack(case: Case, attackers: int, seed: int, steps: int) -> Outcome:
    """One run whose first `attackers` clients are malicious."""
    config = load_recipe(RECIPE, [f"algorithm.accumulator={case.accumulator}"], seed)
    task = config.task.make()
    algorithm = config.algorithm.compose(task.layout)
    server = Server(config.initial_model(task), algorithm, seed)
    checker = UploadChecker(
        algorithm, resolved(case.defence, algorithm, task), task.clients, None, RunningMedian({}, 0.0)
    )
    times, counts, honest = np.random.default_rng(seed), Counter[str](), Counter[bool]()

    def lasts(client: int) -> float:
        return abs(float(times.standard_normal())) / (FASTER if case.floods and client < attackers else 1.0)

    def train(client: int, now: float, start: HiddenState, local: LocalTraining, stream: Stream) -> Any:
        trained = task.train(client, start, local, stream)
        return _attack_update(start.vector, trained, checker, case.defence, now) if client < attackers else trained

    queue: list[tuple[float, int, int, HiddenState]] = []
    for client in range(task.clients):
        heapq.heappush(queue, (lasts(client), client, 0, server.hidden_state))
    while server.version < steps:
        now, client, sequence, start = heapq.heappop(queue)
        heapq.heappush(queue, (now + lasts(client), client, sequence + 1, server.hidden_state))
        made = Client(client, start, algorithm, seed, sequence=sequence).update(partial(train, client, now))
        upload = Message.from_bytes(made.upload)
        try:
            applied, decoded, admitted = checker.check(server, client, upload, now)
            accepted = server.receive(upload._replace(weight=applied.weight), applied.factor, decoded, admitted)
        except RejectedUpload:
            honest[False] += client >= attackers
        else:
            if accepted.batch is not None:
                server.step(accepted.batch)
            checker.shares.count(client, now)
            honest[True] += client >= attackers
            counts["malicious"] += client < attackers
            counts["all"] += 1
    refused = honest[False] / max(1, honest.total())
    return Outcome(_error(task, server.model), counts["malicious"] / counts["all"], refused)


def _attack_update(start: Any, trained: Any, checker: UploadChecker, defence: DefenceSettings, now: float) -> Any:
    """The reversed honest update, with the largest accepted norm."""
    update = start - trained
    norm, median = float(np.linalg.norm(update)), checker.median.value(now)
    most = 1.0 if median is None or defence.max_norm_ratio is None else 0.98 * defence.max_norm_ratio * median
    return start + np.float32(most / max(norm, 1e-12)) * update


def _error(task: Any, model: Any) -> float:
    return float(task.evaluate(model)["metric"])


def table(seeds: Iterable[int], steps: int, cases: Iterable[Case] = CASES, workers: int = 2) -> None:
    """Print the rows as Markdown, with the smallest and the largest value over the seeds."""
    print("| | none | 1 of 100 | 10 of 100 | malicious updates accepted, 1 and 10 | honest updates rejected, at most |")
    print("|---|---:|---:|---:|---:|---:|")
    chosen = list(seeds)
    with ProcessPoolExecutor(workers) as pool:
        made = [
            (case, {n: [pool.submit(attack, case, n, seed, steps) for seed in chosen] for n in (0, 1, 10)})
            for case in cases
        ]
        for case, started in made:
            runs = {attackers: [future.result() for future in futures] for attackers, futures in started.items()}
            errors = [_range([run.error for run in found]) for found in runs.values()]
            shares = (100 * np.mean([run.malicious for run in runs[attackers]]) for attackers in (1, 10))
            malicious = " and ".join(f"{share:.1f} %" for share in shares)
            refused = 100 * max(run.refused for found in runs.values() for run in found)
            print(f"| {case.name} | {' | '.join(errors)} | {malicious} | {refused:.1f} % |", flush=True)


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} … {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    table(range(options.seeds), options.steps, workers=options.workers)


if __name__ == "__main__":
    main()
