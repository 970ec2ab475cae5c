"""What a sweep runs: every recipe with every seed and combination, under names of their own; mistakes show first."""

import pytest

from qafel.config import load_recipe
from qafel.errors import ConfigError
from qafel.search.sweeps import as_settings, grid, parse_seeds, parse_settings, require_sound
from qafel.simulator import Simulation

TWO = ["mushrooms-qafel-4bit", "mushrooms-fedbuff"]


def test_recipes_times_seeds_times_settings():
    settings = parse_settings(["algorithm.client_lr=1,2", "stop.uploads=500", "algorithm.local_steps=1,5"])
    runs = grid(TWO, [0, 7], settings)
    assert len({run.folder for run in runs}) == len(runs) == 2 * 2 * 2 * 2
    assert runs[3].folder == "mushrooms-qafel-4bit-client_lr=1-local_steps=5-seed7"
    assert runs[3].at == {"algorithm.client_lr": 1.0, "algorithm.local_steps": 5}
    expected = ["algorithm.client_lr=1", "algorithm.local_steps=5", "stop.uploads=500"]
    assert runs[3].config == load_recipe(TWO[0], [*expected, f'name="{runs[3].config.name}"'], 7)


def test_a_recipe_alone_is_what_qafel_run_would_make():
    (run,) = grid(["mushrooms-fedbuff"], [3], {})
    assert (run.folder, run.config) == ("mushrooms-fedbuff-seed3", load_recipe("mushrooms-fedbuff", (), 3))


def test_values_with_commas_and_repeated_settings():
    specs = ["rand_k:0.25,values=rotated:1", "top_k:0.5,round=down", "qsgd:4"]
    path = "algorithm.client_quantizer"
    found = parse_settings([f"{path}={specs[0]},{specs[1]}", f"{path}={specs[2]}"])
    assert found == {path: specs}
    runs = grid(["mushrooms-qafel-4bit"], [0], found)
    assert [run.config.algorithm.client_quantizer for run in runs] == specs
    assert runs[0].folder == "mushrooms-qafel-4bit-client_quantizer=rand_k-0.25-values=rotated-1-seed0"


@pytest.mark.parametrize(
    ("text", "seeds"), [("5", [0, 1, 2, 3, 4]), ("3,7,9", [3, 7, 9]), ("7,", [7]), ("2, 2,-1", [2, -1])]
)
def test_seeds_are_how_many_or_which(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-3", "", ",", "five", "1.5", "1-3", "20261119", "0,9223372036854775808"])
def test_seeds_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="`seeds`"):
        parse_seeds(text)


def test_python_values_are_settings():
    settings = as_settings(
        {"algorithm.client_lr": [0.5, 1], "algorithm.client_quantizer": "qsgd:4", "stop.at_target": True}
    )
    assert settings["algorithm.client_quantizer"] == ['"qsgd:4"']
    runs = grid(["mushrooms-fedbuff"], [0], as_settings({"algorithm.client_lr": (0.5, 1.0), "stop.uploads": 9}))
    assert [(run.config.algorithm.client_lr, run.config.stop.uploads) for run in runs] == [(0.5, 9), (1.0, 9)]
    with pytest.raises(ConfigError, match="numbers"):
        as_settings({"algorithm.client_lr": object()})


def test_a_concurrency_is_shown_as_it_was_set():
    """The configuration states the rate that gives it."""
    settings = {"timing.arrivals": ["constant"], "timing.concurrency": ["10", "20"]}
    runs = grid(["mushrooms-fedbuff"], [0], settings)
    assert [run.at for run in runs] == [{"timing.concurrency": 10}, {"timing.concurrency": 20}]


def test_values_that_give_the_same_folder_are_told_apart():
    runs = grid([{"name": "own"}], [0], {"description": ["a:b", "a-b"]})
    assert len({run.folder for run in runs}) == 2
    assert runs[0].folder == "own-description=a-b-seed0"


def test_a_long_name_is_cut_and_stays_the_same():
    settings = {"description": ["x" * 300, "x" * 301]}
    first, second = (grid([{"name": "own"}], [0], settings) for _ in range(2))
    assert [run.folder for run in first] == [run.folder for run in second]
    assert len({run.folder for run in first}) == 2
    assert all(len(run.folder) < 140 for run in first)


def test_files_of_one_name_are_called_as_their_files(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.toml").write_text('extends = "mushrooms-fedbuff"\n')
    assert [run.folder for run in grid([str(tmp_path / "a.toml"), tmp_path / "b.toml"], [0], {})] == [
        "a-seed0",
        "b-seed0",
    ]
    with pytest.raises(ConfigError, match="'run'"):
        grid([{"stop": {"uploads": 1}}, {"stop": {"uploads": 2}}], [0], {})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["algorithm.client_lr=1,-2"], "client_lr"),
        (["algorithm.client_quantizer=qsgd:4,qsgdd:4"], "did you mean 'qsgd'"),
        (["algorithm.client_lr=1,2", "stop.upload=3"], "unknown key 'stop.upload'"),
        (["algorithm.method=qafel,fedavg"], r"by definition.*\(at algorithm.method=fedavg\)"),
        (["seed=1,2"], "`seeds`"),
        (["algorithm.client_lr"], "section.key=value"),
        (["algorithm.client_lr=1,,2"], "section.key=value"),
    ],
)
def test_a_mistake_in_one_combination_is_found_in_the_plan(settings, words):
    with pytest.raises(ConfigError, match=words):
        grid(["mushrooms-qafel-4bit"], [0, 1], parse_settings(settings))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("task.clients=10,9000", "clients=9000-seed0: .*8124"),
        ("algorithm.batch_size=8", "fedbuff-seed0: .*batch_size"),
        ("timing.trace=gone.csv", "gone.csv"),
    ],
)
def test_a_mistake_that_only_the_task_knows_is_found_before_anything_runs(setting, words):
    more = ["timing.arrivals=trace"] if "trace" in setting else []
    with pytest.raises(ConfigError, match=words):
        require_sound(grid(["mushrooms-fedbuff"], [0, 1], parse_settings([setting, *more])))


def test_each_kind_is_tried_once(monkeypatch):
    tried = []
    begin = Simulation.begin
    monkeypatch.setattr(Simulation, "begin", lambda self: [tried.append(self.algorithm.local.lr), begin(self)])
    settings = {"algorithm.client_lr": ["1", "2"], "stop.uploads": ["9"]}
    assert not require_sound(grid(["mushrooms-fedbuff"], [0, 1, 2], settings))
    assert tried == [1, 2]


def test_each_warning_is_said_once():
    settings = {"algorithm.client_lr": ["1", "2"], "algorithm.client_quantizer": ["top_k:0.1"]}
    assert len(require_sound(grid(["mushrooms-qafel-4bit"], [0, 1], settings))) == 1
