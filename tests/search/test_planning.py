"""A plan races its candidates, recommends one, predicts its cost, and writes it as a recipe."""

import json
import math
from dataclasses import replace

import pytest

from qafel.config import Config, load_recipe
from qafel.errors import ConfigError
from qafel.runs.reading import Run
from qafel.search.planning import (
    FINALISTS,
    Candidates,
    Pair,
    PlanRequest,
    caveats,
    column,
    default_candidates,
    make_plan,
    plan_json,
    reasons,
    round_lengths,
    theory,
    with_catch_up,
    with_pair,
)
from qafel.search.runner import perform

TABLE = {
    "name": "small",
    "task": {"name": "quadratic", "clients": 20, "dimension": 40, "noise": 0.2, "heterogeneity": 0.2},
    "algorithm": {"buffer_size": 5, "local_steps": 2, "client_lr": 0.05, "server_lr": 0.1},
    "evaluation": {"unit": "uploads", "every": 20},
    "stop": {"uploads": 4000},
}
SMALL = Config.from_dict(TABLE)
TASK = SMALL.task.make()
CANDIDATES = Candidates(["rotated:4", "rotated:2", "rotated:1"], ["rotated:4", "sign"], [5, 10])


def request(**changes):
    return PlanRequest(**{"config": SMALL, "candidates": CANDIDATES, "pilot_uploads": 1600, "seeds": 2, **changes})


def planned(folder, made=None, **changes):
    def make(runs):
        for run in runs:
            if made is not None:
                made.append(run)
            perform(run.config, folder / run.folder, task=TASK if run.config.task == SMALL.task else None)

    return make_plan(request(**changes), folder, make)


@pytest.fixture(scope="module")
def race(tmp_path_factory):
    """A folder of runs, the plan that made them, and what it made. Other plans use the runs again."""
    folder, made = tmp_path_factory.mktemp("plan"), []
    return folder, planned(folder, made, budget_bytes=200_000), made


@pytest.fixture(scope="module")
def folder(race):
    return race[0]


@pytest.fixture(scope="module")
def plan(race):
    return race[1]


def test_rounds_are_longer_for_fewer_candidates_and_the_last_has_the_whole_pilot():
    assert round_lengths(75, 20_000, 40) == [1250, 5000, 20_000]
    assert round_lengths(12, 20_000, 40) == [5000, 20_000]
    assert round_lengths(3, 20_000, 40) == [20_000]
    assert round_lengths(75, 20_000, 500) == [5000, 20_000], "a round has at least 10 server steps"


def test_candidates_race_on_common_seeds_and_finalists_have_several(race):
    _, plan, made = race
    assert [it.uploads for it in plan.rounds] == [400, 1600]
    first = [run for run in made if run.config.stop.uploads == 400]
    assert len(first) == 12 + 1, "and FedBuff"
    assert {run.config.seed for run in first} == {100}
    last = [run for run in made if run.config.stop.uploads == 1600]
    assert sorted(run.config.seed for run in last) == [100] * (FINALISTS + 1) + [101] * (FINALISTS + 1)
    better = {it.pair for it in plan.rounds[0].ranked[:FINALISTS]}
    assert {it.pair for it in plan.rounds[1].ranked} == better


def test_a_plan_is_the_same_again_and_makes_no_run_twice(folder, plan):
    made = []
    again = planned(folder, made, budget_bytes=200_000)
    assert made == []
    assert plan_json(again) == plan_json(plan)
    assert not list(folder.glob("*.old*"))


def test_under_a_budget_the_recommended_pair_gets_further_than_fedbuff(plan):
    assert plan.recommended.pair.client != "none"
    assert plan.recommended.metric.middle < plan.fedbuff.metric.middle
    assert plan.recommended.spent.bytes_of("total") == pytest.approx(200_000)
    assert plan.recommended.within


def test_a_target_is_met_with_the_uploads_and_bytes_that_were_predicted(folder, tmp_path):
    plan = planned(folder, target=0.02)
    took, sent = [], []
    for seed in range(3):
        perform(plan.recipe().model_copy(update={"seed": seed}), tmp_path / str(seed), task=TASK)
        run = Run.load(tmp_path / str(seed))
        took.append(run.at_target(run.column("uploads")))
        sent.append(run.at_target(run.bytes_so_far))
    best = plan.recommended
    assert sum(took) / 3 == pytest.approx(best.uploads.middle, rel=0.3)
    assert sum(sent) / 3 == pytest.approx(best.spent.bytes_of("total"), rel=0.3)
    assert best.uploads.low < best.uploads.middle < best.uploads.high
    assert best.spent.bytes_of("total") < plan.fedbuff.spent.bytes_of("total") / 1.5


def test_a_plan_says_if_its_pilot_did_not_reach_the_target(folder):
    reached, beyond, never = (planned(folder, target=target) for target in (0.1, 0.005, 1e-300))
    assert reached.recommended.measured
    assert not caveats(reached)
    assert not beyond.recommended.measured
    assert any("did not reach the target" in said and "extrapolates" in said for said in caveats(beyond))
    assert not never.recommended.within
    assert any("no prediction" in said for said in caveats(never))
    assert column(never.recommended, 20)["uploads to the target"] == "no prediction"
    assert never.recommended.run_uploads == 1600


def test_the_recipe_ends_at_the_budget_and_keeps_the_recipes_other_settings(plan):
    recipe = plan.recipe()
    assert recipe.stop.total_bytes == 200_000
    assert recipe.algorithm.client_lr == SMALL.algorithm.client_lr
    assert Config.from_toml(recipe.to_toml(), "the plan") == recipe


def test_the_recipe_of_a_time_budget_has_no_other_limit(folder):
    stop = planned(folder, budget_s=100.0).recipe().stop
    assert stop.model_dump(exclude_none=True) == {"virtual_time": 100.0, "at_target": False}


def test_limits_that_end_the_recipe_before_its_target_are_reported(folder):
    plan = planned(folder, target=0.02)
    assert not any("limits" in said for said in caveats(plan))
    short = SMALL.model_copy(update={"stop": SMALL.stop.model_copy(update={"uploads": 100})})
    plan = replace(plan, request=request(config=short, target=0.02))
    assert any("after 100 uploads, before the target" in said for said in caveats(plan))


def test_a_candidate_that_is_given_twice_races_once():
    twice = Candidates(["qsgd:4", "qsgd:4"], ["sign"], [5, 10, 5])
    assert twice.pairs() == [Pair("qsgd:4", "sign", 5), Pair("qsgd:4", "sign", 10)]


def test_received_bytes_count_what_starting_clients_download(folder, plan):
    received = planned(folder, budget_bytes=200_000, counted="received")
    assert received.recommended.run_uploads > plan.recommended.run_uploads
    assert received.recommended.spent.bytes_of("received") == pytest.approx(200_000)
    assert received.recipe().stop.uploads == math.floor(received.recommended.run_uploads)


def test_downloads_that_count_are_short_unless_the_recipe_states_how_clients_catch_up():
    for counted, catch_up in {"total": "auto", "received": "auto", "sent": "exact"}.items():
        assert with_catch_up(SMALL, counted, TASK.layout).algorithm.catch_up == catch_up
    models = {**TABLE["algorithm"], "client_rule": "model"}
    for stated in ({**TABLE["algorithm"], "catch_up": "exact"}, models):
        config = Config.from_dict(TABLE | {"algorithm": stated})
        assert with_catch_up(config, "total", TASK.layout) == config, "a model would carry the error of its start"


def test_a_plan_for_total_bytes_compares_short_downloads_with_the_exact_ones_of_fedbuff(tmp_path):
    made = []
    config = with_catch_up(SMALL, "total", TASK.layout)
    pair = Candidates(["rotated:2"], ["rotated:4"], [5])
    plan = planned(tmp_path, made, config=config, candidates=pair, budget_bytes=100_000, pilot_uploads=640)
    assert {run.config.algorithm.client_quantizer: run.config.algorithm.catch_up for run in made} == {
        "rotated:2": "auto", "none": "exact",
    }  # fmt: skip
    assert plan.recommended.spent.received_bytes < plan.fedbuff.spent.received_bytes
    assert plan.recipe().algorithm.catch_up == "auto"


def test_a_time_budget_allows_as_many_uploads_as_come_by_then(folder):
    plan = planned(folder, budget_s=30.0)
    assert plan.recommended.spent.time == pytest.approx(30.0)
    assert plan.recommended.run_uploads == pytest.approx(30 * 20 / math.sqrt(2 / math.pi), rel=0.1)
    assert plan.recipe().stop.virtual_time == 30.0


def test_a_budget_that_ends_before_the_first_step_is_reported(folder):
    assert "before the first server step" in caveats(planned(folder, budget_bytes=100))[0]
    assert "before the first server step" in caveats(planned(folder, budget_s=1e-6))[0]


def test_a_slower_pair_is_recommended_only_within_the_allowed_uploads(folder, plan):
    slow = [it for it in plan.rounds[0].ranked if it.slowdown > 1.2]
    strict = planned(folder, budget_bytes=200_000, most_uploads=1.2)
    assert strict.recommended.slowdown <= 1.2
    order = [it.slowdown > 1.2 for it in strict.rounds[0].ranked]
    assert order == sorted(order)
    assert len(slow) <= sum(order)


def test_a_diverging_candidate_comes_last(tmp_path):
    wild = Config.from_dict(TABLE | {"algorithm": {**TABLE["algorithm"], "server_lr": 1.0, "client_lr": 0.2}})
    rough = Candidates(["rand_k:0.025", "rotated:4"], ["rotated:4"], [5])
    plan = planned(tmp_path, config=wild, candidates=rough, budget_bytes=300_000, pilot_uploads=640)
    assert plan.recommended.pair.client == "rotated:4"
    json.dumps(plan_json(plan), allow_nan=False)


@pytest.mark.parametrize(("rate", "words"), [(1e-12, "no progress"), (50.0, "diverged")])
def test_a_pilot_from_which_nothing_follows_is_an_error(rate, words, tmp_path):
    bad = Config.from_dict(TABLE | {"algorithm": {**TABLE["algorithm"], "client_lr": rate, "server_lr": rate}})
    with pytest.raises(ConfigError, match=words):
        planned(tmp_path, config=bad, candidates=Candidates(["rotated:4"], ["sign"], [5]), budget_bytes=1e6)


def test_a_pilot_without_further_arrivals_is_not_called_diverged(tmp_path):
    (tmp_path / "trace.csv").write_text("time,client\n" + "".join(f"{time},{time % 20}\n" for time in range(200)))
    config = Config.from_dict(TABLE | {"timing": {"arrivals": "trace", "trace": str(tmp_path / "trace.csv")}})
    with pytest.raises(ConfigError, match="ended after 200 uploads"):
        planned(tmp_path, config=config, candidates=Candidates(["qsgd:4"], ["sign"], [5]), target=0.1)


def test_a_larger_buffer_keeps_the_step_of_an_upload():
    summed = Config.from_dict(TABLE | {"algorithm": {"accumulator": "sum", "server_lr": 1.0}})
    assert with_pair(SMALL, Pair("none", "none", 20), "x").algorithm.server_lr == pytest.approx(0.4)
    assert with_pair(summed, Pair("none", "none", 40), "x").algorithm.server_lr == 1.0


def test_a_plan_in_words_names_its_rounds_and_its_step_sizes(plan):
    said = " ".join(reasons(plan))
    for words in ("12 candidates", "3 candidates", "times the uploads of FedBuff", "step sizes are those of small"):
        assert words in said
    assert "Theorem 3.1 admits" in theory(SMALL, TASK, plan.recommended)
    slower = replace(plan.recommended, within=False)
    assert any("No finalist" in said for said in caveats(replace(plan, recommended=slower)))


def test_a_seed_beyond_64_bits_is_refused_before_any_run(tmp_path):
    made = []
    with pytest.raises(ConfigError, match="seed"):
        planned(tmp_path, made, target=0.1, seed=2**63)
    assert not made


def test_only_recipes_with_a_hidden_state_are_planned():
    with pytest.raises(ConfigError, match="qafel or fedbuff"):
        request(config=load_recipe("mushrooms-direct-qsgd"), target=0.1)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({}, "needs"),
        ({"budget_bytes": 0.5}, "byte budget"),
        ({"budget_s": -1.0}, "time budget"),
        ({"target": math.nan}, "finite"),
        ({"target": 0.1, "seeds": 1}, "2 seeds"),
    ],
)
def test_a_request_without_a_sound_aim_is_an_error(wrong, word):
    with pytest.raises(ConfigError, match=word):
        request(**wrong)


def test_a_quantizer_that_does_not_suit_its_role_is_refused():
    for unfit in (Candidates(["sign"], ["rotated:4"], [5]), Candidates(["rotated:4"], ["qsgd:2"], [5])):
        with pytest.raises(ConfigError):
            unfit.require_fit(TASK.layout)


@pytest.mark.parametrize("dimension", [1, 2, 113, 1023, 1024, 5000])
def test_default_candidates_fit_every_size(dimension):
    config = Config.from_dict(TABLE | {"task": {"name": "quadratic", "dimension": dimension}})
    layout = config.task.make().layout
    default_candidates(config, layout).require_fit(layout)
