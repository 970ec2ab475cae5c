"""A find is reported only with what it does on seeds that the search has not seen."""

from dataclasses import replace

from qafel.config import load_recipe
from qafel.tuning import Choices, tune
from qafel.tuning.objective import RunOutcome, combine, failure, together
from qafel.tuning.result import CANDIDATES, best_checked, check_best, lead_sentence, unseen
from qafel.tuning.trial import Trial
from qafel.tuning.workers import Done, attempt

CONFIG = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=60"])


def outcome(cost, state="reached", gap=0.0):
    return combine([RunOutcome(0, state, cost, gap, 0.1, int(cost), 0.0)], 1)


def trial(number, cost, state="reached"):
    return Trial(
        number,
        {"algorithm.server_lr": float(number)},
        float("inf"),
        outcome(cost, state, gap=0.0 if state == "reached" else 0.5),
    )


def checked(trials, unseen_costs):
    def run(trial, most):
        cost = unseen_costs[trial.number]
        return outcome(cost) if cost is not None else outcome(999, "missed", 0.5)

    return check_best(trials, run)


def test_checks_end_when_no_score_is_below_the_best_on_unseen_seeds():
    trials = [trial(0, 500.0), trial(1, 100.0), trial(2, 120.0), trial(3, 190.0), trial(4, 130.0, "cut off")]
    checks = checked(trials, {1: 180.0, 2: 150.0})
    assert list(checks) == [1, 2]
    assert best_checked(trials, checks).number == 2


def test_a_lucky_trial_gives_way_to_one_that_holds():
    trials = [trial(0, 100.0), trial(1, 200.0), trial(2, 300.0)]
    checks = checked(trials, {0: None, 1: 210.0})
    assert list(checks) == [0, 1]
    assert best_checked(trials, checks).number == 1


def test_where_none_holds_not_all_are_tried_and_the_best_of_them_remains():
    trials = [trial(number, 100.0 + number) for number in range(CANDIDATES + 5)]
    checks = checked(trials, dict.fromkeys(range(20)))
    assert len(checks) == CANDIDATES
    assert best_checked(trials, checks).number == 0


def test_each_setting_is_checked_once():
    twins = [replace(trial(number, 100.0), settings={"algorithm.server_lr": 0.1}) for number in range(CANDIDATES)]
    checks = checked([*twins, trial(20, 110.0)], {0: None, 20: 120.0})
    assert list(checks) == [0, 20]


def test_without_a_check_or_a_good_trial():
    assert best_checked([trial(0, 100.0), trial(1, 50.0)], {}).number == 1
    assert best_checked([trial(0, 100.0, "cut off")], {}) is None


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


class Crew:
    """Room for three jobs, which end in the order in which they began."""

    def __init__(self):
        self.jobs, self.seen = [], []

    room = property(lambda self: 3 - len(self.jobs))
    busy = property(lambda self: len(self.jobs))

    def start(self, job):
        self.jobs.append(job)
        self.seen.append((job.number, job.seeds, self.busy))

    def next_done(self):
        job = self.jobs.pop(0)
        return Done(job, *attempt(job))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_the_unseen_seeds_of_a_trial_are_shared_among_the_workers_and_told(tmp_path, monkeypatch):
    search = {"algorithm.server_lr": Choices((0.1, 0.3))}
    alone = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path / "alone", check=4)
    crew, moments = Crew(), []
    monkeypatch.setitem(tune.__globals__, "_workers", lambda count, progress: crew)
    shared = tune(CONFIG, search, target=0.1, trials=2, out=tmp_path / "shared", check=4, watch=moments.append)
    best = shared.best.number
    jobs = [(seeds, busy) for number, seeds, busy in crew.seen if number == best and seeds != (0,)]
    assert [seeds for seeds, busy in jobs] == [(1,), (2,), (3,), (4,)]
    assert max(busy for seeds, busy in jobs) == 3
    assert [moment.checked for moment in moments if moment.checked is not None and moment.trial.number == best] == [
        *range(5)
    ]
    assert shared.checks[best].score == alone.checks[best].score


def test_seeds_that_ran_side_by_side_count_as_if_they_had_taken_turns():
    costs = [100.0, 900.0, 50.0]
    whole = together([outcome(cost) for cost in costs], 3, allowance=float("inf"))
    assert (whole.state, whole.score) == ("reached", 350.0)
    assert together([outcome(cost) for cost in costs], 3, allowance=1000.0).state == "cut off"
    assert together([outcome(100.0), outcome(1.0, "missed", 0.5), outcome(1.0)], 3, 1e9).state == "missed"
    assert together([outcome(100.0), failure("no memory")], 3, 1e9).error == "no memory"
