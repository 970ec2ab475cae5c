"""Put on the broker what it lacks: at the start of every session, whether it is new, was restarted, or was wiped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, final

from qafel.algorithm import HiddenState, Message
from qafel.deployment.broker import Broker
from qafel.deployment.keys import Signer
from qafel.deployment.layout import KEY_VALUE_STREAM, MESSAGE_ID, OBJECT, SIGNATURE, Names
from qafel.deployment.truth import Truth

_AT_ONCE: Final = 64
log = logging.getLogger(__name__)


@final
class Publisher:
    """Everything the server says, signed."""

    def __init__(self, names: Names, signer: Signer | None, out: HiddenState) -> None:
        self.names = names
        self.out = out
        """x̂ as the clients know it: the last one that went out."""
        self._signer = signer

    def _signature(self, context: str, data: bytes) -> dict[str, str]:
        return {SIGNATURE: self._signer.sign(context, data)} if self._signer else {}

    async def value(self, broker: Broker, subject: str, data: bytes) -> None:
        """A key's value: configuration or state."""
        await broker.store(subject, data, self._signature(subject, data))

    async def put(self, broker: Broker, name: str, data: bytes) -> None:
        """An object: a snapshot, a large broadcast, the final model."""
        await broker.put_object(name, data, self._signature(name, data).get(SIGNATURE))

    async def broadcasts(self, broker: Broker, broadcasts: Iterable[tuple[int, bytes]]) -> None:
        """Steps in version order; returns when the broker has them all."""
        waiting = list(broadcasts)
        for start in range(0, len(waiting), _AT_ONCE):
            await asyncio.gather(*(self._broadcast(broker, *step) for step in waiting[start : start + _AT_ONCE]))

    async def _broadcast(self, broker: Broker, version: int, frame: bytes) -> None:
        subject = self.names.broadcast(version)
        # The digest in the name lets a version be made again by a server that lost its disk.
        headers = {MESSAGE_ID: f"{version}-{Message.from_bytes(frame).digest:x}", **self._signature(subject, frame)}
        if len(frame) > broker.part_bytes:
            name = self.names.broadcast_object(version)
            await self.put(broker, name, frame)
            headers[OBJECT], frame = name, b""
        await broker.store(subject, frame, headers)

    async def snapshot(self, broker: Broker) -> None:
        await self.put(broker, self.names.snapshot, await asyncio.to_thread(self.out.to_snapshot))


async def refill(broker: Broker, publisher: Publisher, truth: Truth, agreement: bytes) -> None:
    """Configuration, broadcasts and a snapshot, as far as they are missing or belong to another history."""
    names, version = publisher.names, truth.server.version
    config = await broker.stored(KEY_VALUE_STREAM, names.config)
    held = await _held(broker, names)
    another_run = config is not None and config.data != agreement
    if another_run:
        await broker.purge(names.upload_stream)
    if another_run or any(number >= version for number in held):
        log.warning("the broker holds broadcasts of another history: they are replaced")
        await broker.purge(names.broadcast_stream)
        held = set()
    missing = [step for step in truth.broadcasts if step[0] not in held]
    await publisher.broadcasts(broker, missing)
    if missing:
        log.info("gave the broker %d broadcasts that it lacked", len(missing))
    publisher.out = truth.server.hidden_state
    await publisher.snapshot(broker)
    if config is None or another_run:  # last: a client that finds it finds all the rest
        await publisher.value(broker, names.config, agreement)


async def _held(broker: Broker, names: Names) -> set[int]:
    ends = (subject.rsplit(".", 1)[-1] for subject in await broker.subjects(names.broadcast_stream, names.broadcasts))
    return {int(end) for end in ends if end.isdigit()}
