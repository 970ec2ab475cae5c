"""What the benchmark measures: a run, its clients, and a broker, as a value that every process is given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from qafel.config import Config
from qafel.deployment.access import Access

Figures: TypeAlias = dict[str, Any]

RUN: Final = "bench"


@final
@dataclass(frozen=True, slots=True)
class Case:
    """One measurement."""

    updates: int = 20_000
    clients: int = 10
    dimension: int = 29_282
    quantizer: str = "qsgd:4"
    buffer_size: int = 10
    sync: str | None = None
    """The broker's sync interval: None for its default, two minutes; "always" for a sync per message."""
    secured: bool = False
    listeners: int = 0
    min_interval_s: float = 0.0
    mutants: int = 0
    """Damaged messages that one more client sends meanwhile."""

    @property
    def all_clients(self) -> int:
        return self.clients + self.listeners + (self.mutants > 0)

    def config(self) -> Config:
        return Config.from_dict(
            {
                "name": RUN,
                "task": {"name": "quadratic", "clients": self.all_clients, "dimension": self.dimension},
                "algorithm": {
                    "preset": "qafel",
                    "client_quantizer": self.quantizer,
                    "server_quantizer": self.quantizer,
                    "buffer_size": self.buffer_size,
                    "server_lr": 0.001,
                },
                "evaluation": {"every": 1_000_000_000},
                "stop": {"uploads": self.updates},
            }
        )

    def access(self, folder: Path, user: str) -> Access:
        if self.secured:
            return Access.of(None, folder / "broker" / user)
        return Access((f"nats://127.0.0.1:{(folder / 'port').read_text()}",))


def resident_bytes(pid: int | None = None) -> int:
    """The memory that a process has in use now."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return 4096 * pages


def cpu_s(pid: int) -> float:
    """The processor time that another process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[-1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
