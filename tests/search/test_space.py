"""What may be searched, and how it is written."""

import pytest

from qafel.config import load_recipe
from qafel.errors import ConfigError
from qafel.search.space import (
    Choices,
    Range,
    all_settings,
    default_search,
    parse_search,
    recipe_settings,
    uneven,
    with_settings,
)

CONFIG = load_recipe("mushrooms-qafel-4bit")


def parsed(text):
    (dimension,) = parse_search([f"algorithm.{text}"], CONFIG).values()
    return dimension


def test_ranges_and_choices_are_told_apart():
    assert parsed("client_lr=1e-3:10:log") == Range(1e-3, 10, log=True)
    assert parsed("client_lr=1:10") == Range(1, 10)
    assert parsed("buffer_size=4:32:log") == Range(4, 32, log=True, whole=True)
    assert parsed("buffer_size=4, 8,16") == Choices((4, 8, 16))
    assert parsed("server_momentum=0.0:0.9:linear") == Range(0, 0.9)
    assert parsed("server_momentum=0,0.9") == Choices((0, 0.9))
    assert parsed("clip_norm=1:4") == Range(1, 4), "the recipe sets none, and fractions are valid"
    assert parsed("max_staleness=1:4") == Range(1, 4, whole=True)
    assert parsed("client_quantizer=qsgd:2,qsgd:4,none") == Choices(("qsgd:2", "qsgd:4", "none"))


def test_a_comma_inside_a_quantizer_spec_does_not_part_it():
    specs = ("qsgd:levels=8,norm=l2,bucket=none", "top_k:0.1,values=qsgd:4", "qsgd:4")
    assert parsed(f"server_quantizer={','.join(specs)}") == Choices(specs)


def test_what_is_written_back_reads_the_same():
    for text in ("client_lr=0.001:10:log", "buffer_size=4:32", "client_quantizer=qsgd:2,top_k:0.1,values=qsgd:4"):
        dimension = parsed(text)
        assert parsed(f"{text.partition('=')[0]}={dimension}") == dimension


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("algorithm.client_lr", "low:high"),
        ("algorithm.client_lr=", "low:high"),
        ("client_lr=1:2", "Only settings"),
        ("stop.server_steps=10:20", "Only settings"),
        ("algorithm.client_lrr=1:2", "did you mean 'client_lr'"),
        ("algorithm.client_lr=2:1", "to a larger one"),
        ("algorithm.client_lr=1:1e999", "to a larger one"),
        ("algorithm.client_lr=0:1:log", "above zero"),
        ("algorithm.client_lr=-1:1", "client_lr"),
        ("algorithm.server_momentum=0:1", "less than 1"),
        ("algorithm.buffer_size=4,4", "different"),
        ("algorithm.buffer_size=4,many", "integer"),
        ("algorithm.client_quantizer=qsgd:2,qsdg:4", "did you mean 'qsgd'"),
        ("algorithm.local_epochs=1:3", "some steps or some epochs"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_search([text], CONFIG)


def test_a_setting_is_searched_once():
    with pytest.raises(ConfigError, match="twice"):
        parse_search(["algorithm.client_lr=1:2", "algorithm.client_lr=1:3"], CONFIG)


def test_by_default_both_learning_rates_are_searched_two_decades_to_either_side():
    search = parse_search([], CONFIG)
    assert {path: str(dimension) for path, dimension in search.items()} == {
        "algorithm.client_lr": "0.02:200:log",
        "algorithm.server_lr": "0.001:10:log",
    }
    assert recipe_settings(CONFIG, search) == {"algorithm.client_lr": 2.0, "algorithm.server_lr": 0.1}


def test_the_recipes_own_settings_are_a_trial_only_where_the_search_holds_them():
    assert recipe_settings(CONFIG, {"algorithm.client_quantizer": Choices(("qsgd:2", "none"))}) is None
    assert recipe_settings(CONFIG, {"algorithm.buffer_size": Range(4, 10, whole=True)}) == {"algorithm.buffer_size": 10}


def test_what_a_method_fixes_is_not_searched():
    asynchronous = load_recipe("mushrooms-fedbuff")
    assert list(default_search(asynchronous)) == ["algorithm.client_lr", "algorithm.server_lr"]
    with pytest.raises(ConfigError, match="by definition"):
        parse_search(["algorithm.client_quantizer=none,qsgd:4"], asynchronous)


def test_only_what_is_searched_changes():
    changed = with_settings(CONFIG, {"algorithm.client_lr": 1.5, "algorithm.server_quantizer": "qsgd:2"})
    assert changed.algorithm.client_lr == 1.5
    assert changed.algorithm.server_quantizer == "qsgd:2"
    assert changed.model_copy(update={"algorithm": CONFIG.algorithm}) == CONFIG


def test_drawn_values_have_four_digits_and_stay_inside():
    assert Range(1e-3, 10, log=True).tidy(0.0123456) == 0.01235
    assert Range(0.12349, 1).tidy(0.12349) == 0.1235
    assert Range(0.12341, 1).tidy(0.12341) == 0.12341
    assert Range(4, 32, whole=True).tidy(7) == 7


def test_all_settings_are_counted_where_they_can_be():
    search = {
        "algorithm.buffer_size": Range(4, 6, whole=True),
        "algorithm.client_quantizer": Choices(("none", "qsgd:4")),
    }
    assert len(all_settings(search)) == 6
    assert {"algorithm.buffer_size": 6, "algorithm.client_quantizer": "none"} in all_settings(search)
    assert all_settings({**search, "algorithm.client_lr": Range(0.1, 1.0)}) is None
    assert all_settings({**search, "algorithm.local_steps": Range(1, 10_000, whole=True)}) is None


def test_a_search_of_the_buffer_size_is_warned_of_what_is_counted_in_steps():
    sizes = {"algorithm.buffer_size": Choices((5, 10, 20))}
    even = ["stop.uploads=50000", "evaluation.unit=uploads"]
    warnings = [uneven(load_recipe("mushrooms-qafel-4bit", even[:count]), sizes) for count in range(3)]
    assert "Set stop.uploads=50000 and evaluation.unit=uploads" in warnings[0]
    assert warnings[1].endswith("Set evaluation.unit=uploads.")
    assert warnings[2] is None
    assert uneven(load_recipe("mushrooms-qafel-4bit", ["stop.uploads=50001", even[1]]), sizes) is not None
    assert uneven(CONFIG, {"algorithm.client_lr": Range(0.1, 1)}) is None
