"""Takes a run off the broker: its queue, broadcasts, snapshot, final model, configuration and state.

A run that has ended keeps what late clients ask for, and one that was stopped keeps its queue: until someone says that
it is not needed any more. The server's folder is not touched. Started again there, it fills the broker again.
"""

from __future__ import annotations

import time

from qafel.deployment.connection import Broker, session
from qafel.deployment.keys import Access, signed_name
from qafel.deployment.names import KEY_VALUE_STREAM, SIGNATURE, Names
from qafel.errors import ConfigError, DataError, MessageError
from qafel.runs.live import LiveState
from qafel.text import human_seconds


async def remove_run(access: Access, run: str, *, force: bool = False, patience_s: float = 5.0) -> str:
    """Remove a run and return its last state in a word. One that does not say that it stopped or ended is refused,
    unless by `force`: its server may be alive, and would find its lease gone.
    """
    names = Names(run)
    async with session(access, access.name, patience_s=patience_s) as broker:
        word = await _last_word(broker, access, names)
        if word is None and await broker.waiting(names.broadcast_stream) is None:
            raise ConfigError(f"no run {run!r} here: `qafel status` lists those that are")
        if word is not None and word.startswith("running") and not force:
            raise ConfigError(f"run {run!r} is {word}: stop its server first, or, if it is gone for good, add `force`")
        for stream in (names.upload_stream, names.broadcast_stream):
            await broker.delete(stream)
        await broker.delete_objects(f"{names.run}/")
        for subject in (names.config, names.state):
            await broker.purge(KEY_VALUE_STREAM, subject)
        return (word or "unknown").partition(" ")[0]


async def _last_word(broker: Broker, access: Access, names: Names) -> str | None:
    stored = await broker.stored(KEY_VALUE_STREAM, names.state)
    if stored is None:
        return None
    try:
        access.verifier().check(signed_name(names.state), stored.data, stored.headers.get(SIGNATURE))
        state = LiveState.from_bytes(stored.data)
    except (DataError, MessageError):
        return "not genuine"
    heard = human_seconds(max(0, round(time.time() - state.at)))
    return f"running (heard of {heard} ago)" if state.status == "running" else state.status
