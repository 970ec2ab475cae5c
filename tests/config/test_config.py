"""Settings: validated, closed, and the same after a round trip."""

import pytest

from qafel.config import Config, load_recipe, recipes
from qafel.errors import ConfigError

PUBLISHED = [
    f"mushrooms-{name}" for name in ("fedbuff", "qafel-qsgd", "direct-qsgd", "qafel-topk", "direct-topk", "qafel-4bit")
]
PAPER = {"buffer_size": 10, "local_steps": 10, "client_lr": 2.0, "server_lr": 0.1}


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_loads_and_is_named_like_its_file(name):
    config = load_recipe(name)
    assert config.name == name
    assert config.description
    assert Config.from_toml(config.to_toml(), name) == config


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_mushrooms_recipes_have_the_papers_numbers(name):
    config = load_recipe(name)
    assert config.task.clients == 100
    assert config.stop.server_steps == 10_000
    assert {key: getattr(config.algorithm, key) for key in PAPER} == PAPER


def test_overrides_and_seed_apply_in_order():
    config = load_recipe(
        "mushrooms-qafel-4bit", ["stop.server_steps=5", "algorithm.server_quantizer=top_k:0.1"], seed=9
    )
    assert (config.stop.server_steps, config.algorithm.server_quantizer, config.seed) == (5, "top_k:0.1", 9)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.bufer_size=3", "unknown key 'algorithm.bufer_size'; did you mean 'buffer_size'?"),
        ("timing.network.latensy=3", "unknown key 'timing.network.latensy'; did you mean 'latency'?"),
        ("algorithm.preset=fedavg", "fedavg has client_quantizer"),
        ("algorithm.preset=mcm", 'mcm is synchronous: it needs timing.arrivals = "rounds"'),
        ("algorithm.local_epochs=1", "local_steps or local_epochs, not both"),
        ("stop.at_target=true", "stop.at_target needs evaluation.target"),
        ("timing.arrivals=trace", "go together"),
        ("zzz=3", "unknown key 'zzz'; known are"),
        ("algorithm.buffer_size=ten", "algorithm.buffer_size: input should be a valid integer, found 'ten'"),
        ("algorithm.buffer_size=0", "algorithm.buffer_size: input should be greater than or equal to 1, found 0"),
        ("algorithm.server_momentum=1.5", "less than 1"),
        ("seed=9223372036854775808", "seed: input should be less than 9223372036854775808"),
        ("task={name='quadratic',data_seed=-9223372036854775809}", "task.data_seed: input should be greater than"),
        ("timing.speed_spread=1000", "timing.speed_spread: input should be less than or equal to 50"),
        ("timing.spread=1000", "timing.spread: input should be less than or equal to 50"),
        ("timing.network.spread=1000", "timing.network.spread: input should be less than or equal to 50"),
        ("algorithm.preset=qafle", "unknown preset 'qafle'; did you mean 'qafel'?"),
        ("algorithm.preset=fedbuff", "fedbuff has client_quantizer = 'none' by definition"),
        ("algorithm.client_quantizer=qsdg:4", "qsgd"),
        ("task.name=mushroom", "mushrooms"),
        ("task.name.first=a", "name is a value, not a section"),
        ("stop.server_steps", "--set takes section.key=value"),
        ("=3", "--set takes section.key=value"),
    ],
)
def test_a_wrong_setting_gets_one_clear_sentence(override, words):
    with pytest.raises(ConfigError) as error:
        load_recipe("mushrooms-qafel-4bit", [override])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mushrooms-fedbuff'"):
        load_recipe("mushroom-fedbuf")


def test_a_recipe_file_is_read_by_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[stop]\nserver_steps = 3\n')
    assert load_recipe(str(path)).stop.server_steps == 3
    path.write_text("name = ")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_recipe(str(path))
    with pytest.raises(ConfigError, match=r"gone.toml cannot be read"):
        load_recipe(str(tmp_path / "gone.toml"))


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_recipe("mushrooms-fedbuff").seed = 3


@pytest.mark.parametrize("name", ["mushrooms", "quadratic", "logistic"])
def test_a_tasks_settings_become_the_task(name):
    task = Config.from_dict({"task": {"name": name, "clients": 6}}).task.make()
    assert (task.name, task.clients) == (name, 6)


def test_a_recipe_may_extend_another(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "mushrooms-qafel-4bit"\nname = "mine"\n[algorithm]\nbuffer_size = 20\n')
    config = load_recipe(str(path))
    assert (config.name, config.algorithm.buffer_size, config.algorithm.client_quantizer) == ("mine", 20, "qsgd:4")
    path.write_text('extends = "mushrooms-qafel-4bits"\n')
    with pytest.raises(ConfigError, match="extends the unknown recipe .* did you mean 'mushrooms-qafel-4bit'"):
        load_recipe(str(path))
