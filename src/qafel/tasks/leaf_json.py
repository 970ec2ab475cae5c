"""LEAF's own files: JSON with the samples of each user.

    {"users": ["a", …], "num_samples": [2, …], "user_data": {"a": {"x": […], "y": […]}, …}}

S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018. `preprocess.sh` writes such files into `data/train`
and `data/test`; all files of a folder belong together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from qafel.errors import DataError


@final
@dataclass(frozen=True)
class LeafPart:
    """All samples of a folder of LEAF files, one after the other, and the number of each sample's user."""

    names: list[str]
    users: list[int]
    x: list[Any]
    y: list[Any]


def leaf_files(folder: Path, dataset: str) -> list[Path]:
    """The JSON files of a folder, in order of their names."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(
            f"{dataset}: there is no LEAF file in {folder}: expected *.json, as LEAF's preprocess.sh writes them"
        )
    return files


def read_leaf(files: list[Path], dataset: str) -> LeafPart:
    """The samples of all files; a user that is in several has the samples of all."""
    numbers: dict[str, int] = {}
    part = LeafPart([], [], [], [])
    for path in files:
        for name, xs, ys in _users_of(path, dataset):
            number = numbers.setdefault(name, len(numbers))
            part.users.extend([number] * len(xs))
            part.x.extend(xs)
            part.y.extend(ys)
    part.names.extend(numbers)
    return part


def _users_of(path: Path, dataset: str) -> list[tuple[str, list[Any], list[Any]]]:
    damaged = f"{dataset}: {path} is no LEAF file"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = [
            (str(name), content["user_data"][name]["x"], content["user_data"][name]["y"]) for name in content["users"]
        ]
    except (OSError, ValueError) as error:
        raise DataError(f"{damaged}: {error}") from None
    except (KeyError, TypeError):
        raise DataError(f'{damaged}: expected "users", and "user_data" with "x" and "y" for each') from None
    for name, xs, ys in found:
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            raise DataError(f"{damaged}: user {name!r} should have as many x as y")
    return found
