"""One server per run: the state that a server renews on the broker is its lease.

Each renewal is a compare-and-set: it succeeds only if this server wrote the last state. The next server writes a higher
epoch. Then the renewals of the previous server fail. Its consumer is deleted, so the broker confirms nothing to it, and
it sends no receipts. Clients ignore messages of a lower epoch. docs/decisions/deployment.md
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import replace
from typing import final

from qafel.deployment.connection import Broker
from qafel.deployment.keys import Verifier
from qafel.deployment.messages import Agreement, read_state
from qafel.deployment.names import KEY_VALUE_STREAM, number_in
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.ledger import Ledger
from qafel.errors import AnotherServer, BrokerRefused
from qafel.runs.live import LiveState
from qafel.text import human_seconds

log = logging.getLogger(__name__)


@final
class Lease:
    """One process's right to serve a run."""

    def __init__(self, publisher: Publisher, ledger: Ledger, verifier: Verifier, take_over: bool) -> None:
        """`take_over`: replace any other server, whatever its history."""
        self._publisher = publisher
        self._ledger = ledger
        self._verifier = verifier
        self._take_over = take_over
        self._instance = uuid.uuid4().hex[:12]
        self._sequence = 0
        """The stream number of the state that this server wrote last."""
        self.epoch = 0
        """Zero until this server holds the lease."""
        self._since = 0
        self._beats = 0

    async def claim(self, broker: Broker, state: LiveState) -> None:
        """Take the lease, or confirm it. Raises `AnotherServer` if another server holds the run.

        If another server is faster, the broker refuses, and the next session tries again.
        """
        run, ledger = self._publisher.names.run, self._ledger
        found, sequence = await read_state(broker, self._publisher.names, self._verifier)
        if found is not None and found.instance == self._instance:  # the broker's answer may have been lost
            self._sequence = sequence
            await self._keep_epoch(found.epoch)
            return
        epoch, since = self.epoch, self._since
        if epoch and found is not None and found.epoch >= epoch:
            raise AnotherServer(f"another server took over run {run!r}. Exiting; state kept in {ledger.folder}.")
        if not epoch:
            problem = await self._problem(broker, found)
            if problem and not self._take_over:
                raise AnotherServer(problem)
            if problem:
                log.warning("Taking over: %s.", problem.partition(": ")[0])
            before = max(ledger.epoch, found.epoch if found else 0)
            # A wiped broker has no epoch, but clients may know one: use the time in seconds.
            epoch, since = 1 + (before or int(time.time())), ledger.server.version
        # Announce the epoch before any change, and nothing else yet. The version must not be older than what clients
        # hold, or they would start again.
        known = found if found is not None and found.run_id == ledger.run_id else state
        if known.version < state.version:
            known = replace(known, version=state.version, digest=state.digest)
        self._since = since
        self._sequence = await self._write(broker, replace(known, status="running"), epoch, sequence)
        await self._keep_epoch(epoch)

    async def _keep_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            await asyncio.to_thread(self._ledger.begin_epoch, epoch)

    async def renew(self, broker: Broker, state: LiveState) -> LiveState:
        """Renew the state. The broker refuses if another server holds the lease."""
        try:
            self._sequence = await self._write(broker, state, self.epoch, self._sequence)
        except BrokerRefused:  # perhaps the answer to our last renewal was lost
            found, sequence = await read_state(broker, self._publisher.names, self._verifier)
            if found is None or found.instance != self._instance:
                raise
            self._sequence = await self._write(broker, state, self.epoch, sequence)
        return state

    async def _write(self, broker: Broker, state: LiveState, epoch: int, after: int) -> int:
        self._beats += 1
        ours = replace(
            state,
            beat=self._beats,
            run_id=self._ledger.run_id,
            epoch=epoch,
            since=self._since,
            holder=self._ledger.place,
            instance=self._instance,
            safe_records=self._ledger.journal.safe,
            at=time.time(),
        )
        return await self._publisher.state(broker, ours, after)

    async def _problem(self, broker: Broker, found: LiveState | None) -> str:
        """Why this folder cannot continue the run on the broker; empty if it can."""
        names, ledger = self._publisher.names, self._ledger
        where = f"run {names.run!r}"
        config = await broker.stored(KEY_VALUE_STREAM, names.config)
        if config is not None and config.data and Agreement.run_id_of(config.data) != ledger.run_id:
            word = f" ({found.status} at version {found.version})" if found else ""
            return (
                f"{where} on the broker is a different run{word}: choose another `run`, or replace it with `take_over`"
            )
        mine, uploads, forked = ledger.server.hidden_state, ledger.traffic.uploads, False
        # This folder served the run in a later epoch, so the broker's store was rolled back.
        rolled_back = found is not None and found.run_id == ledger.run_id and found.epoch < ledger.epoch
        if found is not None and found.run_id and found.holder != ledger.place and not rolled_back:
            if found.status == "running":
                heard = human_seconds(max(0, round(time.time() - found.at)))
                return (
                    f"another server serves {where} from another folder (last state {heard} ago): stop it; if it is "
                    "gone, replace it with `take_over`"
                )
            differs = found.version == mine.version and found.digest != mine.digest
            forked = differs or found.epoch > ledger.epoch
        held = map(number_in, await broker.subjects(names.broadcast_stream, names.broadcasts))
        newest = max((number + 1 for number in held if number is not None), default=0)
        counted, records = 0, 0
        if found is not None:
            newest, counted, records = max(newest, found.version), found.uploads, found.safe_records
        if forked or newest > mine.version or records > ledger.journal.count:
            return (
                f"{where} continued without this folder: it is at version {newest} with {counted:,} updates, this "
                f"folder at version {mine.version} with {uploads:,}. Start the server in the newer folder, or discard "
                "the difference with `take_over`"
            )
        return ""
