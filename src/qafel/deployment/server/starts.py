"""Linked starts: answers to clients that ask for the difference to their last start point.

The broker keeps each client's newest request only, and the server takes requests at its own pace. So a client that
floods holds up nobody. A thread makes one answer at a time, while uploads continue.

The server's copies of clients' start points are soft state: one file per client, the least recently used out first. A
file may be lost, damaged or old. A client names the digest of the point that it holds, and the answer names the digest
of the point that results, so each of these costs one longer message at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import numpy as np
from nats.aio.msg import Msg

from qafel.algorithm import HiddenState, Message
from qafel.algorithm.catch_up import Link, Links
from qafel.deployment.connection import Broker
from qafel.deployment.messages import StartReply, StartRequest
from qafel.deployment.names import SIGNATURE, number_in
from qafel.deployment.server import StartSettings
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.defence import Allowance, UploadChecker
from qafel.deployment.server.pipeline import MessageQueue
from qafel.deployment.transport import wait_for_event
from qafel.errors import DataError, MessageError, OutputError
from qafel.files import make_private, read_regular, write_atomically, writing

GROUP: Final = 32
"""Requests that the server takes together."""
_PAUSE_S: Final = 0.01  # between two groups, so that taking requests costs at most a tenth of the event loop
_BURST_S: Final = 600.0  # a client may use up its starts of so long together
_TOLD_PER_S: Final = 1.0  # how often a client is told to wait
_FAILED_S: Final = 60
_IDLE_S: Final = 60.0
_DIGEST: Final = struct.Struct("<Q")
_HEADERS_BYTES: Final = 1024  # more than a file needs besides its two vectors

log = logging.getLogger(__name__)


@final
class LinkFiles(MutableMapping[int, Link]):
    """Start points on disk, within a total size."""

    def __init__(self, folder: Path, size: int, most_bytes: int) -> None:
        """`size`: the number of model parameters."""
        self._folder, self._size, self._most_bytes = folder, size, most_bytes
        found: list[tuple[os.stat_result, Path]] = []
        try:
            with writing(f"to {folder}"):
                make_private(folder)
                for path in folder.iterdir():
                    if path.name.isascii() and path.name.isdecimal():
                        found.append((path.lstat(), path))
                    elif path.name.endswith(".part"):  # of a killed server
                        path.unlink()
        except OutputError as error:
            log.warning("%s. Clients' next starts are longer.", error)
        found.sort(key=lambda each: each[0].st_mtime_ns)
        self._sizes = OrderedDict((int(path.name), status.st_size) for status, path in found)
        """The clients, the least recently used first."""
        self.total_bytes = sum(self._sizes.values())
        self._warned = False
        self._evict()

    def __getitem__(self, client: int) -> Link:
        if client not in self._sizes:
            raise KeyError(client)
        try:
            data = read_regular(self._path(client), 8 * self._size + _HEADERS_BYTES)
            (digest,) = _DIGEST.unpack_from(data)
            base = HiddenState.of(np.frombuffer(data, np.float32, self._size, _DIGEST.size).copy())
            if base.digest != digest:
                raise DataError("its digest differs")
            if message := data[_DIGEST.size + base.vector.nbytes :]:
                Message.from_bytes(message)
        except (OSError, ValueError, struct.error, DataError, MessageError) as error:
            log.warning("The start point of client %d is lost (%s). Its next start is longer.", client, error)
            del self[client]
            raise KeyError(client) from None
        return Link(base.vector, digest, message)

    def __setitem__(self, client: int, link: Link) -> None:
        data = b"".join((_DIGEST.pack(link.digest), link.base.data, link.message))
        try:
            write_atomically(self._path(client), data, make_folder=True, lasting=False, private=True)
        except OutputError as error:
            if not self._warned:
                log.warning("%s. Clients' next starts are longer.", error)
            self._warned = True
            if client in self._sizes:
                del self[client]
            return
        self.total_bytes += len(data) - self._sizes.pop(client, 0)
        self._sizes[client] = len(data)
        self._evict()

    def __delitem__(self, client: int) -> None:
        self.total_bytes -= self._sizes.pop(client)
        with suppress(OSError):
            self._path(client).unlink()

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def _path(self, client: int) -> Path:
        return self._folder / str(client)

    def _evict(self) -> None:
        while self.total_bytes > self._most_bytes:
            del self[next(iter(self._sizes))]


@final
class Starts:
    """Answers start requests: checks them, limits them, and makes one message after another in a thread."""

    def __init__(
        self,
        links: Links,
        publisher: Publisher,
        checker: UploadChecker,
        settings: StartSettings,
        counts: Counter[str],
    ) -> None:
        """`counts`: receives the number of starts and of refused requests."""
        self._counts = counts
        self._links, self._publisher, self._checker, self._settings = links, publisher, checker, settings
        per_s = (settings.per_hour or math.inf) / 3600
        self._allowance = Allowance(per_s, max(1.0, _BURST_S * per_s))
        self._waiting: OrderedDict[int, StartRequest] = OrderedDict()
        self._refused: dict[int, StartReply] = {}
        """Answers to clients that must wait."""
        self._tellable = Allowance(_TOLD_PER_S, 1.0)
        self._given: dict[int, tuple[int, int]] = {}
        """Digest and version of the points that clients were given."""
        self._usual_s = 0.0
        """A running mean of the time that a message takes."""
        self._wake = asyncio.Event()
        self._making = threading.Lock()

    async def take(self, queue: MessageQueue) -> None:
        """Take requests, forever."""
        while True:
            for message in await queue.group(GROUP):
                self.hear(message, time.monotonic())
            await asyncio.sleep(_PAUSE_S)

    def hear(self, message: Msg, now: float) -> None:
        """Check a request and let it wait for its answer, or refuse it. `now`: a time in seconds."""
        client, headers = number_in(message.subject), message.headers or {}
        if client is None or not self._checker.knows(client):
            return
        try:
            request = StartRequest.from_bytes(message.data)
            if wait_s := self._allowance.spend(client, now):
                self._refuse(client, request, wait_s, now)
                return
            self._checker.check_signature(client, message.subject, message.data, headers.get(SIGNATURE))
        except MessageError:
            self._counts["refused_starts"] += 1
            return
        if client not in self._waiting and len(self._waiting) >= self._settings.at_once:
            self._refuse(client, request, len(self._waiting) * self._usual_s, now)
            return
        self._waiting[client] = request
        self._wake.set()

    def _refuse(self, client: int, request: StartRequest, wait_s: float, now: float) -> None:
        """Tell a client when to ask again, at most once a second."""
        self._counts["refused_starts"] += 1
        if not self._tellable.spend(client, now):
            self._refused[client] = StartReply(request.sequence, request.digest, wait_s=max(1, math.ceil(wait_s)))
            self._wake.set()

    async def answer(self, broker: Broker) -> None:
        """Answer requests, forever."""
        while True:
            if not (self._waiting or self._refused):
                self._wake.clear()
                await wait_for_event(self._wake, _IDLE_S)
            refused, self._refused = self._refused, {}
            await self._publisher.replies(broker, refused)
            if self._waiting:
                client, request = self._waiting.popitem(last=False)
                began = time.monotonic()
                reply = await asyncio.to_thread(self._reply, client, request)
                self._usual_s += 0.1 * (time.monotonic() - began - self._usual_s)
                await self._publisher.replies(broker, {client: reply})

    def _reply(self, client: int, request: StartRequest) -> StartReply:
        """Move a client's start point to the last x̂ that was broadcast. No request may end a session."""
        sequence, digest, initial = request
        target, position, _ = self._publisher.published
        reply = StartReply(sequence, digest, position)
        if digest and self._given.get(client) == (digest, target.version):
            return reply
        try:
            with self._making:  # the thread of the last session may still work
                makes_initial = initial == self._links.initial.digest
                frame, state = self._links.reply(client, sequence, digest, target, makes_initial=makes_initial)
        except Exception:  # a fault of a custom quantizer, or a lack of memory
            log.exception("Could not make a start for client %d.", client)
            self._links.memory.pop(client, None)
            return reply._replace(wait_s=_FAILED_S)
        self._given[client] = state.digest, target.version
        self._counts["starts"] += 1
        return reply._replace(frame=frame)
