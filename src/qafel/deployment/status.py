"""The runs on a broker: read their status, watch it, or remove a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from qafel.deployment.connection import Broker, session
from qafel.deployment.keys import Access, Verifier
from qafel.deployment.messages import read_state
from qafel.deployment.names import BUCKET, KEY_VALUE_STREAM, Names, is_run_name
from qafel.errors import BrokerError, BrokerUnreachable, ConfigError
from qafel.runs.live import LiveState
from qafel.text import human_seconds

SILENT_S: Final = 10.0
"""A running server that sent no state for this long is silent. It normally sends one every two seconds."""


@final
@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run of a broker."""

    run: str
    state: LiveState
    waiting: int
    """Messages in the upload queue."""
    silent_s: float
    """Seconds since the server renewed its state."""

    @property
    def word(self) -> str:
        """The run's status, or how long the server of a running run has been silent."""
        silent = self.state.status == "running" and self.silent_s > SILENT_S
        return f"silent for {human_seconds(round(self.silent_s))}" if silent else self.state.status


async def read_status(access: Access, run: str | None = None, patience_s: float = 5.0) -> list[RunStatus]:
    """Read the status of all runs on a broker, or of one `run`, sorted by name."""
    async with session(access, access.name, patience_s=patience_s) as broker:
        return await _status(broker, access.verifier(), run)


async def watch_status(
    access: Access,
    run: str | None,
    every_s: float,
    show: Callable[[list[RunStatus]], None],
    complain: Callable[[str], None],
) -> None:
    """Read the status every `every_s` seconds over one connection, forever, and call `show` with it.

    `complain` is called when a broker that answered before does not answer.
    """
    answered = False
    while True:
        try:
            async with session(access, access.name, patience_s=5.0) as broker:
                while True:
                    show(await _status(broker, access.verifier(), run))
                    answered = True
                    await asyncio.sleep(every_s)
        except (BrokerError, BrokerUnreachable) as error:
            if not answered:
                raise
            complain(str(error))
            await asyncio.sleep(every_s)


async def _status(broker: Broker, verifier: Verifier, run: str | None) -> list[RunStatus]:
    found = []
    subjects = [] if run else await broker.subjects(KEY_VALUE_STREAM, f"$KV.{BUCKET}.*.state")
    named = filter(is_run_name, (subject.split(".")[-2] for subject in sorted(subjects)))
    for names in map(Names, [run] if run else named):
        state, _ = await read_state(broker, names, verifier)
        if state is not None:
            waiting = await broker.waiting(names.upload_stream) or 0
            found.append(RunStatus(names.run, state, waiting, max(0.0, time.time() - state.at)))
    return found


async def remove_run(access: Access, run: str, *, force: bool = False, patience_s: float = 5.0) -> str:
    """Remove a run from the broker: queue, broadcasts, snapshot, final model, configuration and state.

    Returns its last status. A run that may still be running is refused unless `force` is set, because its server would
    lose its lease. The server's folder stays; a server that starts there fills the broker again.
    """
    names = Names(run)
    async with session(access, access.name, patience_s=patience_s) as broker:
        state, _ = await read_state(broker, names, access.verifier())
        if state is None and await broker.waiting(names.broadcast_stream) is None:
            raise ConfigError(f"no run {run!r} here: `qafel status` lists the runs of a broker")
        if state is not None and state.status in ("running", "not genuine") and not force:
            heard = human_seconds(max(0, round(time.time() - state.at)))
            found = f"is running (last state {heard} ago)" if state.status == "running" else "has an unreadable state"
            raise ConfigError(f"run {run!r} {found}: stop its server first; if it is gone, add `force`")
        for stream in (names.upload_stream, names.start_stream, names.broadcast_stream):
            await broker.delete(stream)
        await broker.delete_objects(f"{names.run}/")
        for subject in (names.config, names.state):
            await broker.purge(KEY_VALUE_STREAM, subject)
        return "unknown" if state is None else state.status
