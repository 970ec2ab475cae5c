"""What runs a broker carries, and how they fare."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

from qafel.deployment.connection import Broker, session
from qafel.deployment.keys import Access, Verifier
from qafel.deployment.messages import RunState
from qafel.deployment.names import BUCKET, KEY_VALUE_STREAM, SIGNATURE, Names
from qafel.errors import BrokerRefused, DataError, MessageError

_SILENT_S = 10.0


@final
@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run."""

    run: str
    state: RunState
    waiting: int
    """Messages in the upload queue."""
    silent_s: float
    """Since the server last renewed its state."""

    @property
    def word(self) -> str:
        """The state, or that a running run's server is silent."""
        silent = self.state.state == "running" and self.silent_s > _SILENT_S
        return f"silent for {self.silent_s:.0f} s" if silent else self.state.state


async def read_status(access: Access, run: str | None = None, patience_s: float = 5.0) -> list[RunStatus]:
    """All runs, or one, in the order of their names."""
    async with session(access, access.name, patience_s=patience_s) as broker:
        names = [Names(run)] if run else await _runs(broker)
        found = [await _status(broker, name, access.verifier()) for name in names]
    return [status for status in found if status is not None]


async def _runs(broker: Broker) -> list[Names]:
    try:
        subjects = await broker.subjects(KEY_VALUE_STREAM, f"$KV.{BUCKET}.*.state")
    except BrokerRefused:
        return []
    return [Names(subject.split(".")[-2]) for subject in sorted(subjects)]


async def _status(broker: Broker, names: Names, verifier: Verifier | None) -> RunStatus | None:
    stored = await broker.stored(KEY_VALUE_STREAM, names.state)
    if stored is None:
        return None
    try:
        if verifier is not None:
            verifier.check(names.state, stored.data, stored.headers.get(SIGNATURE))
        state = RunState.from_bytes(stored.data)
    except (DataError, MessageError):
        state = RunState("not genuine", 0, 0)
    waiting = await broker.waiting(names.upload_stream)
    return RunStatus(names.run, state, waiting or 0, max(0.0, time.time() - state.renewed_at))
