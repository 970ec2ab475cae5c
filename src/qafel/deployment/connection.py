"""One connection to the broker: stored publishes, reads by subject, objects.

A connection is never mended. When it breaks, its user gets `BrokerLost` and begins a new session from the
start, so that a cut line, a restarted broker and a killed process all recover in the same few lines
(docs/decisions/deployment-broker-is-not-the-truth.md). Private attributes of nats-py are used in this file only. Its
changes to nats-py apply to its own connections; other users of the library in this process do not notice them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import random
import re
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, NamedTuple, final

import nats.errors
import nats.js.errors
import nats.protocol.parser
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, Header, ObjectMeta, ObjectMetaOptions, StorageType
from nats.protocol.parser import Parser

from qafel.deployment.keys import Access
from qafel.deployment.names import (
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
from qafel.errors import BrokerError, BrokerLost, BrokerRefused, BrokerUnreachable
from qafel.text import printable

ANSWER_S: Final = 5.0
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
"""What the library raises when the line is broken or the broker does not answer: a timeout is an `OSError`."""
_CANCEL_AGAIN_S: Final = 2.0
_CLOSE_S: Final = 2.0
_LOOK_S: Final = 1.0
_CHUNK_BYTES: Final = 512 << 10
_KEPT_BYTES: Final = 256 << 20
_WRONG_LAST_SEQUENCE: Final = 10071  # what JetStream calls it when the last message is not the one that we expect
_LEAST_PAYLOAD: Final = 2 * OVERHEAD_BYTES
_WHEN_VALID: Final = (9, 10)  # OpenSSL's numbers for a certificate that is not valid yet, or no longer
_STATUS_LINE: Final = re.compile(rb"NATS/1\.0(?: (\d{3})(?: ([ -~]*))?)?")
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
_TCP_BYTES: Final = struct.Struct("120xQQ")  # Linux's tcp_info up to tcpi_bytes_acked and tcpi_bytes_received

log = logging.getLogger(__name__)


async def run_until_one_ends(*works: Coroutine[Any, Any, object]) -> None:
    """Run all; when the first ends, cancel the others; raise what it raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(tasks)
    for task in done:
        task.result()


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended.

    Once is not enough: before Python 3.12, `asyncio.wait_for` loses a cancellation that comes together with its
    result, and the broker's library uses it.
    """
    all_of_them, interrupted = list(tasks), False
    for task in all_of_them:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # or Python prints it in the end
    while pending := [task for task in all_of_them if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
        except asyncio.CancelledError:
            interrupted = True  # but no task is left behind
    if interrupted:
        raise asyncio.CancelledError


async def wait_for_event(event: asyncio.Event, most_s: float) -> None:
    """Wait until an event is set, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


@final
class _OutdatedBroker(nats.errors.Error):
    """The broker is too old for keys; says how old."""


@final
class _Parser(Parser):
    """The library's parser with other patterns.

    Its own take a line's end for a blank: headers that begin with digits and a line's end are read as the sizes of a
    message, and what follows as the broker's words. A subject with odd bytes ends the connection.
    """

    parse = FunctionType(
        Parser.parse.__code__,
        {
            **vars(nats.protocol.parser),
            "MSG_RE": re.compile(rb"\AMSG +([^ \t\r\n]+) +(\d+) +(([^ \t\r\n]+) +)?(\d+)\r\n"),
            "HMSG_RE": re.compile(rb"\AHMSG +([^ \t\r\n]+) +(\d+) +(([^ \t\r\n]+) +)?(\d+) +(\d+)\r\n"),
        },
        argdefs=Parser.parse.__defaults__,
    )


@final
class _Connection(Connection):
    """The library's connection, where it trusts more than we do."""

    def __init__(self, *, tls_only: bool, with_key: bool) -> None:
        super().__init__()
        self._tls_only, self._with_key = tls_only, with_key
        self._ps = _Parser(self)

    def _connect_command(self) -> bytes:
        """Called when TLS has begun. The library does not tell the stream, and asyncio would warn when it ends."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.get_extra_info("ssl_object") is not None:
            writer.transport.get_protocol()._over_ssl = True
        command: bytes = super()._connect_command()
        return command

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Say nothing without TLS, where we should have it.

        The library begins TLS if the broker's first line asks for it. That line is in the clear: an attacker in between
        could remove the request, and be told what only the broker should hear.
        """
        if self._tls_only and initial_connection and not info.get("tls_required"):
            raise nats.errors.Error("it offers no TLS, which our credentials demand")
        if initial_connection and (problem := outdated(info.get("version"))):
            if self._with_key:
                raise _OutdatedBroker(problem)
            log.warning("the broker %s", problem)
        most = info.get("max_payload", 0)
        if not isinstance(most, int) or most < _LEAST_PAYLOAD:
            raise nats.errors.Error(f"it takes messages of at most {most!r} bytes, {_LEAST_PAYLOAD} are needed")
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """The library's own reading of some bytes raises, which ends its read loop: a peer could shut us up."""
        return read_headers(headers) if headers else None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """A subject is any bytes, too."""
        subject_text, reply_text = subject.decode(errors="replace"), reply.decode(errors="replace")
        return Msg(_client=self, subject=subject_text, reply=reply_text, data=data, headers=headers, _sid=sid)


def outdated(version: object) -> str | None:
    """Why a broker of this version is not to be trusted with keys: it lacks fixes of NATS's authorization; or None."""
    match = _VERSION.match(str(version))
    number = tuple(map(int, match.groups())) if match else ()
    if number >= (2, 12, 7) or (2, 11, 16) <= number < (2, 12):
        return None
    said = f"is nats-server {printable(str(version))[:40]}" if match else "does not say its version"
    return f"{said}; older ones have known holes in their authorization: upgrade it to 2.11.16, 2.12.7 or later"


def read_headers(block: bytes) -> dict[str, str]:
    """A message's headers, with the broker's own status and description; never raises.

    Whoever publishes a message writes its headers: a block that is not what the protocol says gives `MALFORMED` alone.
    """
    first, *lines = block.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    try:
        if status is None or lines[-2:] != [b"", b""]:
            raise ValueError("it does not begin and end as headers do")
        named = [line.decode().partition(":") for line in lines[:-2]]
        if not all(colon and _HEADER_NAME.fullmatch(name) for name, colon, _ in named):
            raise ValueError("a line in it does not say name: value")
    except ValueError as error:  # text that is not UTF-8 is one, too
        return {MALFORMED: str(error)}
    said = zip((Header.STATUS.value, Header.DESCRIPTION.value), status.groups(), strict=True)
    found = {name: text.decode("ascii") for name, text in said if text}
    return found | {name: value.strip() for name, _, value in named}


async def connect_patiently(
    access: Access, name: str, patience_s: float | None, on_wait: Callable[[str], None] | None = None
) -> Broker:
    """Connect as `name`, trying for so many seconds or forever; `on_wait` is told why that is not done at once.

    A broker that is too old or whose TLS fails is a mistake at the start, and raises. With unlimited patience it is
    tried again: the clock may be wrong, and a broker may be upgraded.
    """
    loop, pause_s, told = asyncio.get_running_loop(), 0.1, False
    deadline = None if patience_s is None else loop.time() + patience_s
    while True:
        for url in random.sample(access.servers, len(access.servers)):
            try:
                return await _connect(access, url, name)
            except (ssl.SSLError, _OutdatedBroker) as error:
                problem = _mistake(url, error)
                if patience_s is not None:
                    raise BrokerUnreachable(problem) from None
                if not told:
                    log.warning("%s; trying again", problem)
                told = True
            except Exception as error:  # the library's own, or what it makes of a first line that makes no sense
                problem = printable(str(error)) or type(error).__name__
                # nats-server says one thing to a wrong, revoked or missing key, and trying again is useless. All else,
                # such as its timeout for a slow handshake or its limit of connections, may be over at the next attempt.
                if isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in problem.lower():
                    raise BrokerUnreachable(
                        f"the broker at {url} does not let us in: wrong, revoked or missing key"
                    ) from None
        sentence = f"no broker at {', '.join(access.servers)} ({problem})"
        if deadline is not None and loop.time() > deadline:
            raise BrokerUnreachable(f"{sentence}: start one, or give `broker` or `credentials`")
        if on_wait is not None:
            on_wait(sentence)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(2.0, 1.5 * pause_s)


def _mistake(url: str, error: ssl.SSLError | _OutdatedBroker) -> str:
    if isinstance(error, _OutdatedBroker):
        return f"the broker at {url} {error}"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS with {url} failed: {error.reason or error}"
    reason = error.verify_message
    if error.verify_code in _WHEN_VALID:
        now = time.strftime("%Y-%m-%d %H:%M")
        reason = f"the broker's {reason} at {now}, says this machine: set the clock if that is wrong"
    return f"TLS with {url} failed: {reason}"


async def _connect(access: Access, url: str, name: str) -> Broker:
    tls, gone = access.tls(), asyncio.Event()
    connection = _Connection(tls_only=tls is not None, with_key=access.seed is not None)

    async def on_closed() -> None:
        gone.set()

    async def on_error(error: Exception) -> None:
        log.info("broker: %s", printable(str(error)))

    try:
        await connection.connect(
            url,
            name=name,
            tls=tls,
            nkeys_seed_str=access.seed,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # zero would mean: forever
            reconnect_time_wait=0,
            connect_timeout=5,
            ping_interval=5,
            max_outstanding_pings=2,
            closed_cb=on_closed,
            error_cb=on_error,
            inbox_prefix=f"_INBOX_{name}",
            pending_size=64 << 20,
        )
    except BaseException:  # cancelled, too
        await _drop(connection, _tasks(connection))
        raise
    return Broker(connection, gone, access.api)


async def close(connection: Connection) -> None:
    """Close politely, if the other end lets us; then end everything that belongs to it."""
    tasks = _tasks(connection)
    try:
        with contextlib.suppress(nats.errors.Error, OSError):
            async with asyncio.timeout(_CLOSE_S):
                await connection.close()
    finally:
        await _drop(connection, tasks)


async def _drop(connection: Connection, tasks: list[asyncio.Task[Any]]) -> None:
    """End every task that the library began: if its last write fails, it leaves them pending."""
    await cancel_and_wait(tasks)
    if (transport := getattr(connection, "_transport", None)) is not None:
        transport.close()


def _tasks(connection: Connection) -> list[asyncio.Task[Any]]:
    """The library's tasks that read, ping, write and call back; it has no public name for them."""
    found = [getattr(connection, f"_{work}_task", None) for work in ("reading", "ping_interval", "flusher")]
    found += [getattr(each, "_wait_for_msgs_task", None) for each in getattr(connection, "_subs", {}).values()]
    return [task for task in found if isinstance(task, asyncio.Task) and task is not asyncio.current_task()]


class Stored(NamedTuple):
    """A message as it was read: live, or from its stream."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int = 0
    """Its number in the stream that it was read from."""


@final
class Broker:
    """One connection to the broker, until it breaks."""

    def __init__(self, connection: Connection, gone: asyncio.Event, api: str) -> None:
        """`api` is what requests to JetStream begin with."""
        self.connection = connection
        self._js = connection.jetstream(prefix=api, timeout=ANSWER_S)
        self._gone = gone
        self._failure: BrokerError | None = None

    @property
    def part_bytes(self) -> int:
        """The largest payload that one message carries."""
        return self.connection.max_payload - OVERHEAD_BYTES

    def wire_bytes(self) -> dict[str, int]:
        """Bytes that went over the connection, "sent" and "received", as TCP counts them; none if it does not say."""
        writer: Any = getattr(getattr(self.connection, "_transport", None), "_io_writer", None)
        try:
            line = writer.get_extra_info("socket")
            info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_BYTES.size)
            acknowledged, received = _TCP_BYTES.unpack(info)
        except (AttributeError, OSError, struct.error):  # closed already, or not Linux
            return {}
        return {"sent": acknowledged, "received": received}

    async def until_lost(self) -> None:
        """Wait until the connection breaks, then raise. The library does not always say so: we look, too."""
        while not (self._gone.is_set() or self.connection.is_closed):
            await wait_for_event(self._gone, _LOOK_S)
        why = printable(str(self.connection.last_error or "closed"))
        raise self._failure or BrokerLost(f"the connection to the broker broke: {why}")

    def give_up(self, failure: BrokerError) -> None:
        """Have `until_lost` raise this."""
        self._failure = failure
        self._gone.set()

    async def answers_for(self, stream: str) -> bool:
        """Whether the broker says anything about a stream, if only that something is wrong with it."""
        try:
            await self.waiting(stream)
        except BrokerRefused as refusal:
            return refusal.stream is not None
        except BrokerLost:
            return False
        return True

    async def subscribe(self, subject: str, handle: Callable[[Stored], Awaitable[None]]) -> None:
        """Have `handle` called with every message that is published to a subject from now on; one whose headers cannot
        be read is passed over.
        """

        async def receive(message: Msg) -> None:
            if MALFORMED in (message.headers or {}):
                log.warning("a message to %r is ignored, its headers cannot be read", message.subject)
                return
            await handle(Stored(message.subject, message.data, message.headers or {}))

        with _broker_errors():
            await self.connection.subscribe(subject, cb=receive)

    async def send(self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Publish without waiting for anyone."""
        with _broker_errors():
            await self.connection.publish(subject, data, reply, headers or None)

    async def acknowledge(self, messages: list[Msg]) -> None:
        """Let the broker forget these; returns when it has. Acknowledgements are worked off in order, so that the
        answer to the last one is the answer to all.
        """
        if not messages:
            return
        *others, last = messages
        with _broker_errors(stream_of(last.subject)):
            if others:  # what the library's `publish` sends, for all at once
                commands = "".join(f"PUB {message.reply}  4\r\n+ACK\r\n" for message in others)
                await self.connection._send_command(commands.encode())
            await self.connection.request(last.reply, b"+ACK", timeout=ANSWER_S)

    async def flush(self) -> None:
        with _broker_errors():
            await self.connection.flush(int(ANSWER_S))

    async def store(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, after: int | None = None
    ) -> int:
        """Publish and wait until the broker says that it has it; return the message's number in its stream.

        With `after` it is stored only if the last message of the subject has this number, 0 if there must be none.
        """
        if after is not None:
            headers = {**(headers or {}), Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(after)}
        stream = stream_of(subject)
        with _broker_errors(stream):
            answer = await self.connection.request(subject, data, timeout=ANSWER_S, headers=headers or None)
            found = json.loads(answer.data)
            if error := found.get("error"):
                why = printable(str(error.get("description")))
                does_its_part = error.get("err_code") == _WRONG_LAST_SEQUENCE
                raise BrokerRefused(f"the broker did not store {subject}: {why}", None if does_its_part else stream)
            return int(found.get("seq", 0))

    async def stored(self, stream: str, subject: str) -> Stored | None:
        """The last message of a subject, or None."""
        return await self._direct(stream, f".{subject}", b"")

    async def _next(self, stream: str, sequence: int, subject: str = ">") -> Stored | None:
        """The first message of a subject, or of any, from this number on; None if there is none that can be read."""
        return await self._direct(stream, "", json.dumps({"seq": sequence, "next_by_subj": subject}).encode())

    async def object(self, name: str, most_bytes: int) -> tuple[bytes, str] | None:
        """An object's bytes and its description; None if there is none, it was replaced while we read, or has more than
        `most_bytes`: whose it is we know when we have read it.
        """
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
        """Store an object under its name, in place of the one before."""
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
        """Make the run's streams, as far as they are missing, with these limits."""
        for config in streams(names, limits):
            with _broker_errors(config.name):
                try:
                    await self._js.add_stream(config)
                except nats.js.errors.BadRequestError:
                    await self._js.update_stream(config)

    async def ensure_buckets(self, replicas: int) -> None:
        """Make the buckets that all runs share, as far as they are missing."""
        with _broker_errors(KEY_VALUE_STREAM):
            if await self.waiting(KEY_VALUE_STREAM) is None:
                await self._js.create_key_value(
                    bucket=BUCKET, history=1, direct=True, storage=StorageType.FILE, replicas=replicas
                )
        with _broker_errors(OBJECT_STREAM):
            if await self.waiting(OBJECT_STREAM) is None:
                await self._js.create_object_store(BUCKET, storage=StorageType.FILE, replicas=replicas)

    async def new_consumer(self, names: Names, epoch: int, waiting_parts: int = 0) -> None:
        """A fresh consumer: what a server before was given and did not acknowledge is delivered at once, and what that
        one acknowledges from now on has no effect.
        """
        with _broker_errors(names.upload_stream):
            for before in await self._js.consumers_info(names.upload_stream):
                with contextlib.suppress(nats.js.errors.NotFoundError):
                    await self._js.delete_consumer(names.upload_stream, before.name)
            await self._js.add_consumer(
                names.upload_stream,
                ConsumerConfig(
                    durable_name=names.consumer(epoch),
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=ACK_WAIT_S,
                    max_ack_pending=MAX_ACK_PENDING + waiting_parts,  # which take no place of other messages
                ),
            )

    async def waiting(self, stream: str) -> int | None:
        """How many messages a stream holds; None if there is no such stream."""
        with _broker_errors(stream), contextlib.suppress(nats.js.errors.NotFoundError):
            return (await self._js.stream_info(stream)).state.messages
        return None

    async def purge(self, stream: str, subject: str | None = None) -> None:
        """Empty a stream, or of one subject."""
        with _broker_errors(stream):
            await self._js.purge_stream(stream, subject=subject)

    async def delete(self, stream: str) -> bool:
        """Delete a stream with all that the broker reserves for it; False if there is none."""
        with _broker_errors(stream), contextlib.suppress(nats.js.errors.NotFoundError):
            return await self._js.delete_stream(stream)
        return False

    async def make_again(self, stream: str) -> None:
        """Delete a stream, and make it again with those of its messages that can be read, up to 256 MB.

        Its numbers go on: whoever waits to replace an older message, as the holder of a lease does, is refused.
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
            if info is not None:  # else whoever needs it makes it
                await self._js.add_stream(info.config.evolve(first_seq=info.state.last_seq + 1))
        after = 0 if stream == KEY_VALUE_STREAM else None  # whoever was faster has the newer value
        for each in readable:
            headers = {name: value for name, value in each.headers.items() if not name.startswith("Nats-")}
            with contextlib.suppress(BrokerRefused):
                await self.store(each.subject, each.data, headers, after=after)

    async def delete_objects(self, prefix: str) -> None:
        """Delete the objects whose names begin so, and all trace of them."""
        for subject in await self.subjects(OBJECT_STREAM, f"$O.{BUCKET}.M.*"):
            name = base64.urlsafe_b64decode(subject.rsplit(".", 1)[-1]).decode(errors="replace")
            if name.startswith(prefix):
                await self.delete_object(name)
                await self.purge(OBJECT_STREAM, subject)

    async def subjects(self, stream: str, pattern: str) -> list[str]:
        """The subjects that a stream holds messages of; none if there is no such stream."""
        with _broker_errors(stream), contextlib.suppress(nats.js.errors.NotFoundError):
            return list((await self._js.stream_info(stream, subjects_filter=pattern)).state.subjects or {})
        return []

    async def _direct(self, stream: str, what: str, request: bytes) -> Stored | None:
        try:
            with _broker_errors(stream):
                subject = f"$JS.API.DIRECT.GET.{stream}{what}"
                answer = await self.connection.request(subject, request, timeout=ANSWER_S)
        except BrokerRefused:  # no one answers for a stream that does not exist
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
    """A connection, closed at the end, as `name`. Waits for a broker that is not there yet, forever or so many seconds.

    `wire` is added the bytes sent and received, with all that NATS and TLS add; `on_wait` is told why it waits.
    """
    broker = await connect_patiently(access, name, patience_s, on_wait)
    try:
        yield broker
    finally:
        if wire is not None:
            wire.update(broker.wire_bytes())
        await close(broker.connection)


@contextlib.contextmanager
def _broker_errors(stream: str | None = None) -> Any:
    """Turn the library's errors into ours: lost, or refused; and by which stream, if one was asked."""
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
    except Exception as error:  # what it answered is not what the library, or we, can read
        raise BrokerLost(f"the broker's answer makes no sense: {printable(repr(error))[:200]}") from None
