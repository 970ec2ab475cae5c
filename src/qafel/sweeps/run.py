"""One run in its folder: finished, to be resumed, or to be made."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NamedTuple, TypeAlias, final

from qafel.config import Config
from qafel.errors import ConfigError, DataError, OutputError
from qafel.runs.directory import read_checkpoint
from qafel.runs.reading import Run
from qafel.simulator.executors import ExecutorName
from qafel.simulator.measure import Row
from qafel.simulator.run import CHECKPOINT, metrics_behind, run, same_run

if sys.platform != "win32":
    import fcntl


State: TypeAlias = Literal["finished", "interrupted", "absent"]


class Order(NamedTuple):
    """A run to make: what, where, and how."""

    config: Config
    path: Path
    executor: ExecutorName = "inline"
    workers: int | None = None


def state_of(config: Config, path: Path) -> State:
    """How far the folder is with this configuration; one with another configuration counts as absent."""
    if not _is_of(config, path):
        return "absent"
    if _has_summary(path):
        return "finished"
    return "interrupted" if (path / CHECKPOINT).is_file() else "absent"


def _is_of(config: Config, path: Path) -> bool:
    file = path / "config.toml"
    try:
        return same_run(Config.from_toml(file.read_text(encoding="utf-8"), str(file)), config)
    except (OSError, UnicodeDecodeError, ConfigError):
        return False


def _has_summary(path: Path) -> bool:
    """Whether there is a summary that can be read."""
    try:
        return isinstance(json.loads((path / "summary.json").read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False


def perform(
    order: Order,
    progress: Callable[[Row], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> str:
    """Bring a run to its end, from its checkpoint where there is a good one; return its status.

    What else has results in its folder is moved aside, never removed; `note` is told.
    """
    with _alone_in(order.path):
        state = state_of(order.config, order.path)
        if state == "finished":  # by another sweep, while this one was busy elsewhere
            return str(Run.load(order.path).summary.get("status", "finished"))
        if state == "interrupted" and _is_sound(order.path):
            return _run(order, progress, resume=True)
        found = "a damaged run" if _is_of(order.config, order.path) else "a run with other settings"
        if (moved := _make_room(order.path)) is not None and note is not None:
            note(f"{found} was there, and is now {moved.name}")
        return _run(order, progress, resume=False)


@contextmanager
def _alone_in(path: Path) -> Iterator[None]:
    """Keep other sweeps out of a run's folder. The lock lies beside it, as the folder itself may be replaced."""
    if sys.platform == "win32":  # has no flock
        yield
        return
    beside = path.with_name(f"{path.name}.lock")
    lock = _locked(beside, path)
    try:
        yield
    finally:
        with suppress(OSError):
            beside.unlink()
        lock.close()


def _locked(beside: Path, path: Path) -> IO[bytes]:
    while True:
        try:
            beside.parent.mkdir(parents=True, exist_ok=True)
            lock = beside.open("ab")
        except OSError as error:
            raise OutputError(f"cannot write results to {path}: {error.strerror}; choose another --out") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before may have removed the file since it was opened here: then it keeps nobody out.
            if os.path.samestat(os.fstat(lock.fileno()), beside.stat()):
                return lock
        except BlockingIOError:
            lock.close()
            raise OutputError(f"another process is at work in {path}: wait for its end") from None
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks
            return lock
        lock.close()


def _is_sound(path: Path) -> bool:
    """Whether a run can go on. From a damaged checkpoint it begins anew; other errors leave it where it is."""
    try:
        metrics_behind(read_checkpoint(path / CHECKPOINT), path)
    except DataError:
        return False
    return True


def _run(order: Order, progress: Callable[[Row], None] | None, resume: bool) -> str:
    summary = run(
        order.config,
        order.path,
        progress,
        executor=order.executor,
        workers=order.workers,
        resume=resume,
        tensorboard=False,
    )
    return str(summary["status"])


def _make_room(path: Path) -> Path | None:
    """Move a run with results, or half of them, out of the way; say where to. What is no run is not ours to touch."""
    if not path.exists() or not any(path.iterdir()):
        return None
    if not (path / "config.toml").exists():
        raise OutputError(f"{path} holds something else than a run: move it away, or choose another --out")
    if not (path / "summary.json").exists() and not (path / CHECKPOINT).exists():
        shutil.rmtree(path)  # broken off before its first checkpoint
        return None
    names = (path.with_name(f"{path.name}.old-{number}") for number in itertools.count(1))
    moved = next(name for name in names if not name.exists())
    try:
        path.rename(moved)
    except OSError as error:
        raise OutputError(f"cannot move {path} aside: {error.strerror}; choose another --out") from None
    return moved


# Which runs an entry needs: a configuration each, under a name that says how it differs from its recipe.


CHEAP_TASKS = ("mushrooms", "quadratic", "logistic")
"""Tasks of which several runs go at once, one in each process."""


COST = {"cifar10": 80.0, "celeba": 100.0, "shakespeare": 6000.0}
"""Roughly how much longer an upload takes than one of a cheap task."""


@final
@dataclass(frozen=True, slots=True)
class Planned:
    """One run: what it is called in tables and figures, where it stands in the sweep, and its configuration."""

    method: str
    config: Config
    at: Mapping[str, float | str] = field(default_factory=dict)
    """The values of what the entry varies, such as the concurrency."""

    @property
    def folder(self) -> str:
        return f"{self.config.name}-seed{self.config.seed}"

    @property
    def cheap(self) -> bool:
        return self.config.task.name in CHEAP_TASKS

    @property
    def work(self) -> float:
        """How much there is to do, to be held against other runs: its uploads, as far as its limits tell, and cost."""
        stop, timing = self.config.stop, self.config.timing
        limits = (
            stop.uploads,
            stop.server_steps and stop.server_steps * self.config.algorithm.buffer_size,
            stop.virtual_time and stop.virtual_time * timing.rate,
        )
        uploads = min((float(limit) for limit in limits if limit is not None), default=1.0)
        return uploads * COST.get(self.config.task.name, 1.0)
