"""A client of a run, in data-flow order.

client    copy x̂, train, upload
training  local training, in a thread or another process
outbox    uploads in flight, until their receipts arrive
state     the client's folder: hidden state, upload numbers, memory
follower  x̂ in version order, from live broadcasts, the stream, a snapshot or a linked start
starts    requests for linked starts

`ClientSettings` holds what the run's recipe does not; `ClientReport` is a client's result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from qafel.errors import ConfigError
from qafel.text import printable


@final
@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client works."""

    max_updates: int | None = None
    min_interval_s: float = 0.0
    """The least time between two starts."""
    follow: Literal["always", "start"] = "always"
    """Whether the client follows all broadcasts, or downloads before each start and disconnects between starts."""
    window: int = 8
    """Uploads in flight before training waits."""
    worker: Literal["thread", "process"] = "thread"
    """Where training runs. A process helps if training holds the interpreter's lock."""
    save_every_s: float = 10.0
    report_every_s: float = 5.0
    """Time between the first two progress events. It doubles each time, up to a minute."""
    max_failures: int = 10
    """Consecutive failures of training that end the client. The server is informed of each."""
    failure_pause_s: float = 1.0
    """The pause after the first failure. It doubles each time, up to a minute."""
    settle_s: float = 30.0
    """How long to wait for the last receipts at the end."""
    patience_s: float | None = None
    """How long to wait for the broker and the run at the start. None: forever."""
    parts: tuple[str, ...] = ()
    """Import paths of custom parts that the run may use. Nothing else that the server names is imported."""

    def require_named(self, what: str, path: str) -> None:
        """Raise if `parts` does not have this custom part, because an import runs code."""
        if path not in self.parts:
            path = printable(path)
            raise ConfigError(
                f"the run's {what} is {path}, and a client imports only parts that its user allows: if you trust this "
                f"module, add `part` {path}"
            )


@final
@dataclass(slots=True)
class ClientReport:
    """What a client did in total."""

    client: int
    version: int = 0
    digest: int = 0
    updates: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0
    wire_sent_bytes: int = 0
    """Includes the overhead of NATS and TLS; zero if the system does not count."""
    wire_received_bytes: int = 0
    run_state: str = ""
