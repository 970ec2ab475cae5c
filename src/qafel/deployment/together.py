"""Several works until one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all; when the first ends, cancel the others; raise what it raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
