"""Opening a connection to the broker, patiently; and closing it with everything that belongs to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Iterator
from typing import Any, Final, final

import nats.errors
from nats.aio.client import Client as Connection

from qafel.deployment.access import Access
from qafel.deployment.together import end
from qafel.errors import BrokerUnreachable

LOST: Final = (
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.errors.TimeoutError,
    TimeoutError,
    OSError,
)
"""What the library raises when the line is broken or the broker does not answer."""

_CLOSE_S: Final = 2.0
log = logging.getLogger(__name__)
# nats-py upgrades to TLS in a way that asyncio remarks on whenever the other end closes.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in record.getMessage())


@final
class _TlsOnly(Connection):
    """The library begins TLS if the broker's first line asks for it. That line is in the clear: whoever is in between
    could strike the request out, and be told what only the broker should hear.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not info.get("tls_required"):
            raise nats.errors.Error("it offers no TLS, which our credentials demand")
        await super()._process_info(info, initial_connection)


async def connect_patiently(access: Access, name: str, patience_s: float | None) -> tuple[Connection, asyncio.Event]:
    loop, pause_s = asyncio.get_running_loop(), 0.1
    deadline = None if patience_s is None else loop.time() + patience_s
    while True:
        for url in random.sample(access.servers, len(access.servers)):
            try:
                return await _connect(access, url, name)
            except ssl.SSLError as error:
                raise BrokerUnreachable(f"TLS with {url} failed: {error.reason or error}") from None
            except (*LOST, nats.errors.Error, nats.errors.NoServersError, AssertionError) as error:
                _raise_if_refused(url, error)
                problem = str(error) or type(error).__name__
        if deadline is not None and loop.time() > deadline:
            raise BrokerUnreachable(
                f"no broker at {', '.join(access.servers)} ({problem}): start one, or give --broker or --credentials"
            )
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(2.0, 1.5 * pause_s)


def _raise_if_refused(url: str, error: Exception) -> None:
    """nats-server says one thing to a wrong, revoked or missing key. All else, such as its timeout for a slow handshake
    or its limit of connections, may be over at the next attempt.
    """
    if isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in str(error).lower():
        raise BrokerUnreachable(f"the broker at {url} does not let us in: wrong, revoked or missing key") from None


async def _connect(access: Access, url: str, name: str) -> tuple[Connection, asyncio.Event]:
    gone = asyncio.Event()

    async def on_closed() -> None:
        gone.set()

    async def on_error(error: Exception) -> None:
        log.info("broker: %s", error)

    options: dict[str, Any] = {}
    if (tls := access.tls()) is not None:
        options["tls"] = tls
    if access.seed is not None:
        options["nkeys_seed_str"] = access.seed
    connection = Connection() if tls is None else _TlsOnly()
    try:
        await connection.connect(
            url,
            name=name,
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
            **options,
        )
    except BaseException:  # cancelled, too
        await _drop(connection, list(_tasks(connection)))
        raise
    return connection, gone


async def close(connection: Connection) -> None:
    """Close politely, if the other end lets us; then end everything that belongs to it."""
    tasks = list(_tasks(connection))
    try:
        with contextlib.suppress(*LOST, nats.errors.Error):
            async with asyncio.timeout(_CLOSE_S):
                await connection.close()
    finally:
        await _drop(connection, tasks)


async def _drop(connection: Connection, tasks: list[asyncio.Task[Any]]) -> None:
    """End every task that the library began: where its last write fails, it leaves them behind, and they are
    destroyed while pending.
    """
    await end(tasks)
    if (transport := getattr(connection, "_transport", None)) is not None:
        transport.close()


def _tasks(connection: Connection) -> Iterator[asyncio.Task[Any]]:
    """Those that read, ping, write and call back; the library has no public name for them."""
    found = [getattr(connection, f"_{work}_task", None) for work in ("reading", "ping_interval", "flusher")]
    found += [getattr(each, "_wait_for_msgs_task", None) for each in getattr(connection, "_subs", {}).values()]
    yield from (task for task in found if isinstance(task, asyncio.Task) and task is not asyncio.current_task())
