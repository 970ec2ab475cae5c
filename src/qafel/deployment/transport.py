"""A NATS connection that is safe against a hostile broker or peer, and tools for asyncio tasks.

Only this file uses private attributes of nats-py. Its changes to nats-py apply to connections made here; other users of
nats-py in this process are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine, Iterable
from types import FunctionType
from typing import Any, Final, final

import nats.aio.client
import nats.errors
import nats.protocol.parser
from nats.aio.msg import Msg
from nats.js.api import Header
from nats.protocol.parser import Parser

from qafel.deployment.keys import Access
from qafel.deployment.names import MALFORMED, OVERHEAD_BYTES
from qafel.errors import BrokerUnreachable
from qafel.text import printable

_CANCEL_AGAIN_S: Final = 2.0
_CLOSE_S: Final = 2.0
_LEAST_PAYLOAD: Final = 2 * OVERHEAD_BYTES
_WHEN_VALID: Final = (9, 10)  # OpenSSL's codes for a certificate that is not yet valid, or has expired
_STATUS_LINE: Final = re.compile(rb"NATS/1\.0(?: (\d{3})(?: ([ -~]*))?)?")
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
_TCP_BYTES: Final = struct.Struct("120xQQ")  # Linux's tcp_info up to tcpi_bytes_acked and tcpi_bytes_received

log = logging.getLogger(__name__)


async def run_until_one_ends(*works: Coroutine[Any, Any, object]) -> None:
    """Run all coroutines. When the first ends, cancel the others, and raise its exception if it has one."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(tasks)
    for task in done:
        task.result()


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended.

    One attempt may not be enough: before Python 3.12, `asyncio.wait_for` loses a cancellation that coincides with its
    result, and nats-py uses it.
    """
    all_of_them, interrupted = list(tasks), False
    for task in all_of_them:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # else Python prints it
    while pending := [task for task in all_of_them if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
        except asyncio.CancelledError:
            interrupted = True  # leave no task behind
    if interrupted:
        raise asyncio.CancelledError


async def wait_for_event(event: asyncio.Event, most_s: float) -> None:
    """Wait until an event is set, for at most `most_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


@final
class _OutdatedBroker(nats.errors.Error):
    """The broker is too old to be trusted with keys."""


@final
class _Parser(Parser):
    """The parser of nats-py with stricter patterns.

    The original patterns treat a line end as a blank. A client could then write headers that are read as the broker's
    commands. A subject with unusual bytes would end the connection.
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
class Connection(nats.aio.client.Client):
    """A connection of nats-py that trusts the other end less."""

    def __init__(self, *, tls_only: bool, with_key: bool) -> None:
        super().__init__()
        self.gone = asyncio.Event()
        """Set when the connection is closed."""
        self._tls_only, self._with_key = tls_only, with_key
        self._ps = _Parser(self)

    def _connect_command(self) -> bytes:
        """Called after the TLS handshake. Without this, asyncio warns when the connection closes."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.get_extra_info("ssl_object") is not None:
            writer.transport.get_protocol()._over_ssl = True
        command: bytes = super()._connect_command()
        return command

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Refuse a connection without TLS if our credentials require it.

        nats-py starts TLS only if the broker's first line asks for it. That line is not encrypted, so an attacker could
        remove the request.
        """
        if self._tls_only and initial_connection and not info.get("tls_required"):
            raise nats.errors.Error("it does not offer TLS, which our credentials require")
        if initial_connection and (problem := outdated(info.get("version"))):
            if self._with_key:
                raise _OutdatedBroker(problem)
            log.warning("The broker %s", problem)
        most = info.get("max_payload", 0)
        if not isinstance(most, int) or most < _LEAST_PAYLOAD:
            raise nats.errors.Error(f"its largest message is {most!r} bytes, expected at least {_LEAST_PAYLOAD}")
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """Never raise: an exception here would end the read loop, so that a peer could block us."""
        return read_headers(headers) if headers else None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """Accept subjects that are not UTF-8."""
        subject_text, reply_text = subject.decode(errors="replace"), reply.decode(errors="replace")
        return Msg(_client=self, subject=subject_text, reply=reply_text, data=data, headers=headers, _sid=sid)

    def wire_bytes(self) -> dict[str, int]:
        """The bytes sent and received, as TCP counts them; empty if the system does not count."""
        writer: Any = getattr(getattr(self, "_transport", None), "_io_writer", None)
        try:
            line = writer.get_extra_info("socket")
            info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_BYTES.size)
            acknowledged, received = _TCP_BYTES.unpack(info)
        except (AttributeError, OSError, struct.error):  # closed already, or not Linux
            return {}
        return {"sent": acknowledged, "received": received}

    async def acknowledge(self, messages: list[Msg], answer_s: float) -> None:
        """Acknowledge messages, and wait for the answer to the last: the broker processes them in order."""
        *others, last = messages
        if others:
            commands = "".join(f"PUB {message.reply}  4\r\n+ACK\r\n" for message in others)
            await self._send_command(commands.encode())
        await self.request(last.reply, b"+ACK", timeout=answer_s)

    async def drop(self) -> None:
        """Close without a goodbye."""
        await self._end(self._own_tasks())

    async def close_politely(self) -> None:
        """Close; if the broker does not answer in time, drop the connection."""
        tasks = self._own_tasks()
        try:
            with contextlib.suppress(nats.errors.Error, OSError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.close()
        finally:
            await self._end(tasks)

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        """End every task of nats-py: if its last write fails, it leaves them pending. Then close the socket."""
        try:
            await cancel_and_wait(tasks)
        finally:
            # Below TLS: asyncio does not abort a TLS connection that was closed twice. Unsent bytes would keep it open.
            writer = getattr(getattr(self, "_transport", None), "_bare_io_writer", None)
            if writer is not None:
                writer.transport.abort()

    def _own_tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks of nats-py that read, ping, write and call back."""
        found = [getattr(self, f"_{work}_task", None) for work in ("reading", "ping_interval", "flusher")]
        found += [getattr(each, "_wait_for_msgs_task", None) for each in getattr(self, "_subs", {}).values()]
        return [task for task in found if isinstance(task, asyncio.Task) and task is not asyncio.current_task()]


def outdated(version: object) -> str | None:
    """Why a broker of this version cannot be trusted with keys; None if it can."""
    match = _VERSION.match(str(version))
    number = tuple(map(int, match.groups())) if match else ()
    if number >= (2, 12, 7) or (2, 11, 16) <= number < (2, 12):
        return None
    found = f"is nats-server {printable(str(version))[:40]}" if match else "does not report its version"
    return f"{found}; old versions have security holes in their authorization: upgrade it to 2.11.16, 2.12.7 or later"


def read_headers(block: bytes) -> dict[str, str]:
    """Read a message's headers, with the broker's status and description. Never raises.

    The sender writes the headers, so they may be anything. A block that violates the protocol gives only `MALFORMED`.
    """
    first, *lines = block.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    try:
        if status is None or lines[-2:] != [b"", b""]:
            raise ValueError("expected a status line and an empty line at the end")
        named = [line.decode().partition(":") for line in lines[:-2]]
        if not all(colon and _HEADER_NAME.fullmatch(name) for name, colon, _ in named):
            raise ValueError("expected lines of the form name: value")
    except ValueError as error:  # includes text that is not UTF-8
        return {MALFORMED: str(error)}
    stated = zip((Header.STATUS.value, Header.DESCRIPTION.value), status.groups(), strict=True)
    found = {name: text.decode("ascii") for name, text in stated if text}
    return found | {name: value.strip() for name, _, value in named}


async def connect_patiently(
    access: Access, name: str, patience_s: float | None, on_wait: Callable[[str], None] | None = None
) -> Connection:
    """Connect as `name`. Try for `patience_s`, or forever if it is None. `on_wait` receives the reason for a wait.

    With limited patience, an outdated broker or failing TLS raises immediately. With unlimited patience the function
    tries again, because the clock may be corrected or the broker upgraded.
    """
    loop, pause_s, warned = asyncio.get_running_loop(), 0.1, False
    deadline = None if patience_s is None else loop.time() + patience_s
    while True:
        for url in random.sample(access.servers, len(access.servers)):
            try:
                return await _connect(access, url, name)
            except (ssl.SSLError, _OutdatedBroker) as error:
                problem = _mistake(url, error)
                if patience_s is not None:
                    raise BrokerUnreachable(problem) from None
                if not warned:
                    log.warning("%s. Trying again.", problem)
                warned = True
            except Exception as error:  # nats-py raises any type on a malformed first line
                problem = printable(str(error)) or type(error).__name__
                # A wrong, revoked or missing key stays wrong. Other errors, such as a handshake timeout or a limit of
                # connections, may be over at the next attempt.
                if isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in problem.lower():
                    raise BrokerUnreachable(
                        f"the broker at {url} refused our key: it is wrong, revoked or missing"
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
        reason = f"the broker's {reason} at {now} by this machine's clock: set the clock if it is wrong"
    return f"TLS with {url} failed: {reason}"


async def _connect(access: Access, url: str, name: str) -> Connection:
    tls = access.tls()
    connection = Connection(tls_only=tls is not None, with_key=access.seed is not None)

    async def on_closed() -> None:
        connection.gone.set()

    async def on_error(error: Exception) -> None:
        log.info("Broker: %s", printable(str(error)))

    try:
        await connection.connect(
            url,
            name=name,
            tls=tls,
            nkeys_seed_str=access.seed,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # zero means forever
            reconnect_time_wait=0,
            connect_timeout=5,
            ping_interval=5,
            max_outstanding_pings=2,
            closed_cb=on_closed,
            error_cb=on_error,
            inbox_prefix=f"_INBOX_{name}",
            pending_size=64 << 20,
        )
    except BaseException:  # including cancellation
        await connection.drop()
        raise
    return connection
