"""The best trials run again with seeds that the search has not seen, and that is what is reported."""

from qafel.config import load_recipe
from qafel.search import Choices, tune
from qafel.search.page import lead_sentence, unseen

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
    assert (again.best.number, again.best.score) == (tuning.best.number, tuning.best.score)
    assert {number: found.score for number, found in again.checks.items()} == {
        number: found.score for number, found in tuning.checks.items()
    }


def test_checks_with_several_workers_have_the_same_result(tmp_path):
    search = {"algorithm.server_lr": Choices((0.1, 0.3))}
    alone = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path / "alone", check=4)
    told = []
    shared = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path / "shared", check=4, workers=2, watch=told.append)
    assert {now.trial.number for now in told if now.checking} == set(shared.checks)
    assert [run.seed for run in shared.checks[shared.best.number].runs] == [1, 2, 3, 4]
    assert shared.checks[shared.best.number].score == alone.checks[alone.best.number].score
