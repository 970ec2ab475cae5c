"""Weights & Biases: a run online if the user has logged in, else in files for `wandb sync`."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, final
from urllib.parse import urlsplit
from uuid import uuid4

from qafel.runs.live import Summary
from qafel.runs.trackers import FILES, NOTHING, Position, TrackedRun, safe, scalars, summary_figures

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # without it, the import contacts its makers' server

import wandb

_INIT_S = 30


@final
class WandbRun:
    """One run. Every metric has uploads as its x axis; runs that differ only by seed form a group."""

    def __init__(self, run: TrackedRun) -> None:
        self._tracked, self._memory = run, run.memory("wandb")
        self._run: Any = None
        self._position = -1
        self._id = ""

    def begin(self) -> Position:
        tracked = self._tracked
        known = self._memory.read() if tracked.resumed or self._id else {}
        self._id = str(known.get("id") or uuid4().hex[:12])
        self._memory.write(id=self._id)
        reached = self._open_position(new="id" not in known)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "qafel",
            id=self._id,
            resume="allow",
            name=tracked.path.name,
            group=os.environ.get("WANDB_RUN_GROUP") or tracked.group,
            config=dict(tracked.settings),
            dir=str(tracked.path),
            mode=None if _is_set_up() else "offline",
            reinit="create_new",  # leaves another run of the user in this process unchanged
            settings=wandb.Settings(console="off", silent=True, init_timeout=_INIT_S),
        )
        self._run.define_metric("uploads")
        self._run.define_metric("*", step_metric="uploads")
        return reached

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            # Recorded first, so that no row is sent twice: offline, W&B does not report its rows.
            os.pwrite(self._position, f"{row['uploads']:20} {row['version']:20}\n".encode(), 0)
            self._run.log(scalars(row, self._tracked.metric_name), step=row["uploads"])

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._run.summary.update({**summary_figures(summary), "status": summary["status"]})
            files = [file for name in FILES if (file := self._tracked.path / name).is_file()]
            artifact = wandb.Artifact(f"{safe(self._tracked.path.name) or 'run'}-{self._id}", type="run")
            for file in files:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if summary is not None else 1)
        os.close(self._position)

    def _open_position(self, new: bool) -> Position:
        """Return the position of the last row, from a file of fixed length that every row overwrites."""
        file, how = self._memory.file.with_suffix(".position"), os.O_RDWR | os.O_CREAT
        self._position = os.open(file, how | os.O_TRUNC if new else how, 0o644)
        numbers = os.pread(self._position, 64, 0).split()
        return Position(int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else NOTHING


def _is_set_up() -> bool:
    """Return whether the user has chosen a mode or logged in. Otherwise W&B would ask for a key on the terminal."""
    if any(os.environ.get(name) for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    with suppress(OSError, netrc.NetrcParseError):
        file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
        return host is not None and netrc.netrc(file).authenticators(host) is not None
    return False
