"""Recipes: found by name or path, read once, extended and overridden."""

import math

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


NEURAL = [name for name in recipes() if name.startswith(("cifar10-", "celeba-", "shakespeare-"))]


@pytest.mark.parametrize("name", NEURAL)
def test_the_neural_recipes_do_as_the_published_runs(name):
    config = load_recipe(name)
    assert (config.evaluation.every, config.evaluation.unit) == (500, "uploads")
    assert config.timing.rate == pytest.approx(100 / math.sqrt(2 / math.pi))


def test_half_of_the_coordinates_is_56_as_in_the_published_run():
    quantizer = load_recipe("mushrooms-direct-topk").algorithm.compose().server_quantizer
    assert quantizer.count(113) == 56


def test_overrides_and_seed_apply_in_order():
    config = load_recipe(
        "mushrooms-qafel-4bit", ["stop.server_steps=5", "algorithm.server_quantizer=top_k:0.1"], seed=9
    )
    assert (config.stop.server_steps, config.algorithm.server_quantizer, config.seed) == (5, "top_k:0.1", 9)


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


def test_a_recipe_may_extend_another(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "mushrooms-qafel-4bit"\nname = "mine"\n[algorithm]\nbuffer_size = 20\n')
    config = load_recipe(str(path))
    assert (config.name, config.algorithm.buffer_size, config.algorithm.client_quantizer) == ("mine", 20, "qsgd:4")
    path.write_text('extends = "mushrooms-qafel-4bits"\n')
    with pytest.raises(ConfigError, match="extends the unknown recipe .* did you mean 'mushrooms-qafel-4bit'"):
        load_recipe(str(path))


def test_the_recipe_list_is_read_once():
    assert recipes() is recipes()
