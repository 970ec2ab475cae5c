"""All messages of the server: broadcasts, snapshots, receipts and state. Refills a broker that lost them.

The state that a server renews on the broker is its lease, so a run has one server. Each renewal is a compare-and-set:
it succeeds only if this server wrote the last state. The next server writes a higher epoch. Then the renewals of the
previous server fail. Its consumer is deleted, so the broker confirms nothing to it, and it sends no receipts. Clients
ignore messages of a lower epoch. docs/decisions/deployment.md
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, final

from qafel.algorithm import HiddenState, Server
from qafel.algorithm.catch_up import quantized_copy
from qafel.deployment.connection import Broker
from qafel.deployment.keys import Signer, Verifier, fingerprint, signed_name
from qafel.deployment.messages import Agreement, Receipt, StartReply, read_state, split
from qafel.deployment.names import EPOCH, KEY_VALUE_STREAM, OBJECT, OBJECT_STREAM, SIGNATURE, START, Names, number_in
from qafel.deployment.server.ledger import Ledger
from qafel.errors import AnotherServer, BrokerLost, BrokerRefused
from qafel.quantizers.protocol import Quantizer
from qafel.runs.live import LiveState
from qafel.text import human_seconds

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
_READ_AGAIN_S: Final = (0.1, 0.5, 2.0, 0.0)  # a replica may lag


class Published(NamedTuple):
    """The last x̂ that was broadcast."""

    hidden_state: HiddenState
    position: int
    """The total bytes broadcast up to it."""
    last_bytes: int = 0
    """The size of the last broadcast."""

    @staticmethod
    def of(server: Server) -> Published:
        """The newest x̂ of a server."""
        return Published(server.hidden_state, server.broadcast_bytes, server.last_bytes)


class Snapshot(NamedTuple):
    """The snapshot on the broker: its position and size, and the size of the quantized copy."""

    position: int = 0
    snapshot_bytes: int = 0
    quantized_bytes: int = 0


@final
@dataclass(slots=True)
class Publisher:
    """Signs and publishes the server's messages."""

    names: Names
    _signer: Signer
    run_id: str
    published: Published
    _quantizer: Quantizer | None = None
    """The quantizer of copies that clients may start from."""
    _seed: int = 0
    """The run's seed."""
    epoch: int = 0
    """The server's epoch, sent with every broadcast and receipt."""
    on_broker: Snapshot = field(default_factory=Snapshot)

    async def value(self, broker: Broker, subject: str, data: bytes, after: int | None = None) -> int:
        """Store the configuration or the state. `after` as in `Broker.store`."""
        return await broker.store(subject, data, self._signer.headers(signed_name(subject), data), after=after)

    async def put(self, broker: Broker, name: str, data: bytes, position: int = 0) -> None:
        """Store an object: a snapshot, a large broadcast or the final model. `position`: of the x̂ in it."""
        signed = signed_name(f"{name} {position}", self.run_id, self.epoch)
        signature = self._signer.headers(signed, data).get(SIGNATURE, "")
        await broker.put_object(name, data, f"{self.epoch} {position} {signature}".strip())

    async def broadcasts(self, broker: Broker, broadcasts: Iterable[tuple[int, bytes]]) -> None:
        """Publish broadcasts in version order. Returns when the broker has stored all."""
        waiting = list(broadcasts)
        for start in range(0, len(waiting), _AT_ONCE):
            await asyncio.gather(*(self._broadcast(broker, *step) for step in waiting[start : start + _AT_ONCE]))

    async def _broadcast(self, broker: Broker, version: int, frame: bytes) -> None:
        subject = self.names.broadcast(version)
        headers = {EPOCH: str(self.epoch)}
        signed = subject
        if len(frame) > broker.part_bytes:
            name = self.names.broadcast_object(version)
            await self.put(broker, name, frame)
            headers[OBJECT], signed, frame = name, f"{name} pointer", fingerprint(frame)
        headers |= self._signer.headers(signed_name(signed, self.run_id, self.epoch), frame)
        await broker.store(subject, frame, headers)

    async def receipts(self, broker: Broker, groups: Iterable[Mapping[int, Receipt]]) -> None:
        """Send each client one receipt for its uploads in these groups, all with one signature."""
        receipts = defaultdict[int, Receipt](Receipt)
        for group in groups:
            for client, receipt in group.items():
                receipts[client].extend(receipt)
        messages = [(self.names.receipt(client), receipt.to_bytes()) for client, receipt in receipts.items()]
        signed = [(signed_name(subject, self.run_id, self.epoch), data) for subject, data in messages]
        for (subject, data), headers in zip(messages, self._signer.headers_of_all(signed), strict=True):
            await broker.send(subject, data, headers={EPOCH: str(self.epoch), **headers})

    async def replies(self, broker: Broker, replies: Mapping[int, StartReply]) -> None:
        """Answer clients' start requests. A message that is too long is sent in parts."""
        for client, reply in replies.items():
            subject, parts = self.names.started(client), split(reply.frame, broker.part_bytes) or [b""]
            for number, part in enumerate(parts):
                headers = {EPOCH: str(self.epoch), START: f"{reply.head} {number} {len(parts)}"}
                signed = signed_name(f"{subject} {headers[START]}", self.run_id, self.epoch)
                await broker.send(subject, part, headers=headers | self._signer.headers(signed, part))

    async def snapshot(self, broker: Broker) -> None:
        """Store x̂, and a quantized copy of it if clients may start from one."""
        held, position, _ = self.published
        copy = b""
        if self._quantizer is not None:
            copy = await asyncio.to_thread(quantized_copy, held, self._quantizer, self._seed)
            await self._put_and_read(broker, self.names.copy, copy, position)
        frame = await asyncio.to_thread(held.to_snapshot)
        await self._put_and_read(broker, self.names.snapshot, frame, position)
        self.on_broker = Snapshot(position, len(frame), min(len(copy), len(frame)))

    async def _put_and_read(self, broker: Broker, name: str, frame: bytes, position: int) -> None:
        """Store an object and read it back: a damaged store confirms objects that it cannot return."""
        await self.put(broker, name, frame, position)
        for pause_s in _READ_AGAIN_S:
            found = await broker.object(name, len(frame))
            if found is not None and found[0] == frame:
                return
            await asyncio.sleep(pause_s)
        raise BrokerLost(f"the broker confirmed object {name} but cannot return it", OBJECT_STREAM)


async def refill(broker: Broker, publisher: Publisher, ledger: Ledger, agreement: bytes) -> None:
    """Store the broadcasts, snapshot and agreement that the broker lacks, at the start of a session.

    Messages of another history are replaced. This server holds the lease, so they come from a superseded server, or the
    user asked for it.
    """
    names, version = publisher.names, ledger.server.version
    config = await broker.stored(KEY_VALUE_STREAM, names.config)
    held = {number_in(subject) for subject in await broker.subjects(names.broadcast_stream, names.broadcasts)}
    another_run = config is not None and Agreement.run_id_of(config.data) != ledger.run_id
    if another_run:
        await broker.purge(names.upload_stream)
    if another_run or any(number is not None and number >= version for number in held):
        log.warning("The broker holds broadcasts of another history. Replacing them.")
        await broker.purge(names.broadcast_stream)
        held = set()
    missing = [step for step in ledger.broadcasts if step[0] not in held]
    await publisher.broadcasts(broker, missing)
    if missing:
        log.info("Stored %d broadcasts that the broker lacked.", len(missing))
    publisher.published = Published.of(ledger.server)
    await publisher.snapshot(broker)
    if config is None or config.data != agreement:  # last, so that a client that finds it finds everything
        await publisher.value(broker, names.config, agreement)


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
        return await self._publisher.value(broker, self._publisher.names.state, ours.to_bytes(), after)

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
