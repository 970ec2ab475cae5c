"""`qafel.errors` holds every error a user can meet, and its docstring draws the tree."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import qafel
from qafel import errors
from qafel.config import load_recipe
from qafel.simulator import simulate
from tests.command import qafel_here

SOURCES = Path(qafel.__file__).parent
ERRORS = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


def classes_with_bases() -> list[tuple[Path, str, set[str]]]:
    return [
        (path, node.name, {re.split(r"[.\[]", ast.unparse(base))[-1] for base in node.bases})
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def test_no_error_of_this_package_is_defined_elsewhere():
    elsewhere = [
        f"{path.relative_to(SOURCES)}: {name}"
        for path, name, bases in classes_with_bases()
        if path.name != "errors.py" and bases & set(ERRORS)
    ]
    assert not elsewhere, "move to errors.py"


def test_other_exceptions_are_private_to_their_module():
    """They never reach a user."""
    public = [
        f"{path.relative_to(SOURCES)}: {name}"
        for path, name, bases in classes_with_bases()
        if path.name != "errors.py" and not name.startswith("_") and any(re.search("Error|Exception", b) for b in bases)
    ]
    assert not public


def test_the_tree_in_the_docstring_is_the_tree():
    drawn, parents = {}, []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│ ]*(?:[├└]── )?)([A-Z]\w+)(?:  |$)", line)
        if found:
            depth, name = len(found[1]) // 4, found[2]
            parents = [*parents[:depth], name]
            drawn[name] = parents[depth - 1] if depth else "Exception"
    assert drawn == {name: kind.__base__.__name__ for name, kind in ERRORS.items()}


def test_every_counted_error_has_a_reason_of_its_own():
    counted = (errors.MessageError, errors.RejectedUpload, errors.HiddenStateError, errors.RunFailed)
    reasons = [kind.reason for kind in ERRORS.values() if issubclass(kind, counted)]
    assert "error" not in reasons
    assert len(set(reasons)) == len(reasons)


def texts(path: Path) -> list[str]:
    """All text that a module may show; docstrings are not shown."""
    tree = ast.parse(path.read_text())
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in found if id(node) not in documents]


def test_only_the_command_line_names_its_options():
    """A caller in Python has none. A message may name a whole command, such as `qafel broker add --client 3`."""
    commands = {"cli", "bench"}
    named = [
        f"{path.relative_to(SOURCES)}: {text}"
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in commands
        for text in texts(path)
        if re.search(r"(^|[\s(`])--[a-z]", re.sub(r"qafel [a-z]+ [^`)]*", "", text))
    ]
    assert not named, "name the argument in backticks: the command line shows its option"


def test_an_error_names_an_argument_and_the_command_line_its_option(tmp_path):
    out = tmp_path / "run"
    command = ["run", "mushrooms-fedbuff", "--set", "stop.server_steps=3", "--quiet", "--out", out]
    qafel_here(*command)
    with pytest.raises(errors.OutputError, match="`overwrite`"):
        simulate(**load_recipe("mushrooms-fedbuff", ["stop.server_steps=3"], seed=1).arguments(), out=out)
    assert "--overwrite" in qafel_here(*command, "--seed", 1, expect=2)[1]
