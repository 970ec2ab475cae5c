"""Many real connections to a port at once."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def crowd(port: int, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections to a port of this machine, each of which says the same and then waits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 300:
        pytest.skip(f"this process may have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 300), hard))
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            held.append(socket.create_connection(("127.0.0.1", port), 60))
            with contextlib.suppress(OSError):  # closed already
                held[-1].sendall(said)
        yield held
    finally:
        for one in held:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def still_open(held: list[socket.socket]) -> int:
    """How many of these connections the other end has not closed; what it said is read."""
    count = 0
    for one in held:
        one.setblocking(False)
        try:
            while one.recv(1 << 20):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count
