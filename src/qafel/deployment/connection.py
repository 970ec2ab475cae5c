"""A session with the broker: stored publishes, reads by subject, objects, streams.

A broken connection is never repaired. Its user gets `BrokerLost` and starts a new session. So a cut line, a restarted
broker and a killed process all recover in the same way (docs/decisions/deployment.md).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header, ObjectMeta, ObjectMetaOptions, StorageType

from qafel.deployment.keys import Access
from qafel.deployment.names import (
    ANSWER_S,
    BUCKET,
    KEY_VALUE_STREAM,
    MALFORMED,
    OBJECT_STREAM,
    OVERHEAD_BYTES,
    Names,
    StreamLimits,
    number_in,
    stream_of,
    streams,
)
from qafel.deployment.transport import Connection, connect_patiently, wait_for_event
from qafel.errors import BrokerError, BrokerLost, BrokerRefused
from qafel.text import printable

ACK_WAIT_S: Final = 30
MAX_ACK_PENDING: Final = 4096
LOST: Final = (
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    OSError,
)
"""Errors of nats-py for a broken line or a missing answer. A timeout is an `OSError`."""
_LOOK_S: Final = 1.0
_CHUNK_BYTES: Final = 512 << 10
_KEPT_BYTES: Final = 256 << 20
_WRONG_LAST_SEQUENCE: Final = 10071  # JetStream's code for an unexpected last message

log = logging.getLogger(__name__)


class Stored(NamedTuple):
    """A message: live, or from its stream."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int = 0
    """Its number in the stream."""


@final
class Broker:
    """One connection to the broker, until it breaks."""

    def __init__(self, connection: Connection, api: str) -> None:
        """`api`: the prefix of JetStream requests."""
        self.connection = connection
        self._js = connection.jetstream(prefix=api, timeout=ANSWER_S)
        self._failure: BrokerError | None = None

    @property
    def part_bytes(self) -> int:
        """The largest payload of one message."""
        return self.connection.max_payload - OVERHEAD_BYTES

    async def until_lost(self) -> None:
        """Wait until the connection breaks, then raise. nats-py does not always report it, so check regularly."""
        while not (self.connection.gone.is_set() or self.connection.is_closed):
            await wait_for_event(self.connection.gone, _LOOK_S)
        why = printable(str(self.connection.last_error or "closed"))
        raise self._failure or BrokerLost(f"the connection to the broker broke: {why}")

    def give_up(self, failure: BrokerError) -> None:
        """Make `until_lost` raise this error."""
        self._failure = failure
        self.connection.gone.set()

    async def answers_for(self, stream: str) -> bool:
        """Whether the broker answers a request about a stream, if only with an error."""
        try:
            await self.waiting(stream)
        except BrokerRefused as refusal:
            return refusal.stream is not None
        except BrokerLost:
            return False
        return True

    async def subscribe(self, subject: str, handle: Callable[[Stored], Awaitable[None]]) -> None:
        """Call `handle` with every message published to a subject from now on. Malformed headers are skipped."""

        async def receive(message: Msg) -> None:
            if MALFORMED in (message.headers or {}):
                log.warning("Ignored a message to %r: cannot read its headers.", message.subject)
                return
            await handle(Stored(message.subject, message.data, message.headers or {}))

        with _broker_errors():
            await self.connection.subscribe(subject, cb=receive)

    async def send(self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Publish without waiting for an answer."""
        with _broker_errors():
            await self.connection.publish(subject, data, reply, headers or None)

    async def acknowledge(self, messages: list[Msg]) -> None:
        """Acknowledge messages. Returns when the broker has removed them from its queue."""
        if messages:
            with _broker_errors(stream_of(messages[-1].subject)):
                await self.connection.acknowledge(messages, ANSWER_S)

    async def flush(self) -> None:
        with _broker_errors():
            await self.connection.flush(int(ANSWER_S))

    async def store(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, after: int | None = None
    ) -> int:
        """Publish, wait until the broker has stored the message, and return its number in the stream.

        after  store only if the subject's last message has this number; 0: only if there is none
        """
        if after is not None:
            headers = {**(headers or {}), Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(after)}
        stream = stream_of(subject)
        with _broker_errors(stream):
            answer = await self.connection.request(subject, data, timeout=ANSWER_S, headers=headers or None)
            found = json.loads(answer.data)
            if error := found.get("error"):
                why = printable(str(error.get("description")))
                works = error.get("err_code") == _WRONG_LAST_SEQUENCE
                raise BrokerRefused(f"the broker did not store {subject}: {why}", None if works else stream)
            return int(found.get("seq", 0))

    async def stored(self, stream: str, subject: str) -> Stored | None:
        """The last message of a subject; None if there is none."""
        return await self._direct(stream, f".{subject}", b"")

    async def _next(self, stream: str, sequence: int, subject: str = ">") -> Stored | None:
        """The first message of a subject from this number on; None if there is none."""
        return await self._direct(stream, "", json.dumps({"seq": sequence, "next_by_subj": subject}).encode())

    async def object(self, name: str, most_bytes: int) -> tuple[bytes, str] | None:
        """An object's bytes and description; None if it is missing, damaged, being replaced, or above `most_bytes`."""
        encoded = base64.urlsafe_b64encode(name.encode()).decode()
        meta = await self.stored(OBJECT_STREAM, f"$O.{BUCKET}.M.{encoded}")
        try:
            info = json.loads(meta.data) if meta else {}
            size, digest, subject = int(info["size"]), info["digest"], f"$O.{BUCKET}.C.{info['nuid']}"
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        data, sequence = bytearray(), 1
        while len(data) < size <= most_bytes and not info.get("deleted"):
            chunk = await self._next(OBJECT_STREAM, sequence, subject)
            if chunk is None:
                return None
            data += chunk.data
            sequence = chunk.sequence + 1
        found = "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        return (bytes(data), str(info.get("description", ""))) if found == digest else None

    async def put_object(self, name: str, data: bytes, description: str | None = None) -> None:
        """Store an object. It replaces the previous one of this name."""
        options = ObjectMetaOptions(max_chunk_size=min(_CHUNK_BYTES, self.part_bytes))
        meta = ObjectMeta(name, description, options=options)
        with _broker_errors(OBJECT_STREAM):
            bucket = await self._js.object_store(BUCKET)
            await bucket.put(name, data, meta)

    async def delete_object(self, name: str) -> None:
        with _broker_errors(OBJECT_STREAM), contextlib.suppress(nats.js.errors.NotFoundError):
            bucket = await self._js.object_store(BUCKET)
            await bucket.delete(name)

    async def ensure(self, names: Names, limits: StreamLimits) -> None:
        """Create the run's streams, or update their limits."""
        for config in streams(names, limits):
            with _broker_errors(config.name):
                try:
                    await self._js.add_stream(config)
                except nats.js.errors.BadRequestError:
                    await self._js.update_stream(config)

    async def ensure_buckets(self, replicas: int) -> None:
        """Create the buckets that all runs share, if they are missing."""
        with _broker_errors(KEY_VALUE_STREAM):
            if await self.waiting(KEY_VALUE_STREAM) is None:
                await self._js.create_key_value(
                    bucket=BUCKET, history=1, direct=True, storage=StorageType.FILE, replicas=replicas
                )
        with _broker_errors(OBJECT_STREAM):
            if await self.waiting(OBJECT_STREAM) is None:
                await self._js.create_object_store(BUCKET, storage=StorageType.FILE, replicas=replicas)

    async def new_consumer(self, stream: str, name: str, waiting_parts: int = 0, *, confirms: bool = True) -> None:
        """Replace a stream's consumer. Old acknowledgements are void.

        Unacknowledged messages are delivered immediately. If the consumer never `confirms`, it delivers new messages
        only.
        """
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW)
        if confirms:
            most = MAX_ACK_PENDING + waiting_parts
            config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S, max_ack_pending=most)
        with _broker_errors(stream):
            for before in await self._js.consumers_info(stream):
                with contextlib.suppress(nats.js.errors.NotFoundError):
                    await self._js.delete_consumer(stream, before.name)
            await self._js.add_consumer(stream, config.evolve(durable_name=name))

    async def waiting(self, stream: str) -> int | None:
        """The number of messages in a stream; None if there is no such stream."""
        with _broker_errors(stream), contextlib.suppress(nats.js.errors.NotFoundError):
            return (await self._js.stream_info(stream)).state.messages
        return None

    async def purge(self, stream: str, subject: str | None = None) -> None:
        """Remove all messages of a stream, or of one subject."""
        with _broker_errors(stream):
            await self._js.purge_stream(stream, subject=subject)

    async def delete(self, stream: str) -> bool:
        """Delete a stream and its reserved space. Return False if there is none."""
        with _broker_errors(stream), contextlib.suppress(nats.js.errors.NotFoundError):
            return await self._js.delete_stream(stream)
        return False

    async def make_again(self, stream: str) -> None:
        """Recreate a stream with its readable messages, up to 256 MB.

        Numbers continue, so a server that tries to renew an outdated lease is refused.
        """
        readable, size, info = list[Stored](), 0, None
        with contextlib.suppress(BrokerLost):
            while size < _KEPT_BYTES and (
                each := await self._next(stream, 1 + (readable[-1].sequence if readable else 0))
            ):
                readable.append(each)
                size += len(each.data)
        with _broker_errors(stream):
            with contextlib.suppress(nats.js.errors.APIError):
                info = await self._js.stream_info(stream)
            await self.delete(stream)
            if info is not None:
                await self._js.add_stream(info.config.evolve(first_seq=info.state.last_seq + 1))
        after = 0 if stream == KEY_VALUE_STREAM else None  # keep values that are newer
        for each in readable:
            headers = {name: value for name, value in each.headers.items() if not name.startswith("Nats-")}
            with contextlib.suppress(BrokerRefused):
                await self.store(each.subject, each.data, headers, after=after)

    async def delete_objects(self, prefix: str) -> None:
        """Delete the objects whose names have this prefix."""
        for subject in await self.subjects(OBJECT_STREAM, f"$O.{BUCKET}.M.*"):
            name = base64.urlsafe_b64decode(subject.rsplit(".", 1)[-1]).decode(errors="replace")
            if name.startswith(prefix):
                await self.delete_object(name)
                await self.purge(OBJECT_STREAM, subject)

    async def subjects(self, stream: str, pattern: str) -> list[str]:
        """The subjects with messages in a stream; empty if there is no such stream."""
        with _broker_errors(stream), contextlib.suppress(nats.js.errors.NotFoundError):
            return list((await self._js.stream_info(stream, subjects_filter=pattern)).state.subjects or {})
        return []

    async def _direct(self, stream: str, what: str, request: bytes) -> Stored | None:
        try:
            with _broker_errors(stream):
                subject = f"$JS.API.DIRECT.GET.{stream}{what}"
                answer = await self.connection.request(subject, request, timeout=ANSWER_S)
        except BrokerRefused:  # there is no such stream
            return None
        headers = answer.headers or {}
        number = number_in(headers.get("Nats-Sequence", ""))
        if number is None:
            return None
        return Stored(headers.get("Nats-Subject", subject), answer.data, headers, number)


@contextlib.asynccontextmanager
async def session(
    access: Access,
    name: str,
    *,
    patience_s: float | None = None,
    wire: Counter[str] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> AsyncIterator[Broker]:
    """A context with a connection as `name`. Waits for the broker for `patience_s`, or forever if it is None.

    wire     receives the bytes sent and received, with the overhead of NATS and TLS
    on_wait  called with the reason for a wait
    """
    connection = await connect_patiently(access, name, patience_s, on_wait)
    try:
        yield Broker(connection, access.api)
    finally:
        if wire is not None:
            wire.update(connection.wire_bytes())
        await connection.close_politely()


@contextlib.contextmanager
def _broker_errors(stream: str | None = None) -> Any:
    """Convert errors of nats-py into `BrokerLost` and `BrokerRefused`. `stream`: the stream that was asked."""
    try:
        yield
    except (
        nats.js.errors.ServiceUnavailableError,
        nats.errors.NoRespondersError,
        nats.js.errors.NoStreamResponseError,
    ):
        raise BrokerRefused("the broker has no such stream, or JetStream is not ready") from None
    except nats.js.errors.APIError as error:
        raise BrokerRefused(f"the broker refused: {printable(str(error.description or error))}", stream) from None
    except LOST as error:
        what = f" for {stream}" if stream else ""
        why = printable(str(error)) or type(error).__name__
        raise BrokerLost(f"the broker did not answer{what}: {why}", stream) from None
    except BrokerError:
        raise
    except Exception as error:  # the answer cannot be parsed
        raise BrokerLost(f"cannot read the broker's answer: {printable(repr(error))[:200]}") from None
