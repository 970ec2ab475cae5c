"""A plan from a pilot: what it runs, what it recommends, what it writes, and that runs then go as it says."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qafel.config import Config, load_recipe
from qafel.errors import ConfigError
from qafel.runs.reading import Run
from qafel.search.planning import (
    Candidates,
    DurationLaw,
    Fleet,
    Pair,
    PlanRequest,
    caveats,
    checked_candidates,
    make_plan,
)
from qafel.search.planning.curves import Curve
from qafel.search.planning.explain import plan_json, reasons, theory
from qafel.search.planning.pilot import BUFFER, CLIENT, SERVER, measured_errors, pilot_runs, short_run, with_pair
from qafel.search.planning.plan import default_candidates, fleet_of, for_thin_downlinks, predict_from_figures
from qafel.search.runner import perform

TABLE = {
    "name": "small",
    "task": {"name": "quadratic", "clients": 20, "dimension": 40, "noise": 0.2, "heterogeneity": 0.2},
    "algorithm": {"buffer_size": 5, "local_steps": 2, "client_lr": 0.05, "server_lr": 0.1},
    "evaluation": {"unit": "uploads", "every": 20},
    "stop": {"uploads": 4000},
}
SMALL = Config.from_dict(TABLE)
LAYOUT = SMALL.task.make().layout
CANDIDATES = Candidates(["rotated:4", "rotated:2", "rotated:1"], ["rotated:4", "sign"], [5, 10])
UPLOADS = 1500


def request(**changes):
    made = {"config": SMALL, "candidates": CANDIDATES, "pilot_uploads": UPLOADS, "checks": 1, **changes}
    return PlanRequest(**made)


def maker(folder: Path, made: list[str] | None = None):
    def make(runs):
        for run in runs:
            if made is not None and not (folder / run.folder / "summary.json").exists():
                made.append(run.folder)
            perform(run.config, folder / run.folder)

    return make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pilot's runs, made once: another plan finds them finished."""
    return tmp_path_factory.mktemp("plan")


def planned(folder, **changes):
    return make_plan(request(**changes), folder, maker(folder))


def test_the_pilot_is_two_runs_without_quantizers_and_one_for_each_cause():
    planned_runs = pilot_runs(SMALL, CANDIDATES, UPLOADS, 100)
    runs = {run.method: run.config.algorithm for run in planned_runs}
    assert list(runs) == ["pilot", "again", CLIENT, SERVER, BUFFER]
    assert [run.config.seed for run in planned_runs] == [100, 101, 100, 100, 100]
    pairs = {name: (it.client_quantizer, it.server_quantizer, it.buffer_size) for name, it in runs.items()}
    assert pairs == {
        "pilot": ("none", "none", 5),
        "again": ("none", "none", 5),
        CLIENT: ("rotated:1", "none", 5),
        SERVER: ("none", "sign", 5),
        BUFFER: ("none", "none", 10),
    }


def test_a_larger_buffer_keeps_the_step_of_an_upload():
    mean, summed = (
        with_pair(SMALL, Pair("none", "none", 20), "x"),
        TABLE | {"algorithm": {"accumulator": "sum", "server_lr": 1.0}},
    )
    assert mean.algorithm.server_lr == pytest.approx(0.4)
    assert with_pair(Config.from_dict(summed), Pair("none", "none", 40), "x").algorithm.server_lr == 1.0


def test_a_pilot_is_evaluated_often_enough_to_tell_its_course_and_no_more():
    rare = Config.from_dict(TABLE | {"evaluation": {"unit": "uploads", "every": 5000}})
    assert short_run(rare, "pilot", Pair("none", "none", 5), 1000, 0).config.evaluation.every == 40
    each = Config.from_dict(TABLE | {"evaluation": {"unit": "server_steps", "every": 1}})
    assert short_run(each, "pilot", Pair("none", "none", 5), 40_000, 0).config.evaluation.every == 100


def test_under_a_budget_the_recommended_pair_gets_further_than_fedbuff(folder):
    plan = planned(folder, budget_bytes=200_000)
    assert plan.recommended.pair.client != "none"
    assert plan.recommended.metric < plan.fedbuff.metric
    assert plan.recommended.forecast.traffic_bytes <= 200_000 * 1.01
    assert plan.checked[0].corrected == pytest.approx(1.0, abs=0.5)


def test_a_target_is_met_with_the_uploads_and_bytes_that_were_foretold(folder, tmp_path):
    plan = planned(folder, target=0.01)
    took, sent = [], []
    for seed in range(3):
        config = plan.recipe().model_copy(update={"seed": seed})
        perform(config, tmp_path / str(seed))
        run = Run.load(tmp_path / str(seed))
        took.append(run.at_target(run.column("uploads")))
        sent.append(run.at_target(run.traffic))
    foretold = plan.recommended
    assert sum(took) / 3 == pytest.approx(foretold.uploads.middle, rel=0.3)
    assert sum(sent) / 3 == pytest.approx(foretold.forecast.traffic_bytes, rel=0.3)
    assert foretold.uploads.low < foretold.uploads.middle < foretold.uploads.high
    assert foretold.forecast.traffic_bytes < plan.fedbuff.forecast.traffic_bytes / 1.5


def test_a_plan_is_the_same_again_and_makes_no_run_twice(folder):
    first, made = planned(folder, budget_bytes=200_000), []
    again = make_plan(request(budget_bytes=200_000), folder, maker(folder, made))
    assert made == []
    assert plan_json(again) == plan_json(first)


def test_the_recipe_ends_at_the_budget_and_keeps_the_recipes_other_settings(folder):
    recipe = planned(folder, budget_bytes=200_000).recipe()
    assert recipe.stop.traffic_bytes == 200_000
    assert recipe.algorithm.client_lr == SMALL.algorithm.client_lr
    assert Config.from_toml(recipe.to_toml(), "the plan") == recipe


def test_received_bytes_count_what_starting_clients_download(folder):
    sent, received = (planned(folder, budget_bytes=200_000, counted=counted) for counted in ("sent", "received"))
    assert received.recommended.forecast.uploads < sent.recommended.forecast.uploads
    assert received.recommended.bytes_of("received") <= 200_000 * 1.02
    assert received.recipe().stop.uploads == received.recommended.forecast.uploads


def test_thin_downlinks_get_shorter_snapshots_unless_the_recipe_says_otherwise():
    large = Config.from_dict(TABLE | {"task": {"name": "quadratic", "dimension": 2000}})
    layout = large.task.make().layout
    shorter = for_thin_downlinks(large, layout)
    assert shorter.algorithm.snapshot_quantizer == "trellis:4"
    assert for_thin_downlinks(SMALL, LAYOUT) == SMALL
    none = Candidates(["none"], ["none"], [10])
    sizes = [measured_errors(config, none, [], 0).snapshot_bytes for config in (large, shorter)]
    assert sizes[0] == 8000
    assert sizes[1] == pytest.approx(1000, rel=0.02)


def test_a_time_budget_allows_as_many_uploads_as_come_by_then(folder):
    plan = planned(folder, budget_s=30.0)
    fleet = fleet_of(SMALL, 20)
    assert plan.recommended.forecast.duration_s <= 30.0 * 1.05
    assert plan.recommended.forecast.uploads == pytest.approx(30 * 20 / fleet.durations.mean, rel=0.1)


def test_a_target_that_nothing_leads_to_is_said_first(folder):
    plan = planned(folder, target=1e-12)
    assert "nothing can be said" in caveats(plan)[0] or "no pair is expected" in caveats(plan)[0]
    assert plan_json(plan)["recommended"]["within"] is False


def test_a_budget_is_spent_best_where_nothing_can_be_said_of_the_target(folder):
    plan = planned(folder, target=1e-12, budget_bytes=200_000, checks=0)
    assert "nothing can be said of the target" in caveats(plan)[0]
    assert not plan.recommended.within
    assert plan.recommended.pair == planned(folder, budget_bytes=200_000, checks=0).recommended.pair


def test_a_budget_that_ends_before_the_first_step_is_said_first(folder):
    assert "before the first server step" in caveats(planned(folder, budget_bytes=100, checks=0))[0]
    assert "before the first server step" in caveats(planned(folder, budget_s=1e-6, checks=0))[0]


def test_checks_that_rule_everything_checked_out_are_said_to_be_the_cause(folder):
    plan = planned(folder, budget_bytes=200_000)
    assert not any("checked" in said for said in caveats(plan))
    ruled_out = replace(plan.recommended, within=False, corrected=math.inf)
    said = caveats(replace(plan, recommended=ruled_out))
    assert any("may lie within: check more" in it for it in said)
    assert not any("no pair is expected" in it for it in said)


def test_a_pilot_that_stalled_is_said_to_have(folder):
    plan = planned(folder, budget_bytes=200_000)
    assert not any("no more progress" in said for said in caveats(plan))
    uploads = np.arange(50.0, 20_001, 50)
    stalled = Curve(uploads, np.maximum(1 - uploads / 5000, 0.1), "min")
    said = caveats(replace(plan, pilot=replace(plan.pilot, base=stalled)))
    assert any("made no more progress after about" in it for it in said)


def test_a_plan_says_what_each_part_costs_and_what_it_cost_itself(folder):
    said = " ".join(reasons(planned(folder, budget_bytes=200_000)))
    for words in (
        "clients send",
        "the server sends",
        "check of",
        "step sizes are those of small",
        "the pilot was 5 runs",
    ):
        assert words in said


def test_theory_is_shown_as_theory(folder):
    (said,) = theory(SMALL, planned(folder, budget_bytes=200_000).recommended)
    assert "Theorem 3.1 admits η_ℓ up to" in said
    assert "no step size is taken from it" in said


def test_only_recipes_with_a_hidden_state_are_planned():
    with pytest.raises(ConfigError, match="needs a recipe of qafel or fedbuff"):
        request(config=load_recipe("mushrooms-direct-qsgd"), target=0.1)


def test_a_plan_needs_an_aim():
    with pytest.raises(ConfigError, match="a plan needs an aim"):
        request()
    with pytest.raises(ConfigError, match="byte budget is a positive number"):
        request(budget_bytes=-1.0)
    with pytest.raises(ConfigError, match="byte budget is a positive number, at least 1"):
        request(budget_bytes=0.5)
    with pytest.raises(ConfigError, match="the target is a finite number"):
        request(target=math.nan)


def test_a_quantizer_that_does_not_suit_its_role_is_refused():
    for unfit in (Candidates(["sign"], ["rotated:4"], [5]), Candidates(["rotated:4"], ["qsgd:2"], [5])):
        with pytest.raises(ConfigError):
            checked_candidates(unfit, LAYOUT)


def test_candidates_are_sorted_by_their_error_and_fit_for_every_size():
    found = checked_candidates(
        Candidates(["rotated:1", "rotated:4", "rotated:2"], ["sign", "rotated:4"], [9, 3]), LAYOUT
    )
    assert found == Candidates(["rotated:4", "rotated:2", "rotated:1"], ["rotated:4", "sign"], [3, 9])
    for dimension in (1, 2, 113, 1023, 1024, 5000):
        config = Config.from_dict(TABLE | {"task": {"name": "quadratic", "dimension": dimension}})
        layout = config.task.make().layout
        assert checked_candidates(default_candidates(config, layout), layout).clients


def test_a_diverging_anchor_rules_its_kind_out(tmp_path):
    wild = Config.from_dict(TABLE | {"algorithm": {**TABLE["algorithm"], "server_lr": 1.0, "client_lr": 0.2}})
    rough = Candidates(["rotated:4", "rand_k:0.025"], ["rotated:4"], [5])
    plan = make_plan(request(config=wild, candidates=rough, budget_bytes=300_000), tmp_path, maker(tmp_path))
    assert plan.recommended.pair.client == "rotated:4"


def test_a_pilot_without_progress_says_that_nothing_can_be_said(tmp_path):
    still = Config.from_dict(TABLE | {"algorithm": {**TABLE["algorithm"], "server_lr": 1e-12}})
    with pytest.raises(ConfigError, match="nothing can be said: without quantizers the pilot made no progress"):
        make_plan(request(config=still, budget_bytes=1e6), tmp_path, maker(tmp_path))


def test_a_pilot_that_diverges_without_quantizers_is_named_as_the_cause(tmp_path):
    wild = Config.from_dict(TABLE | {"algorithm": {**TABLE["algorithm"], "client_lr": 50.0, "server_lr": 50.0}})
    with pytest.raises(ConfigError, match="the pilot diverged without quantizers"):
        make_plan(request(config=wild, budget_bytes=1e6), tmp_path, maker(tmp_path))


def test_quantizers_without_error_cost_nothing(folder):
    exact = Candidates(["rand_k:1"], ["top_k:1"], [5])
    plan = planned(folder, candidates=exact, budget_bytes=200_000, checks=0)
    assert plan.recommended.slowdown == 1.0
    json.dumps(plan_json(plan), allow_nan=False)


def test_figures_give_bytes_and_time_and_costs_slow_them_down():
    fleet = Fleet(clients=100, durations=DurationLaw("half-normal", 1.0))
    candidates = Candidates(["trellis:1"], ["trellis:1,scale=least"], [10])
    fedbuff, free = predict_from_figures(5000, fleet, candidates, 10_000, {})
    _, dear = predict_from_figures(5000, fleet, candidates, 10_000, {"client": 0.5})
    assert fedbuff.forecast.uploads == free.forecast.uploads == 10_000
    assert free.forecast.traffic_bytes < fedbuff.forecast.traffic_bytes / 20
    assert dear.slowdown == pytest.approx(1 / (1 - 0.5 * 0.39), rel=0.1)
    _, gone = predict_from_figures(5000, fleet, candidates, 10_000, {"client": 5.0})
    assert gone.slowdown == math.inf
    assert not gone.within
