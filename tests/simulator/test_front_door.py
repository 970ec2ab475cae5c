"""`qafel.simulate` is the one way to run: as strict in Python as the command line, and never silently wrong."""

import json
import math

import numpy as np
import pytest

import qafel
from qafel import Constant, HalfNormal, Layout, Limits, Quadratic, Rounds, Timing, Trace, method, simulate
from qafel.config import load_recipe
from qafel.errors import ConfigError, Diverged, PartFailed, RunFailed, Stalled
from qafel.simulator.executors import jobs
from tests.command import qafel_here

TASK = Quadratic(clients=6, dimension=5)
METHOD = method("qafel", buffer_size=2, client_lr=0.1, server_lr=0.1, local_steps=2, client_quantizer="qsgd:8",
                server_quantizer="qsgd:8")  # fmt: skip


def sha(**options):
    return simulate(TASK, METHOD, **{"server_steps": 20, **options}).summary["model_sha256"]


class Points:
    """Learn the mean of the clients' points; `evaluate` and `train` may be replaced."""

    name, metric_name, metric_goal, clients = "points", "distance", "min", 4
    layout = Layout.of({"point": (3,)})
    trained = 0

    def samples(self, client):
        return 1

    def initial_model(self, stream):
        return np.zeros(3, np.float32)

    def train(self, client, start, local, stream):
        self.trained += 1
        return start.vector - np.float32(local.lr) * (start.vector - np.float32(client))

    def evaluate(self, model):
        return {"metric": float(np.linalg.norm(model - 1.5))}


class Remembering(Points):
    """Error feedback inside the task: what the last upload of a client left out."""

    def __init__(self):
        self.errors = {}

    def train(self, client, start, local, stream):
        model = super().train(client, start, local, stream) + self.errors.get(client, np.float32(0))
        rounded = np.round(model, 1)
        self.errors[client] = model - rounded
        return rounded


def test_the_first_example_of_the_readme_runs():
    result = qafel.simulate(
        qafel.Mushrooms(clients=100),
        qafel.method("qafel", buffer_size=10, client_lr=2.0, server_lr=0.1),
        server_steps=50,
    )
    assert (result.summary["status"], result.summary["server_steps"]) == ("finished", 50)


# Seeds


def test_each_seed_gives_another_model_with_any_law_that_has_no_seed_of_its_own():
    task = qafel.Mushrooms(clients=20)
    quick = method("fedbuff", buffer_size=5, local_steps=1)
    laws = [None, Timing(duration=HalfNormal(scale=2.0)), Timing(arrivals=qafel.Poisson(rate=9.0))]
    for timing in laws:
        shas = {simulate(task, quick, timing, seed=seed, server_steps=5).summary["model_sha256"] for seed in range(3)}
        assert len(shas) == 3


def test_a_law_with_a_seed_of_its_own_draws_the_same_times_in_every_run():
    times = {
        simulate(TASK, METHOD, Timing(duration=HalfNormal(seed=7)), seed=seed, server_steps=5).summary["virtual_time"]
        for seed in range(3)
    }
    assert len(times) == 1


def test_an_object_and_the_settings_of_a_recipe_are_the_same_timing():
    assert sha() == sha(timing=Timing(duration=HalfNormal())) == sha(timing=Timing(duration="half-normal"))
    plain = Timing(arrivals="poisson", rate=3.0, draw="without-replacement")
    assert sha(timing=plain) == sha(timing=Timing(arrivals=qafel.Poisson(rate=3.0, draw="without-replacement")))


def test_a_law_outside_of_a_run_says_that_it_has_no_seed():
    with pytest.raises(ConfigError, match="seed"):
        HalfNormal().draw(0, 0)
    with pytest.raises(ConfigError, match="seed"):
        next(iter(qafel.ConstantRate(rate=1.0)))


# Strictness


def test_python_refuses_fedavg_without_rounds_with_the_sentence_of_the_command_line(tmp_path):
    with pytest.raises(ConfigError, match="fedavg needs clients that start in rounds") as refused:
        simulate(qafel.Mushrooms(), method("fedavg"), Timing(), server_steps=5)
    asynchronous = ["--set", "timing.arrivals=always-training", "--out", tmp_path / "out"]
    _, told = qafel_here("run", "mushrooms-fedavg", "--quiet", *asynchronous, expect=2)
    assert str(refused.value) in told
    assert not (tmp_path / "out").exists()


def test_rounds_and_laws_take_their_settings_by_name():
    for make in (Rounds, HalfNormal, qafel.LogNormal, qafel.Poisson, Timing, Limits):
        with pytest.raises(TypeError):
            make(10)


def test_duration_factors_above_one_make_clients_slower():
    slow = Timing(duration="constant", duration_factors=[2.0] * 6)
    times = [simulate(TASK, METHOD, timing, server_steps=6).summary["virtual_time"]
             for timing in (Timing(duration="constant"), slow)]  # fmt: skip
    assert times[1] == 2 * times[0]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"duration_factors": [1.0] * 3}, "duration_factors"),
        ({"dropout": [0.1] * 5}, "dropout"),
        ({"network": qafel.Network(upload_rate=1.0, rate_factors=(1.0, 2.0))}, "network.rate_factors"),
    ],
)
def test_the_lengths_of_settings_for_each_client_are_checked_before_any_training(settings, name):
    task = Points()
    with pytest.raises(ConfigError, match=f"{name} has . values, and the task has 4 clients"):
        simulate(task, method("fedbuff"), Timing(**settings), server_steps=5)
    assert not task.trained


class ByClient:
    """Client 0 is ten times slower than the others."""

    def draw(self, client, number):
        return 10.0 if client == 0 else 1.0


def test_durations_may_depend_on_the_client():
    result = simulate(TASK, METHOD, Timing(duration=ByClient()), virtual_time=9.5)
    assert result.summary["uploads"] == 5 * 9 + 1  # the first of time 10 ends the run


@pytest.mark.parametrize("dropout", [[0.999999] + [0.0] * 5, lambda client: 0.999999 if client == 0 else 0.0])
def test_dropout_may_depend_on_the_client(dropout):
    result = simulate(TASK, METHOD, Timing(duration=Constant(1.0), dropout=dropout), virtual_time=4.5)
    assert result.summary["uploads"] == 5 * 4


def test_a_dropout_that_is_not_a_share_is_refused():
    for wrong in (1.0, -0.1, [0.5, 2.0], "half"):
        with pytest.raises(ConfigError, match="share"):
            Timing(dropout=wrong)
    with pytest.raises(ConfigError, match="dropout"):
        simulate(TASK, METHOD, Timing(dropout=lambda client: 2.0), server_steps=3)


def pairs(clients):
    for number in range(60):
        yield number / 10, number % clients


def test_a_generator_is_refused_and_its_function_or_a_list_serve_every_run(tmp_path):
    with pytest.raises(ConfigError, match="generator function"):
        Timing(arrivals=pairs(6))
    listed = list(pairs(6))
    assert sha(timing=Timing(arrivals=pairs)) == sha(timing=Timing(arrivals=pairs))
    assert sha(timing=Timing(arrivals=pairs)) == sha(timing=Timing(arrivals=listed))
    resumed = {"timing": Timing(arrivals=pairs), "out": tmp_path / "run"}
    sha(**resumed, server_steps=7)
    assert sha(**resumed, resume=True) == sha(timing=Timing(arrivals=pairs))


def test_runs_with_different_lists_of_arrivals_are_different_runs(tmp_path):
    simulate(TASK, METHOD, Timing(arrivals=[(0.1 * number, 0) for number in range(9)]), out=tmp_path / "run")
    with pytest.raises(qafel.errors.OutputError, match="another configuration"):
        simulate(TASK, METHOD, Timing(arrivals=[(0.1 * number, 1) for number in range(9)]), out=tmp_path / "run")


def test_a_trace_takes_its_path_as_text_or_as_a_path(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time,client\n" + "".join(f"{time},{client}\n" for time, client in pairs(6)))
    assert sha(timing=Timing(arrivals=Trace(str(file)))) == sha(timing=Timing(arrivals=Trace(file)))
    assert sha(timing=Timing(arrivals=Trace(file))) == sha(timing=Timing(arrivals="trace", trace=str(file)))
    with pytest.raises(ConfigError, match="path"):
        Trace(7)


def test_settings_of_our_laws_beside_a_custom_law_are_refused():
    for settings in ({"duration": ByClient(), "scale": 2.0}, {"arrivals": pairs, "rate": 3.0}):
        with pytest.raises(ConfigError, match="custom law"):
            Timing(**settings)


# Limits and evaluation


def test_plain_limits_and_evaluation_are_those_of_the_objects():
    plain = simulate(TASK, METHOD, uploads=30, evaluate_every=7, evaluation_unit="uploads", target=1e-9)
    evaluation = qafel.Evaluation(every=7, unit="uploads", target=1e-9)
    objects = simulate(TASK, METHOD, limits=Limits(uploads=30), evaluation=evaluation)
    assert plain.settings == objects.settings
    assert plain.history["uploads"].tolist() == objects.history["uploads"].tolist()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"limits": Limits(uploads=3), "server_steps": 3}, "limits"),
        ({"evaluation": qafel.Evaluation(), "target": 3.0}, "evaluation"),
        ({"limits": 100}, "limits"),
        ({"server_steps": 0}, "server_steps"),
        ({"evaluation_unit": "days"}, "unit"),
        ({"at_target": True}, "target"),
        ({"total_bytes": math.nan}, "total_bytes"),
    ],
)
def test_a_wrong_limit_or_evaluation_is_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        simulate(TASK, METHOD, **options)


# Purity


@pytest.mark.parametrize("options", [{}, {"executor": "processes", "workers": 2}])
def test_a_task_that_remembers_its_clients_is_refused_and_pointed_to_client_rules(options, tmp_path):
    algorithm = method("fedbuff", buffer_size=2, client_lr=0.123)
    with pytest.raises(PartFailed, match="client rule"):
        simulate(Remembering(), algorithm, server_steps=5, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_an_impure_task_may_run_inline_and_is_not_resumed(tmp_path):
    impure = {"server_steps": 5, "pure": False, "out": tmp_path / "run"}
    algorithm = method("fedbuff", buffer_size=2)
    assert simulate(Remembering(), algorithm, **impure).summary["status"] == "finished"
    with pytest.raises(ConfigError, match="inline"):
        simulate(Remembering(), algorithm, **impure, executor="processes")
    with pytest.raises(ConfigError, match="resume"):
        simulate(Remembering(), algorithm, **impure, resume=True)
    with pytest.raises(qafel.errors.DataError, match="no checkpoint"):
        simulate(Points(), algorithm, server_steps=9, out=tmp_path / "run", resume=True)


def test_a_check_that_takes_too_long_is_skipped_with_a_warning(monkeypatch):
    monkeypatch.setattr(jobs, "_MOST_CHECK_S", -1.0)
    told = []
    simulate(Remembering(), method("fedbuff", buffer_size=2), server_steps=5, say=told.append)
    assert len(told) == 1
    assert "skipped" in told[0]


# Runs that fail


def diverging(**options):
    return simulate(Points(), method("fedbuff", buffer_size=2, server_lr=1e6), server_steps=60, **options)


def stalled(**options):
    return simulate(Points(), method("fedbuff", buffer_size=50), uploads=9, **options)


def with_a_loss_of_nan(**options):
    task = Points()
    task.evaluate = lambda model: {"metric": 0.5, "loss": math.nan}
    return simulate(task, method("fedbuff", buffer_size=2), server_steps=3, **options)


def with_a_trace_that_ends(**options):
    timing = Timing(arrivals=[(0.0, 0), (0.5, 1), (1.0, 2)])
    return simulate(Points(), method("fedbuff", buffer_size=4), timing, **options)


def with_every_upload_rejected(**options):
    return simulate(Points(), method("fedbuff", buffer_size=2, staleness=lambda tau: None), **options)


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (diverging, Diverged),
        (with_a_loss_of_nan, Diverged),
        (stalled, Stalled),
        (with_a_trace_that_ends, Stalled),
        (with_every_upload_rejected, Stalled),
    ],
)
def test_a_run_without_a_result_that_counts_raises_unless_it_is_not_checked(run, error, tmp_path):
    with pytest.raises(error) as raised, np.errstate(all="ignore"):
        run(out=tmp_path / "run")
    status = json.loads((tmp_path / "run/summary.json").read_text())["status"]
    assert isinstance(raised.value, RunFailed)
    assert status == raised.value.result.summary["status"] == error.reason
    with np.errstate(all="ignore"):
        assert run(check=False).summary["status"] == status


def test_a_stalled_run_continues_with_larger_limits(tmp_path):
    stalled(out=tmp_path / "run", check=False)
    longer = {"uploads": 120, "resume": True, "out": tmp_path / "run"}
    assert simulate(Points(), method("fedbuff", buffer_size=50), **longer).summary["server_steps"] == 2


def test_a_round_that_waits_forever_is_stalled():
    timing = Timing(arrivals="rounds", dropout=[0.999999, 0.0, 0.0, 0.0])
    with pytest.raises(Stalled, match="round_timeout"):
        simulate(Points(), method("fedavg", buffer_size=4), timing, server_steps=5)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        (["algorithm.server_lr=1e30", "stop.server_steps=20"], "diverged"),
        (["stop.uploads=5"], "stalled"),
    ],
)
def test_the_command_line_shows_such_a_run_and_ends_with_1(settings, status, tmp_path):
    options = [part for setting in settings for part in ("--set", setting)]
    with np.errstate(all="ignore"):
        shown, told = qafel_here(
            "run", "mushrooms-fedbuff", "--quiet", *options, "--json", "--out", tmp_path / "out", expect=1
        )
    assert json.loads(shown)["status"] == status
    assert status in told


# One function for all


def test_a_recipe_from_python_is_the_run_of_the_command_line(tmp_path):
    settings = ["stop.server_steps=20"]
    result = simulate(**load_recipe("mushrooms-qafel-4bit", settings).arguments(), out=tmp_path / "python")
    qafel_here("run", "mushrooms-qafel-4bit", "--quiet", "--set", settings[0], "--out", tmp_path / "command")
    summary = json.loads((tmp_path / "command/summary.json").read_text())
    assert result.summary["model_sha256"] == summary["model_sha256"]
    assert (tmp_path / "python/config.toml").read_text() == (tmp_path / "command/config.toml").read_text()
