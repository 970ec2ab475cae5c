"""A client of a run, in data-flow order.

client    from a run's name and a folder to a client: copy x̂, train in a thread or a process, upload
outbox    uploads until the server says that it has them; what the client keeps on disk
memory    a client rule's memory, written before each upload is sent
follower  x̂ in version order, from live broadcasts, the stream, or a snapshot

`ClientSettings` says how it works, beside what the run's recipe says; `ClientReport` what it did.
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
    window: int = 8
    """Uploads on their way before training waits."""
    worker: Literal["thread", "process"] = "thread"
    """Where training runs. A process helps if training holds the interpreter's lock, which would delay x̂."""
    save_every_s: float = 10.0
    tell_every_s: float = 5.0
    """Between the first two events that say how it goes; then twice as long each time, up to a minute."""
    max_failures: int = 10
    """Failures of training in a row that end the client; the server hears of each."""
    failure_pause_s: float = 1.0
    """After the first of them; then twice as long each time, up to a minute."""
    settle_s: float = 30.0
    """How long to wait at the end for the last receipts."""
    patience_s: float | None = None
    """How long to wait for the broker and the run at the start; None: forever."""
    parts: tuple[str, ...] = ()
    """Import paths of own parts that the run's configuration may name; of no other one is anything imported."""

    def require_named(self, what: str, path: str) -> None:
        """Refuse an own part that the run's server names and this client's user does not: to import is to run code."""
        if path not in self.parts:
            path = printable(path)
            raise ConfigError(
                f"the run's {what} is {path}, and a client imports only what its own user names: if you trust "
                f"that module on this machine, add `part` {path}"
            )


@final
@dataclass(slots=True)
class ClientReport:
    """What a client did in all."""

    client: int
    version: int = 0
    digest: int = 0
    updates: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0
    wire_sent_bytes: int = 0
    """With all that NATS and TLS add; zero if the system does not count."""
    wire_received_bytes: int = 0
    run_state: str = ""
