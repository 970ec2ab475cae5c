"""The best trials run again with seeds that the search has not seen, and that is what is reported."""

from dataclasses import replace

from qafel.config import load_recipe
from qafel.search import Choices, tune
from qafel.search.result import lead_sentence, unseen
from qafel.search.tuning import attempt

CONFIG = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=60"])


def test_the_seeds_that_follow_are_run_and_reported(tmp_path):
    search = {"algorithm.server_lr": Choices((0.1, 0.3))}
    tuning = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path, seeds=2, check=2)
    check = tuning.checks[tuning.best.number]
    assert [run.seed for run in check.runs] == [2, 3]
    assert sorted(path.name for path in (tmp_path / f"trials/{tuning.best.number:04d}").iterdir()) == [
        f"seed-{seed}" for seed in range(4)
    ]
    assert f"on 2 unseen seeds {check.score:,.0f}" in lead_sentence(tuning)
    assert unseen(tuning, tuning.best) == f"{check.score:,.0f}"
    again = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path, seeds=2, check=2)
    assert replace(again.best, outcome=None) == replace(tuning.best, outcome=None)
    assert {number: found.score for number, found in again.checks.items()} == {
        number: found.score for number, found in tuning.checks.items()
    }


class ThreeAtATime:
    """Room for three trials, which end in the order in which they began."""

    def __init__(self):
        self.works, self.seen = [], []

    cores = 1
    room = property(lambda self: 3 - len(self.works))
    busy = property(lambda self: len(self.works))

    def start(self, work):
        self.works.append(work)
        self.seen.append((work.trial.number, work.seeds, self.busy))

    def next_finished(self):
        work = self.works.pop(0)
        return attempt(work)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_the_unseen_seeds_of_a_trial_are_shared_among_the_workers_and_told(tmp_path, monkeypatch):
    search = {"algorithm.server_lr": Choices((0.1, 0.3))}
    alone = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path / "alone", check=4)
    runner, told = ThreeAtATime(), []
    monkeypatch.setitem(tune.__globals__, "TrialRunner", lambda count, progress: runner)
    shared = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path / "shared", check=4, watch=told.append)
    best = shared.best.number
    jobs = [(seeds, busy) for number, seeds, busy in runner.seen if number == best and seeds != (0,)]
    assert [seeds for seeds, busy in jobs] == [(1,), (2,), (3,), (4,)]
    assert max(busy for seeds, busy in jobs) == 3
    assert [now.checked for now in told if now.checked is not None and now.trial.number == best] == [*range(5)]
    assert shared.checks[best].score == alone.checks[best].score
