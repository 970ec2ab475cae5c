"""Settings that name parts: one form everywhere, kept as text, and imported by nobody who only reads them."""

import sys

import pytest

from qafel.config import Config, load_recipe
from qafel.errors import ConfigError
from tests.custom_parts import write_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_to_read_a_recipe_imports_nothing_and_says_it_all_again(folder):
    module = write_folder(folder)
    config = load_recipe("own.toml")
    assert module not in sys.modules
    assert Config.from_toml(config.to_toml(), "again") == config
    assert config.task.model_dump(exclude_none=True) == {"name": f"{module}:Rooms", "arguments": {"clients": 30}}
    assert config.timing.model_dump()["arrivals"] == {"name": f"{module}:every", "gap": 0.02}
    assert config.task.missing() is None
    assert config.task.make().clients == 30


def test_a_table_without_arguments_is_the_name(folder):
    write_folder(folder)
    named, table = (load_recipe("own.toml", [f"timing.duration={one}"]) for one in ("a.b:C", "{name='a.b:C'}"))
    assert named == table
    assert 'duration = "a.b:C"' in table.to_toml()


def test_settings_reach_into_a_table(folder):
    write_folder(folder)
    config = load_recipe("own.toml", ["timing.arrivals.gap=0.5", "task.arguments.size=2"])
    assert config.timing.arrivals.arguments == {"gap": 0.5}
    assert config.task.arguments == {"clients": 30, "size": 2}


def test_a_known_family_comes_first(folder):
    for spec in ("qsgd:4", "scaled:qsgd:4", "none", "top_k:0.1,values=qsgd:4"):
        write_folder(folder)
        assert load_recipe("own.toml", [f"algorithm.client_quantizer={spec}"]).algorithm.custom_parts_at_client() == {}
    (folder / "qsgd.py").write_text("raise SystemExit('imported')")
    with pytest.raises(ConfigError, match="bits must be a whole number"):
        load_recipe("own.toml", ["algorithm.client_quantizer=qsgd:four"])


def test_an_own_task_takes_nothing_over_from_the_recipes_task(folder):
    module = write_folder(folder)
    (folder / "extending.toml").write_text(f'extends = "mushrooms-qafel-4bit"\n[task]\nname = "{module}:Rooms"\n')
    for config in (
        load_recipe("extending.toml"),
        load_recipe("mushrooms-qafel-4bit", [f"task.name={module}:Rooms"]),
        load_recipe("mushrooms-qafel-4bit", ["task.clients=3", f"task.name={module}:Rooms"]),
    ):
        assert config.task.model_dump(exclude_none=True) == {"name": f"{module}:Rooms", "arguments": {}}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("task.name=mushroms", "unknown task 'mushroms'; did you mean 'mushrooms'?"),
        ("task.clients=3", "unknown key 'task.clients'"),
        ("task.argumens={}", "unknown key 'task.argumens'; did you mean 'arguments'?"),
        ("task.arguments=3", "task.arguments: "),
        ("task.arguments.when=2020-01-01", "task.arguments.when: "),
        ("timing.duration=half-norml", "unknown duration law 'half-norml'; did you mean 'half-normal'?"),
        ("timing.arrivals=poison", "timing.arrivals: unknown arrival law 'poison'; did you mean 'poisson'?"),
        ("timing.arrivals=3", "timing.arrivals: a part is a name, or a table"),
        ("algorithm.accumulator=[1]", "algorithm.accumulator: a part is a name, or a table"),
        ("timing.duration={x=1}", "timing.duration: a part is a name, or a table"),
        ("timing.duration={name=3,x=1}", "timing.duration: a part is a name, or a table"),
        ("timing.duration={name='a:B',x=2020-01-01}", "timing.duration: arguments are numbers"),
        ("algorithm.accumulator=man", "algorithm.accumulator: unknown accumulator 'man'; did you mean 'mean'?"),
        ("algorithm.server_rule=sdg", "algorithm.server_rule: unknown server rule 'sdg'; did you mean 'sgd'?"),
        ("algorithm.client_quantizer=qsdg:4", "unknown quantizer 'qsdg'; did you mean 'qsgd'?"),
    ],
)
def test_a_wrong_name_is_one_sentence(folder, override, words):
    write_folder(folder)
    with pytest.raises(ConfigError) as error:
        load_recipe("own.toml", [override])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_own_quantizer_may_be_a_near_miss(folder):
    write_folder(folder)
    with pytest.raises(ConfigError, match="module 'qsdg' .*; did you mean 'qsgd'?"):
        load_recipe("own.toml", ["algorithm.client_quantizer=qsdg:four"]).algorithm.compose()
