"""One run in its folder: finished, to be resumed, or to be made."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, NamedTuple, TypeAlias

from qafel.config import Config
from qafel.errors import ConfigError, DataError, OutputError
from qafel.results.checkpoint_file import read_checkpoint
from qafel.results.runs import Run
from qafel.simulator.executor_choice import ExecutorName
from qafel.simulator.measure import Row
from qafel.simulator.run import CHECKPOINT, metrics_behind, run

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
    try:
        text = (path / "config.toml").read_text(encoding="utf-8")
        found = Config.from_toml(text, str(path / "config.toml"))
    except (OSError, UnicodeDecodeError, ConfigError):
        return "absent"
    if not same_run(found, config):
        return "absent"
    if (path / "summary.json").is_file():
        return "finished"
    return "interrupted" if (path / CHECKPOINT).is_file() and text == config.to_toml() else "absent"


def same_run(one: Config, other: Config) -> bool:
    """Whether two configurations give the same results: names and descriptions do not matter."""
    apart = {"name", "description"}
    return one.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def perform(order: Order, progress: Callable[[Row], None] | None = None) -> str:
    """Bring a run to its end, from its checkpoint where there is a good one; return its status."""
    with _alone_in(order.path):
        state = state_of(order.config, order.path)
        if state == "finished":  # by another sweep, while this one was busy elsewhere
            return str(Run.load(order.path).summary.get("status", "finished"))
        if state == "interrupted" and _is_sound(order.path):
            return _run(order, progress, resume=True)
        _clear(order.path)
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


def _clear(path: Path) -> None:
    """Remove what another configuration left. Whatever is no run's folder is not ours to remove."""
    if not path.exists():
        return
    if any(path.iterdir()) and not (path / "config.toml").exists():
        raise OutputError(f"{path} holds something else than a run: move it away, or choose another --out")
    shutil.rmtree(path)
