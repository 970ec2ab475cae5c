"""Settings: validated, closed, frozen, and resolved once."""

import math

import pytest

from qafel.algorithm.methods import Preset
from qafel.config import Config, Timing, load_recipe
from qafel.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.bufer_size=3", "unknown key 'algorithm.bufer_size'; did you mean 'buffer_size'?"),
        ("timing.network.latensy=3", "unknown key 'timing.network.latensy'; did you mean 'latency'?"),
        ("algorithm.method=fedavg", "fedavg has client_quantizer"),
        ("algorithm.local_epochs=1", "local training lasts some steps or some epochs; got steps=10, epochs=1"),
        ("algorithm.client_lr=-1", "greater than 0"),
        ("algorithm.client_lr={cosine=100}", "client_lr_schedule"),
        ("stop.at_target=true", "at_target needs a target: set evaluation.target"),
        ("timing.dropout=1", "timing.dropout"),
        ("timing.dropout=[0.5,-1]", "timing.dropout"),
        ("timing.duration_factors=[1.0,0.0]", "timing.duration_factors.1: input should be greater than 0"),
        ("timing.arrivals=trace", "set trace"),
        ("timing.trace=a.csv", "trace is for arrivals = trace; found always-training"),
        ("timing.rate=3", "rate is for arrivals = constant or poisson"),
        ("timing.concurrency=3", "concurrency is for arrivals"),
        ("timing.draw=without-replacement", "draw is for arrivals"),
        ("timing.round_timeout=3", "round_timeout is for arrivals = rounds"),
        ("timing.over_selection=1", "over_selection is for arrivals = rounds"),
        ("timing.max_concurrency=10", "max_concurrency"),
        ("timing.spread=0.1", "spread is for duration = log-normal or uniform"),
        ("zzz=3", "unknown key 'zzz'; known are"),
        ("algorithm.buffer_size=ten", "algorithm.buffer_size: input should be a valid integer, found 'ten'"),
        ("algorithm.buffer_size=0", "algorithm.buffer_size: input should be greater than or equal to 1, found 0"),
        ("algorithm.server_momentum=1.5", "less than 1"),
        ("seed=9223372036854775808", "seed: input should be less than 9223372036854775808"),
        ("task={name='quadratic',data_seed=-9223372036854775809}", "task.data_seed: input should be greater than"),
        ("timing.speed_spread=1000", "timing.speed_spread: input should be less than or equal to 50"),
        ("timing.spread=1000", "timing.spread: input should be less than or equal to 50"),
        ("timing.network.spread=1000", "timing.network.spread: input should be less than or equal to 50"),
        ("algorithm.method=qafle", "unknown method 'qafle'; did you mean 'qafel'?"),
        ("algorithm.method=fedbuff", "fedbuff has client_quantizer = 'none' by definition"),
        ("algorithm.client_quantizer=qsdg:4", "qsgd"),
        ("algorithm.catch_up=snapshoot", "snapshot"),
        ("task.name=mushroom", "mushrooms"),
        ("task.name.first=a", "name is a value, not a section"),
        ("algorithm.client_quantizer.x=3", "client_quantizer={name="),
        ("stop.server_steps=1.5", "stop.server_steps: input should be a valid integer, found 1.5"),
        ("stop.server_steps=1e400", "stop.server_steps: input should be a valid integer, found inf"),
        ("stop.server_steps", "section.key=value"),
        ("=3", "section.key=value"),
    ],
)
def test_a_wrong_setting_gets_one_clear_sentence(override, words):
    with pytest.raises(ConfigError) as error:
        load_recipe("mushrooms-qafel-4bit", [override])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_whole_number_may_be_written_as_a_float():
    """And then it is the same run: `resume` goes on with it."""
    whole = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=1000", "task.clients=50", "seed=3"])
    assert load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=1e3", "task.clients=5e1", "seed=3.0"]) == whole
    table = Config.from_toml("stop.uploads = 2e4\nstop.virtual_time = 1e3\nalgorithm.client_lr = 2.0", "it")
    assert (repr(table.stop.uploads), repr(table.stop.virtual_time)) == ("20000", "1000.0")
    assert repr(table.algorithm.client_lr) == "2.0"


def test_catching_up_exactly_is_the_same_configuration_whether_stated_or_not():
    plain = load_recipe("mushrooms-qafel-4bit")
    assert load_recipe("mushrooms-qafel-4bit", ["algorithm.catch_up=exact"]) == plain
    chosen = load_recipe("mushrooms-qafel-4bit", ["algorithm.catch_up=link"])
    assert chosen != plain
    assert "link" in chosen.to_toml()


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_recipe("mushrooms-fedbuff").seed = 3


def test_a_method_is_resolved_once(monkeypatch):
    resolve, calls = Preset.resolve, []
    monkeypatch.setattr(Preset, "resolve", lambda self, *given: calls.append(1) or resolve(self, *given))
    config = Config.from_dict({"algorithm": {"method": "fedprox"}, "timing": {"arrivals": "rounds"}})
    assert config.algorithm.compose().local.proximal == config.algorithm.proximal == 0.1
    assert calls == [1]


@pytest.mark.parametrize(
    ("law", "mean"),
    [
        ({"duration": "half-normal", "scale": 2.0}, 2 * math.sqrt(2 / math.pi)),
        ({"duration": "log-normal", "spread": 0.5}, math.exp(0.125)),
        ({"duration": "uniform", "scale": 3.0}, 3.0),
        ({"duration": "constant"}, 1.0),
    ],
)
def test_a_concurrency_is_a_rate_times_the_mean_duration(law, mean):
    timing = Timing(arrivals="constant", concurrency=50, **law)
    assert timing.rate == pytest.approx(50 / mean)
    assert timing == Timing(arrivals="constant", rate=timing.rate, **law), "one of both is stated"


def test_rate_and_concurrency_exclude_each_other_and_the_later_one_counts(tmp_path):
    with pytest.raises(ConfigError, match="exclude"):
        Timing(arrivals="constant", rate=1.0, concurrency=2.0)
    with pytest.raises(ConfigError, match="concurrency"):
        Timing(arrivals="constant", concurrency=2.0, duration="tests.custom_parts:Anything")
    assert load_recipe("cifar10-fedbuff", ["timing.rate=125.0"]).timing.rate == 125.0
    assert load_recipe("cifar10-fedbuff", ["timing.rate=125.0", "timing.concurrency=80"]).timing.rate != 125.0
    (tmp_path / "mine.toml").write_text('extends = "cifar10-fedbuff"\n[timing]\nrate = 7.0\n')
    assert load_recipe(str(tmp_path / "mine.toml")).timing.rate == 7.0
    (tmp_path / "mine.toml").write_text('[timing]\narrivals = "constant"\nrate = 7.0\nconcurrency = 3\n')
    with pytest.raises(ConfigError, match="exclude"):
        load_recipe(str(tmp_path / "mine.toml"))


def test_another_law_drops_the_settings_that_it_does_not_read(tmp_path):
    (tmp_path / "mine.toml").write_text('extends = "cifar10-fedbuff"\n[timing]\narrivals = "always-training"\n')
    for config in (
        load_recipe("cifar10-fedbuff", ["timing.arrivals=always-training"]),
        load_recipe(str(tmp_path / "mine.toml")),
    ):
        assert config.timing == Timing()
    same = load_recipe("cifar10-fedbuff").timing
    assert load_recipe("cifar10-fedbuff", ["timing.arrivals=poisson"]).timing.rate == same.rate
    assert load_recipe("cifar10-fedbuff", ["timing.arrivals=my.laws:Law"]).timing.rate == Timing().rate


def test_a_huge_spread_is_no_error_of_arithmetic():
    assert Timing(arrivals="constant", concurrency=2, duration="log-normal", spread=50).rate > 0
