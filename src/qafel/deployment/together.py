"""Several works until one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final

_AGAIN_S: Final = 2.0


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all; when the first ends, cancel the others; raise what it raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(tasks)
    for task in done:
        task.result()


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until they have ended: before Python 3.12, `asyncio.wait_for` loses a cancellation that comes together
    with its result, and the broker's library uses it.
    """
    all_of_them, interrupted = list(tasks), False
    for task in all_of_them:
        task.add_done_callback(_hear)
    while pending := [task for task in all_of_them if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_AGAIN_S)
        except asyncio.CancelledError:
            interrupted = True  # but nobody is left behind
    if interrupted:
        raise asyncio.CancelledError


def _hear(task: asyncio.Task[Any]) -> None:
    """Look at what a task raised, or Python prints it in the end."""
    if not task.cancelled():
        task.exception()
