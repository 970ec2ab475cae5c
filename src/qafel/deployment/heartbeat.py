"""The state that a server renews on the broker: clients notice by it that they are behind, operators how it goes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeAlias, final

from qafel.deployment.access import Access
from qafel.deployment.agreement import RunState
from qafel.deployment.broker import Broker
from qafel.deployment.course import Course
from qafel.deployment.intake import Intake
from qafel.deployment.observe import Evaluator, Rate
from qafel.deployment.refill import Publisher
from qafel.errors import ConfigError

log = logging.getLogger(__name__)
Progress: TypeAlias = Callable[[RunState], None]


@final
class Heartbeat:
    """Tells of the run every few seconds, and reads the registry of clients anew."""

    def __init__(
        self,
        intake: Intake,
        course: Course,
        evaluator: Evaluator,
        publisher: Publisher,
        server_steps: int | None,
        metric_name: str,
        progress: Progress | None,
    ) -> None:
        self.session = ""
        """Changes with every connection: clients that see a new one send again what may be lost."""
        self._intake = intake
        self._course = course
        self._evaluator = evaluator
        self._publisher = publisher
        self._server_steps = server_steps or 0
        self._metric_name = metric_name
        self._progress = progress
        self._rate = Rate(intake.truth.totals.uploads)
        self._registry_problem: str | None = None

    async def run(self, broker: Broker, every_s: float, access: Access) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.renew_keys(access)
            await self.beat(broker)

    async def renew_keys(self, access: Access) -> None:
        """Read the registry; where that fails, keep the last one. A file that is being replaced is gone or half there
        for a moment, which must neither end the run nor let in uploads that nobody signed.
        """
        guard, problem = self._intake.guard, None
        try:
            keys = await asyncio.to_thread(access.registry)
        except ConfigError as error:
            keys, problem = None, str(error)
        if keys is not None:
            guard.renew_keys(keys)
        elif problem is None and guard.has_keys:
            problem = "the registry of clients is gone"
        if problem is not None and problem != self._registry_problem:
            log.warning("%s; the clients known before stay", problem)
        self._registry_problem = problem

    async def beat(self, broker: Broker, *, concluded: bool = False) -> None:
        """A run that has ended says so once its last broadcast is out: clients leave when they hear it."""
        state = self._run_state(self._course.state if concluded else "running")
        await self._publisher.value(broker, self._publisher.names.state, state.to_bytes())
        if self._progress is not None:
            self._progress(state)

    def _run_state(self, word: str) -> RunState:
        truth, out, last = self._intake.truth, self._publisher.out, self._evaluator.last
        totals, server = truth.totals, truth.server
        return RunState(
            state=word,
            version=out.version,
            digest=out.digest,
            server_steps=self._server_steps,
            uploads=totals.uploads,
            updates_per_s=round(self._rate.mark(totals.uploads), 1),
            upload_bytes=totals.upload_bytes,
            broadcast_bytes=totals.broadcast_bytes,
            rejected=dict(server.rejected),
            clients={str(client): lag for client, lag in list(self._intake.lags.items())[-100:]},
            buffer=f"{server.buffer.count}/{server.algorithm.buffer_size}",
            metric=last["metric"] if last else None,
            metric_name=self._metric_name,
            renewed_at=time.time(),
            session=self.session,
        )
