"""NATS's protocol byte by byte, and header blocks that are not what it says: the library would not send them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import nkeys

from qafel.deployment.keys import Access

BAD_HEADERS = [
    b"N",
    b"NATS/1.0",
    b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 503 \xff\r\n\r\n",
    b"NATS/1.0 503 a\r\nb: c\xff\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: 1\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nQafel-Signature: \xff\r\n\r\n",
    b"\x00" * 200,
    b"\r\n\r\n",
    b"0\r\nStatus: 409\r\n\r\n",  # which the library takes for the sizes of a message
    b"HTTP/1.1\r\na: b\r\n\r\n",
]


def random_headers(chooser: random.Random) -> bytes:
    """A header block that went wrong in some way, or in none."""
    block = bytearray(
        chooser.choice([
            b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\nA: 7\r\n\r\n",
            b"NATS/1.0\r\nQafel-Part: 1/0/2\r\nQafel-Signature: AAAA\r\n\r\n", b"NATS/1.0\r\nStatus: 409\r\n\r\n",
            b"NATS/1.0\r\nNats-Pending: x\r\nQafel-Object: y\r\n\r\n", chooser.randbytes(chooser.randrange(1, 80)),
        ])
    )  # fmt: skip
    for _ in range(chooser.randrange(5)):
        at = chooser.randrange(len(block) + 1)
        match chooser.randrange(4):
            case 0:
                block[at:at] = chooser.randbytes(chooser.randrange(1, 5))
            case 1:
                del block[at : at + chooser.randrange(1, 9)]
            case 2:
                block[at : at + 1] = chooser.randbytes(1)
            case _:
                block[at:at] = chooser.choice([b"\r\n", b" ", b":", b"\x00", b"NATS/1.0", b" 503 ", b"\xc3"])
    return bytes(block) or b"\x00"


class RawLine:
    """A connection to the broker on which anything can be said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def publish(self, subject: str, headers: bytes, data: bytes = b"not a frame") -> None:
        size = f"{len(headers)} {len(headers) + len(data)}"
        self._writer.write(f"HPUB {subject} {size}\r\n".encode() + headers + data + b"\r\n")

    def write(self, words: str) -> None:
        self._writer.write(words.encode())

    async def until(self, last: bytes) -> list[bytes]:
        """The lines that the broker says, up to this one."""
        heard: list[bytes] = []
        while not heard or heard[-1] != last:
            heard.append(await asyncio.wait_for(self._reader.readline(), 120))
            assert heard[-1], heard
        return heard

    async def flush(self) -> None:
        """Until the broker has read it all."""
        self._writer.write(b"PING\r\n")
        while (line := await asyncio.wait_for(self._reader.readline(), 120)) != b"PONG\r\n":
            assert line[:4] not in (b"", b"-ERR"), line


@contextlib.asynccontextmanager
async def raw_line(access: Access) -> AsyncIterator[RawLine]:
    """Connected, and let in if the broker asks for a key."""
    where, hello = urlsplit(access.servers[0]), {"verbose": False, "headers": True}
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        if (tls := access.tls()) is not None:
            await writer.start_tls(tls, server_hostname=where.hostname)
        if access.seed is not None:
            key = nkeys.from_seed(bytearray(access.seed.encode()))
            proof = base64.urlsafe_b64encode(key.sign(info["nonce"].encode())).rstrip(b"=").decode()
            hello |= {"nkey": key.public_key.decode(), "sig": proof}
        writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
        yield RawLine(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
