"""Run folders with something odd in them: values that belong elsewhere, and files that are none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_DEEP = 100_000

VALUES: Mapping[str, str] = {
    "a word": '"word"',
    "nothing": '""',
    "null": "null",
    "true": "true",
    "an empty list": "[]",
    "a list of words": '[1, "word", null]',
    "a list of huge numbers": "[1e308, 1e308, -1e308]",
    "a table": '{"a": {"b": [1, {"c": "word"}]}}',
    "a table of words": '{"stale": "word"}',
    "half": "0.5",
    "minus one": "-1",
    "a large count": str(2**70),
    "a large number": "1e308",
    "a large negative number": "-1e308",
    "more than a float": "1" + 400 * "0",
    "less than a float": "-1" + 400 * "0",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "not a number": "NaN",
    "too many digits": "1" + 5000 * "0",
    "half a character": '"\\ud800"',
    "an escape sequence": '"\\u001b[2J\\u0000\\u202e"',
    "markup": '"</script><img src=x onerror=alert(1)>"',
    "a long word": json.dumps("word" * 100_000),
    "deep": _DEEP * "[" + _DEEP * "]",
}
"""What may stand for a value, as JSON."""

_TOML = {
    "null": '""',
    "a table": '{ a = { b = [1, { c = "word" }] } }',
    "a table of words": '{ stale = "word" }',
    "infinity": "inf",
    "minus infinity": "-inf",
    "not a number": "nan",
}


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has about a hundred letters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _deep_toml(path: Path) -> None:
    path.write_text(f"x = {_DEEP * '['}{_DEEP * ']'}\n")


def _deep_keys(path: Path) -> None:
    path.write_text(f"{'.'.join(_DEEP * 'x')} = 1\n")


KINDS: Mapping[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "newlines": lambda path: path.write_bytes(1000 * b"\n"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 16),
    "half a character": lambda path: path.write_text('{"name": "\\ud800", "metric": 1}\n'),
    "deep lists": lambda path: path.write_text(_DEEP * "[" + "\n"),
    "deep tables": lambda path: path.write_text(_DEEP * '{"a":' + "\n"),
    "deep TOML": _deep_toml,
    "deep keys": _deep_keys,
    "a list": lambda path: path.write_text("[1, 2]\n"),
    "a number": lambda path: path.write_text("1e308\n"),
    "sparse": _sparse,
    "a pipe": _fifo,
    "a socket": _socket,
    "a device that ends": lambda path: path.symlink_to("/dev/null"),
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a loop": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "without permission": lambda path: (path.write_text("{}"), path.chmod(0)),
}
"""What may lie where a file belongs."""

FILES = ("summary.json", "config.toml", "metrics.jsonl", "live.json")


def may_read_everything() -> bool:
    """Whether permissions do not bind this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.touch(0)
        return os.access(path, os.R_OK)


def replace_file(path: Path, kind: str) -> None:
    """Let a file be of another kind."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)


def change_value(run: Path, file: str, key: str, value: str) -> None:
    """Let a key of one of a run's files have one of the `VALUES`; of its rows, that of the last but one."""
    path = run / file
    if file == "config.toml":
        path.write_text(f"{key} = {_TOML.get(value, VALUES[value])}\n")
        return
    *before, chosen, last = path.read_text().splitlines() if file == "metrics.jsonl" else [path.read_text(), ""]
    table = {name: json.dumps(entry) for name, entry in json.loads(chosen).items()} | {key: VALUES[value]}
    changed = ", ".join(f"{json.dumps(name)}: {entry}" for name, entry in table.items())
    path.write_text("\n".join([*before, f"{{{changed}}}", last, ""]))


def keys_of(run: Path, file: str) -> list[str]:
    """The keys of a run's file that may be changed."""
    if file == "config.toml":
        return ["name", "seed", "description", "made_in", "task", "algorithm", "evaluation", "start"]
    found = json.loads((run / file).read_text().splitlines()[0])
    return list(dict.fromkeys([*found, "rejected", "repeated", "target"]))


class Hangs(BaseException):
    """It waits forever. Nothing takes this for an error of a file."""


@contextmanager
def in_time(seconds: int = 300) -> Iterator[None]:
    """A context in which what waits forever is broken off."""

    def end(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
