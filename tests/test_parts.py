"""From an import path to a part: what is found, what is called, and one sentence for what goes wrong."""

import importlib
import sys

import pytest

from qafel import parts
from qafel.errors import ConfigError
from qafel.parts import PartKind, PartTable, find, is_path
from tests.custom_parts import write_folder

TASK = PartKind("task", ("train", "evaluate"))
LAW = PartKind("staleness law", ("__call__",))
DURATIONS = PartKind("duration law", ("draw",))


def make(path, kind, arguments=None, **options):
    """The part of a table with a name and arguments."""
    return parts.make(PartTable(name=path, **arguments) if arguments else path, kind, **options)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module that is in the current folder and nowhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return write_folder(tmp_path)


def test_the_current_folder_is_first_for_the_import_and_last_afterwards(tmp_path, own):
    (tmp_path / "colorsys.py").write_text("shadow = True")
    known = sys.modules.pop("colorsys", None)
    try:
        before = [*sys.path]
        assert find("colorsys:shadow") is True
        assert sys.path == [*before, str(tmp_path)]
        del sys.modules["colorsys"]
        # Found where it always was: nothing that others import is shadowed.
        assert hasattr(importlib.import_module("colorsys"), "rgb_to_hsv")
    finally:
        if known is not None:
            sys.modules["colorsys"] = known


def test_a_class_a_function_that_makes_it_and_an_object_are_parts(own):
    assert make(f"{own}:Rooms", TASK).clients == 20
    assert make(f"{own}:Rooms", TASK, {"clients": 7}).clients == 7
    assert make(f"{own}:small_rooms", TASK).clients == 5
    assert make(f"{own}:ROOMS", TASK) is make(f"{own}:ROOMS", TASK)


def test_a_law_may_be_the_function_itself_and_gets_its_arguments_with_every_call(own):
    assert [make(f"{own}:only_fresh", LAW)(late) for late in (3, 4)] == [1.0, 0.1]
    assert [make(f"{own}:only_fresh", LAW, {"cut": 4})(late) for late in (4, 5)] == [1.0, 0.1]
    assert make(f"{own}:Halving", LAW, {"every": 2})(5) == 0.25


def test_what_is_offered_goes_to_those_who_have_a_parameter_for_it(own):
    law = make(f"{own}:Thirds", DURATIONS, {"scale": 2.0}, offered={"seed": 4, "clients": 9})
    assert (law.seed, law.scale) == (4, 2.0)
    assert make(f"{own}:Thirds", DURATIONS, {"seed": 5}, offered={"seed": 4}).seed == 5


@pytest.mark.parametrize(
    ("path", "arguments", "sentence"),
    [
        ("nowhere_at_all:Rooms", {}, "module 'nowhere_at_all'"),
        ("nowhere_at_all.tasks:Rooms", {}, "module 'nowhere_at_all'"),
        ("MODULE.tasks:Rooms", {}, "module 'MODULE.tasks'"),
        ("mushroms:Rooms", {}, "did you mean 'mushrooms'?"),
        ("MODULE:Room", {}, "'Room'; did you mean 'Rooms'?"),
        ("MODULE:Rooms.make", {}, "'make'"),
        ("MODULE:Rooms", {"cliens": 3}, "'cliens'; did you mean 'clients'?"),
        ("MODULE:small_rooms", {"clients": 3}, "task MODULE:small_rooms does not take 'clients'"),
        ("MODULE:Halving", {}, "task MODULE:Halving needs the argument 'every'"),
        ("MODULE:Rooms", {"size": -1}, "task MODULE:Rooms(size=-1) raised "),
        ("MODULE:ROOMS", {"clients": 3}, "is an object, which takes no arguments"),
        ("MODULE:Half", {}, "train, evaluate"),
        ("MODULE:__doc__", {}, "train, evaluate"),
        ("MODULE", {}, "an import path is package.module:Name"),
        ("broken:Rooms", {}, "importing broken raised ZeroDivisionError: division by zero (FOLDER/broken.py, line 2)"),
        ("torn:Rooms", {}, "importing torn raised SyntaxError"),
        ("lacking:Rooms", {}, "importing lacking raised ModuleNotFoundError: No module named 'not_installed'"),
        ("leaving:Rooms", {}, "importing leaving raised SystemExit: 3"),
    ],
)
def test_whatever_is_wrong_is_one_sentence(tmp_path, own, path, arguments, sentence):
    (tmp_path / "broken.py").write_text("x = 1\n1 / 0\n")
    (tmp_path / "torn.py").write_text("def f(:\n")
    (tmp_path / "lacking.py").write_text("import not_installed\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ConfigError) as error:
        make(path.replace("MODULE", own), TASK, arguments, known={"mushrooms": None, "quadratic": None})
    assert sentence.replace("MODULE", own).replace("FOLDER", str(tmp_path)) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_form_of_a_path():
    assert all(map(is_path, ("a:B", "a.b.c:D", "a.b:C.d", "_a:_b")))
    assert not any(
        map(is_path, ("qsgd:4", "a", "a:", ":b", "a.:b", "a:b:c", "a b:c", "top_k:0.1", "a:b=c", "a/b:c", ""))
    )


def test_what_is_missing_is_noticed_without_an_import(own):
    assert parts.missing(f"{own}:Anything") is None
    assert "module 'nowhere_at_all'" in parts.missing("nowhere_at_all.tasks:Rooms")
    assert own not in sys.modules
