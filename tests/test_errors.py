"""`qafel.errors` holds every error a user can meet, and its docstring draws the tree."""

import ast
import inspect
import re
from pathlib import Path

import qafel
from qafel import errors

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
    """They never reach a user: whoever raises one catches it."""
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


def test_every_error_has_a_reason_of_its_own():
    reasons = [kind.reason for kind in ERRORS.values() if kind is not errors.UserError]
    assert len(set(reasons)) == len(reasons)
