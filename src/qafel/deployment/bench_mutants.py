"""A client that sends damaged messages: the server must take none of them, and must not be slowed by them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Final, final

import numpy as np

from qafel.algorithm import HiddenState, make_upload
from qafel.algorithm.messages import HEADER_BYTES
from qafel.config import Config
from qafel.deployment.agreement import RunState
from qafel.deployment.bench_case import RUN, Case, Figures
from qafel.deployment.broker import Broker, Stored, session
from qafel.deployment.layout import KEY_VALUE_STREAM, Names
from qafel.deployment.receipts import Receipt
from qafel.errors import BrokerRefused
from qafel.params import Layout
from qafel.rng import Stream

_ORIGINALS: Final = 50
_AT_ONCE: Final = 32


def mutated(frames: list[bytes], chooser: random.Random) -> bytes:
    """One of the frames with flipped bits, cut off, under another's header, or overwritten in part or altogether."""
    while True:
        frame = bytearray(chooser.choice(frames))
        match chooser.randrange(5):
            case 0:
                for _ in range(chooser.randint(1, 4)):
                    frame[chooser.randrange(len(frame))] ^= 1 << chooser.randrange(8)
            case 1:
                del frame[chooser.randrange(len(frame)) :]
            case 2:
                frame[:HEADER_BYTES] = chooser.choice(frames)[:HEADER_BYTES]
            case 3:
                frame = bytearray(chooser.randbytes(chooser.randrange(2 * len(frame))))
            case _:
                start = chooser.randrange(len(frame) - 4)
                frame[start : start + 4] = chooser.randbytes(4)
        if (mutant := bytes(frame)) not in frames:
            return mutant


def originals(config: Config, number: int) -> list[bytes]:
    """Uploads that the server would take, had nobody touched them."""
    dimension = int(config.task.dimension)  # type: ignore[union-attr]
    algorithm = config.algorithm.wire(Layout.flat(dimension))
    start = HiddenState.of(np.zeros(dimension, np.float32))
    frames = []
    for sequence in range(_ORIGINALS):
        stream = Stream.named(0, "mutants", number, sequence)
        trained = stream.generator().standard_normal(dimension, np.float32) * np.float32(0.01)
        frames.append(make_upload(start, trained, algorithm, stream, client=number, sequence=sequence))
    return frames


@final
class Mutants:
    """Sends so many of them, spread over the run, and counts what the server says to each."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._number = case.clients
        self._names = Names(RUN)
        self._chooser = random.Random(0)
        self._frames = originals(case.config(), self._number)
        self._sent = 0
        self._outcomes: Counter[str] = Counter()
        self._uploads = 0
        self._ended = False
        self._news = asyncio.Event()

    async def send_all(self, folder: Path) -> Figures:
        access = self._case.access(folder, f"clients/{self._number}")
        async with session(access, str(self._number), patience_s=60) as broker:
            await broker.subscribe(self._names.receipt(self._number), self._on_receipt)
            await broker.subscribe(self._names.state, self._on_state)
            if (state := await broker.stored(KEY_VALUE_STREAM, self._names.state)) is not None:
                await self._on_state(state)
            while not self._ended:
                await self._news.wait()
                self._news.clear()
                await self._send_due(broker)
        answered = sum(self._outcomes.values())
        accepted = self._outcomes["accepted"]
        return {"sent": self._sent, "accepted": accepted, "rejected": answered - accepted, "by": dict(self._outcomes)}

    async def _send_due(self, broker: Broker) -> None:
        """In step with the run, and no more unanswered ones than our part of the queue holds."""
        due = self._case.mutants * min(1.0, 1.1 * self._uploads / self._case.updates)
        while self._sent < due and self._sent - sum(self._outcomes.values()) < _AT_ONCE and not self._ended:
            batch = [mutated(self._frames, self._chooser) for _ in range(_AT_ONCE)]
            subject = self._names.upload(self._number)
            try:
                await asyncio.gather(*(broker.store(subject, mutant) for mutant in batch))
            except BrokerRefused:  # the run has ended
                return
            self._sent += len(batch)

    async def _on_receipt(self, stored: Stored) -> None:
        receipt = Receipt.from_bytes(stored.data)
        self._outcomes.update(reason for _, reason, _ in receipt.rejected)
        self._outcomes["accepted"] += len(receipt.accepted)
        self._outcomes["duplicate"] += len(receipt.duplicate)
        self._news.set()

    async def _on_state(self, stored: Stored) -> None:
        state = RunState.from_bytes(stored.data)
        self._uploads, self._ended = state.uploads, state.ended
        self._news.set()
