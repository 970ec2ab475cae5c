"""Real processes: a server and clients as a user starts them, a broker, and a line between them that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import IO, Any

from qafel.deployment.transport import cancel_and_wait
from qafel.http import stop_accepting

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 120.0, *, look_s: float = 0.05) -> Any:
    """Look again and again. Time in which this process itself stands still does not count."""
    looks = 1 + int(timeout_s / look_s)
    while not (found := condition()):
        if not (looks := looks - 1):
            raise AssertionError(f"waited {timeout_s} s for {what}")
        time.sleep(look_s)
    return found


class Command:
    """A `qafel` command in a process of its own; its output goes to a file."""

    def __init__(
        self,
        name: str,
        output: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        piped: bool = False,
    ) -> None:
        """With `piped` we write its output for it: then a disk that is full for it takes nothing from what it says."""
        self.output = output
        self._copying: list[threading.Thread] = []
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as out, output.with_suffix(".err").open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qafel", name, *arguments],
                stdout=subprocess.PIPE if piped else out,
                stderr=subprocess.PIPE if piped else err,
                start_new_session=True,
                env=environment,
            )
        if piped:
            self._copy(self.process.stdout, output)
            self._copy(self.process.stderr, output.with_suffix(".err"))

    def _copy(self, pipe: IO[bytes] | None, path: Path) -> None:
        def copy() -> None:
            assert pipe is not None
            with pipe, path.open("ab", buffering=0) as file:
                while data := os.read(pipe.fileno(), 1 << 16):
                    file.write(data)

        self._copying.append(threading.Thread(target=copy, daemon=True))
        self._copying[-1].start()

    @property
    def errors(self) -> str:
        """What it and those before it said to people, without the blanks: lines break anywhere."""
        return "".join(self.output.with_suffix(".err").read_text(encoding="utf-8", errors="replace").split())

    def said(self, sentence: str) -> bool:
        return "".join(sentence.split()) in self.errors

    @property
    def alive(self) -> bool:
        if self.process.poll() is None:
            return True
        self._have_all()
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._have_all()

    def _have_all(self) -> None:
        for copying in self._copying:
            copying.join(60)

    def end(self, timeout_s: float = 120.0) -> int:
        """Ask it to end, as a user does."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_s)
            self._have_all()
            return code
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.output} did not end within {timeout_s} s") from None

    def events(self, last_bytes: int | None = None) -> list[dict[str, Any]]:
        """JSON lines so far, or the last of them; a line that is torn is left out."""
        return self.events_of(self.output, last_bytes)

    @staticmethod
    def events_of(output: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:
        """The same, of all processes that wrote to this file."""
        with output.open("rb") as file:
            if last_bytes is not None:
                file.seek(max(0, output.stat().st_size - last_bytes))
            text = file.read().decode("utf-8", "replace")
        found = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


@contextlib.asynccontextmanager
async def listening(handler: Handler, port: int = 0) -> AsyncIterator[int]:
    """A TCP server and its port. Every connection ends with it, even one that is accepted at the last moment.

    A task that is cancelled before its first step runs no `finally`, so no handler can see to this itself.
    """
    tasks, transports = list[asyncio.Task[None]](), list[asyncio.WriteTransport]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transports.append(writer.transport)
        tasks.append(asyncio.create_task(handler(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_accepting(server)
        await cancel_and_wait(tasks)
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0)  # transports close in the next round


class Line:
    """A TCP relay to the broker whose connections can be cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = contextlib.AsyncExitStack()
        self.port = self._run(self._server.enter_async_context(listening(self._relay)))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        both = {writer, other_writer}
        self._writers |= both
        try:
            await asyncio.gather(_pump(reader, other_writer), _pump(other_reader, writer))
        finally:
            self._writers -= both
            for end in both:
                end.transport.abort()

    def cut(self) -> None:
        """Break every connection at once, in the middle of whatever it carries."""
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self._writers])

    def close(self) -> None:
        self._run(self._server.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
