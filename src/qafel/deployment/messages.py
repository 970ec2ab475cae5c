"""What crosses besides uploads and broadcasts: the agreement, the run's state, receipts, and parts of large uploads."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from nats.aio.msg import Msg
from pydantic import TypeAdapter

from qafel.algorithm import Algorithm
from qafel.config import Config
from qafel.deployment.connection import ACK_WAIT_S, Broker, session
from qafel.deployment.keys import Access, Verifier, signed_name
from qafel.deployment.names import BUCKET, KEY_VALUE_STREAM, SIGNATURE, Names, is_run_name
from qafel.errors import (
    BrokerError,
    BrokerUnreachable,
    ConfigError,
    DataError,
    MalformedPayload,
    MessageError,
    OversizedMessage,
)
from qafel.params import Layout
from qafel.runs.live import LiveState
from qafel.text import human_seconds, printable

_AGREEMENT_FORMAT: Final = 2  # the format of what is signed, and of receipts, goes with it
_PART: Final = re.compile(r"(\d{1,10})/(\d{1,6})/(\d{1,6})")
SILENT_S: Final = 10.0
"""A server of which nothing was heard for so long is silent: it renews its state every two seconds."""


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """What server and clients must agree on: the run's configuration and its model's layout."""

    run_id: str
    config: Config
    layout: Layout
    abandon_after: int | None = None
    """The staleness law's: clients do not send updates whose start is so many versions old."""

    def algorithm(self) -> Algorithm:
        """What a client works with."""
        return self.config.algorithm.compose(self.layout, at_client=True)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": _AGREEMENT_FORMAT,
                "run_id": self.run_id,
                "config": self.config.to_toml(),
                "layout": [[name, list(shape)] for name, shape in self.layout.tensors],
                "abandon_after": self.abandon_after,
            }
        ).encode()

    @staticmethod
    def run_id_of(data: bytes) -> str:
        """Which run an agreement is of. One of another format is refused, as it may mean something else."""
        try:
            read = json.loads(data)
            if read["format"] != _AGREEMENT_FORMAT:
                raise _other_format(read["format"])
            return str(read["run_id"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    @staticmethod
    def from_bytes(data: bytes) -> Agreement:
        try:
            read = json.loads(data)
            if read["format"] != _AGREEMENT_FORMAT:
                raise _other_format(read["format"])
            layout = Layout(tuple((str(name), tuple(map(int, shape))) for name, shape in read["layout"]))
            config = Config.from_toml(read["config"], "the server's configuration")
            abandon_after = None if read["abandon_after"] is None else int(read["abandon_after"])
            return Agreement(str(read["run_id"]), config, layout, abandon_after)
        except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
            raise DataError(f"the broker does not hold a run's configuration: {printable(str(error))}") from None


def _other_format(found: object) -> DataError:
    return DataError(
        f"the run's agreement has format {found}, this qafel reads {_AGREEMENT_FORMAT}: upgrade the older end"
    )


@final
@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run of a broker."""

    run: str
    state: LiveState
    waiting: int
    """Messages in the upload queue."""
    silent_s: float
    """Since the server last renewed its state."""

    @property
    def word(self) -> str:
        """The run's state in a word; or that the server of a running run is silent."""
        silent = self.state.status == "running" and self.silent_s > SILENT_S
        return f"silent for {human_seconds(round(self.silent_s))}" if silent else self.state.status


async def read_status(access: Access, run: str | None = None, patience_s: float = 5.0) -> list[RunStatus]:
    """Read the state of all runs of a broker, or of one `run`, in the order of their names."""
    async with session(access, access.name, patience_s=patience_s) as broker:
        return await _status(broker, access.verifier(), run)


async def watch_status(
    access: Access,
    run: str | None,
    every_s: float,
    show: Callable[[list[RunStatus]], None],
    complain: Callable[[str], None],
) -> None:
    """`show` what `read_status` would find every so many seconds, forever, over one connection.

    A broker that was there once may go and come: `complain` hears of it.
    """
    shown = False
    while True:
        try:
            async with session(access, access.name, patience_s=5.0) as broker:
                while True:
                    show(await _status(broker, access.verifier(), run))
                    shown = True
                    await asyncio.sleep(every_s)
        except (BrokerError, BrokerUnreachable) as error:
            if not shown:
                raise
            complain(str(error))
            await asyncio.sleep(every_s)


async def _status(broker: Broker, verifier: Verifier, run: str | None) -> list[RunStatus]:
    found = []
    subjects = [] if run else await broker.subjects(KEY_VALUE_STREAM, f"$KV.{BUCKET}.*.state")
    named = filter(is_run_name, (subject.split(".")[-2] for subject in sorted(subjects)))
    for names in map(Names, [run] if run else named):
        stored = await broker.stored(KEY_VALUE_STREAM, names.state)
        if stored is None:
            continue
        try:
            verifier.check(signed_name(names.state), stored.data, stored.headers.get(SIGNATURE))
            state = LiveState.from_bytes(stored.data)
        except (DataError, MessageError):
            state = LiveState(status="not genuine", at=0.0, version=0)
        waiting = await broker.waiting(names.upload_stream) or 0
        found.append(RunStatus(names.run, state, waiting, max(0.0, time.time() - state.at)))
    return found


@final
@dataclass(slots=True)
class Receipt:
    """Tells one client which of its uploads count, and why others do not; of one group that became safe together."""

    accepted: list[tuple[int, int, int]] = field(default_factory=list)
    """(sequence, the version whose buffer took it, the upload's checksum: of two processes under one number, whose)"""
    duplicate: list[int] = field(default_factory=list)
    """Sequences that were counted before, or are too old to tell."""
    last: tuple[int, int] | None = None
    """Sequence and checksum of the client's last counted upload, (-1, 0) if there is none. With duplicates, should the
    client have lost its own count; and with an upload whose memory does not follow it.
    """
    rejected: list[tuple[int | None, str, str]] = field(default_factory=list)
    """(sequence if it could be read, reason, explanation)"""

    def extend(self, other: Receipt) -> None:
        self.accepted += other.accepted
        self.duplicate += other.duplicate
        self.last = other.last or self.last
        self.rejected += other.rejected

    def to_bytes(self) -> bytes:
        return json.dumps([self.accepted, self.duplicate, self.last, self.rejected]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Receipt:
        try:
            receipt = Receipt(*_RECEIPT.validate_json(data))
        except ValueError as error:
            raise DataError(f"not a receipt: {printable(str(error))}") from None
        receipt.rejected = [(number, printable(why), printable(text)) for number, why, text in receipt.rejected]
        return receipt


_RECEIPT: Final = TypeAdapter(
    tuple[list[tuple[int, int, int]], list[int], tuple[int, int] | None, list[tuple[int | None, str, str]]]
)


@final
class Part(NamedTuple):
    """Which part of which upload a message is, because the broker takes no message of the whole size: "17/2/8"."""

    upload: int
    number: int
    parts: int

    @staticmethod
    def from_header(header: str) -> Part:
        match = _PART.fullmatch(header)
        if match is None:
            raise MalformedPayload(f"a part is named upload/part/parts, got {header[:40]!r}")
        return Part(*map(int, match.groups()))


def split_upload(data: bytes, part_bytes: int) -> list[bytes]:
    """Cut an upload into parts of at most so many bytes."""
    return [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]


@final
@dataclass(slots=True)
class _Partial:
    upload: int
    parts: int
    advanced_at: float
    messages: list[Msg] = field(default_factory=list)


@final
class PartAssembler:
    """Puts uploads together: one unfinished upload per client, and so many bytes of all of them.

    A client sends the parts of an upload one after the other, all but the last as large as a message may be. Parts stay
    unacknowledged until the whole is safe. An unfinished upload is given up, and its parts are acknowledged, if its
    client begins another, if no part came for `PATIENCE_S`, or if there is no room: then the one whose last part is
    oldest. Its client sends it again, whole. The broker would deliver its parts for ever.
    """

    PATIENCE_S: Final = float(ACK_WAIT_S)

    def __init__(self, max_upload_bytes: int, part_bytes: int, max_total_bytes: int) -> None:
        self._max_upload_bytes, self._part_bytes = max_upload_bytes, part_bytes
        self._most_parts = -(-max_upload_bytes // part_bytes)
        self.most_held = max(max_total_bytes // part_bytes, 2 * self._most_parts)
        """So many parts of unfinished uploads wait at any time. All of them are of full size: a last part completes."""
        self._partial: OrderedDict[int, _Partial] = OrderedDict()
        """The one whose last part is oldest comes first."""
        self.held = 0

    def check(self, part: Part, size: int) -> None:
        """Refuse a part that belongs to no upload that a client may send."""
        last = part.number == part.parts - 1
        fits = 0 < size <= self._part_bytes if last else size == self._part_bytes
        if not (part.number < part.parts and 1 < part.parts <= self._most_parts and fits):
            raise MalformedPayload(
                f"part {part.number} of {part.parts} with {size} bytes is impossible: an upload of at most "
                f"{self._max_upload_bytes} bytes comes in parts of {self._part_bytes}"
            )
        if last and (part.parts - 1) * self._part_bytes + size > self._max_upload_bytes:
            raise OversizedMessage(f"an upload has at most {self._max_upload_bytes} bytes here, its parts have more")

    def add(self, client: int, part: Part, message: Msg, now: float, spent: list[Msg]) -> bytes | None:
        """Return the whole upload once its last part is in, else None. The part has passed `check`.

        `spent` gets the messages that are to be acknowledged with it, or that nobody needs any more.
        """
        given_up: list[Msg] = []
        while self._partial and now - next(iter(self._partial.values())).advanced_at > self.PATIENCE_S:
            given_up += self._pop(next(iter(self._partial)))
        spent += given_up
        partial = self._partial.get(client)
        if partial is None or (partial.upload, partial.parts) != (part.upload, part.parts):
            partial = _Partial(part.upload, part.parts, now)
        held = partial.messages
        if any(_same_stored(message, before) for before in (*given_up, *held[part.number : part.number + 1])):
            return None  # delivered again: to acknowledge either of them acknowledges both
        if part.number == 0:
            spent += self._pop(client)
            partial = self._partial[client] = _Partial(part.upload, part.parts, now)
        elif part.number != len(held):
            spent.append(message)  # what came before it was given up
            return None
        partial.messages.append(message)
        partial.advanced_at = now
        self._partial.move_to_end(client)
        self.held += 1
        if len(partial.messages) == part.parts:
            whole = self._pop(client)
            spent += whole
            return b"".join(message.data for message in whole)
        while self.held > self.most_held:
            spent += self._pop(next(iter(self._partial)))
        return None

    def _pop(self, client: int) -> list[Msg]:
        partial = self._partial.pop(client, None)
        messages = partial.messages if partial else []
        self.held -= len(messages)
        return messages


def _same_stored(message: Msg, other: Msg) -> bool:
    """Whether two deliveries are of one message in the stream."""
    return message.metadata.sequence.stream == other.metadata.sequence.stream
