"""Which server serves a run: one at a time. The state that it renews on the broker is its lease.

Each renewal is a compare-and-set: it succeeds only if the state is still the one that this server wrote last. Whoever
comes next writes a higher epoch. From then on the renewals of the one before fail; the consumer of its epoch is
deleted, so that the broker confirms nothing to it any more, and without that it sends no receipts; and clients ignore
what still comes from a lower epoch. docs/decisions/deployment-one-server.md
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import replace
from typing import final

from qafel.deployment.connection import Broker
from qafel.deployment.keys import Verifier, signed_name
from qafel.deployment.messages import Agreement
from qafel.deployment.names import KEY_VALUE_STREAM, SIGNATURE, number_in
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.ledger import Ledger
from qafel.errors import AnotherServer, BrokerRefused, DataError, MessageError
from qafel.runs.live import LiveState
from qafel.text import human_seconds

log = logging.getLogger(__name__)


@final
class Lease:
    """One process's right to serve a run."""

    def __init__(self, publisher: Publisher, ledger: Ledger, verifier: Verifier, take_over: bool) -> None:
        """`take_over`: the user wants this server in the place of any other, whatever its history."""
        self._publisher = publisher
        self._ledger = ledger
        self._verifier = verifier
        self._take_over = take_over
        self._instance = uuid.uuid4().hex[:12]
        self._sequence = 0
        """Of the state that we wrote last, in its stream."""
        self.epoch = 0
        """Zero until the run is ours."""
        self._since = 0
        self._beats = 0

    async def claim(self, broker: Broker, state: LiveState) -> None:
        """Make the run ours, or see that it still is; `state` is our own. Another server's run raises `AnotherServer`.

        If someone else is faster, the broker refuses, and the next session looks again.
        """
        run, ledger = self._publisher.names.run, self._ledger
        found, sequence = await self._read(broker)
        if found is not None and found.instance == self._instance:  # though we may not have been told that it is stored
            self._sequence = sequence
            await self._keep_epoch(found.epoch)
            return
        epoch, since = self.epoch, self._since
        if epoch and found is not None and found.epoch >= epoch:
            raise AnotherServer(f"another server has taken over run {run!r}: this one ends, and its folder stays")
        if not epoch:
            problem = await self._problem(broker, found)
            if problem and not self._take_over:
                raise AnotherServer(problem)
            if problem:
                log.warning("taking over: %s", problem.partition(": ")[0])
            before = max(ledger.epoch, found.epoch if found else 0)
            # A broker that was wiped knows of no epoch, and clients may: then it is the time in seconds.
            epoch, since = 1 + (before or int(time.time())), ledger.server.version
        # Clients are told of the epoch before anything is changed, and of nothing else yet: but not of an older version
        # than they may hold, or they would start again.
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
        """Renew the state, if the run is still ours; the broker refuses if it is not."""
        try:
            self._sequence = await self._write(broker, state, self.epoch, self._sequence)
        except BrokerRefused:  # perhaps our own last one is there, and its answer was not waited for
            found, sequence = await self._read(broker)
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

    async def _read(self, broker: Broker) -> tuple[LiveState | None, int]:
        """The run's state on the broker, and its number there."""
        names = self._publisher.names
        stored = await broker.stored(KEY_VALUE_STREAM, names.state)
        if stored is None:
            return None, 0
        try:
            self._verifier.check(signed_name(names.state), stored.data, stored.headers.get(SIGNATURE))
            return LiveState.from_bytes(stored.data), stored.sequence
        except (DataError, MessageError):
            return LiveState(status="not genuine", at=0.0, version=0), stored.sequence

    async def _problem(self, broker: Broker, found: LiveState | None) -> str:
        """Why this folder may not simply go on with what the broker holds; empty if it may."""
        names, ledger = self._publisher.names, self._ledger
        where = f"run {names.run!r}"
        config = await broker.stored(KEY_VALUE_STREAM, names.config)
        if config is not None and config.data and Agreement.run_id_of(config.data) != ledger.run_id:
            word = f" ({found.status} at version {found.version})" if found else ""
            return f"{where} on the broker is another one{word}: choose another `run`, or replace it with `take_over`"
        mine, uploads, forked = ledger.server.hidden_state, ledger.traffic.uploads, False
        # A folder that served this run in a later epoch had taken it: the broker's store was rolled back since.
        rolled_back = found is not None and found.run_id == ledger.run_id and found.epoch < ledger.epoch
        if found is not None and found.run_id and found.holder != ledger.place and not rolled_back:
            if found.status == "running":
                heard = human_seconds(max(0, round(time.time() - found.at)))
                return (
                    f"another server serves {where} from another folder (heard of {heard} ago): stop it, or, if it is "
                    "gone for good, take its place with `take_over`"
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
                f"{where} went on without this folder, which is at version {mine.version} with {uploads:,} updates, to "
                f"version {newest} with {counted:,}: start the server in the newer folder, or give up what this one "
                "lacks with `take_over`"
            )
        return ""
