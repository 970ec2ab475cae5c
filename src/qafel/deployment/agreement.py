"""What server and clients must agree on, as the server writes it to the broker; and the state it renews there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

from qafel.algorithm import Algorithm
from qafel.config import Config
from qafel.errors import DataError
from qafel.params import Layout

FORMAT: Final = 1


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """The run's configuration and its model's layout."""

    run_id: str
    config: Config
    layout: Layout

    def algorithm(self) -> Algorithm:
        return self.config.algorithm.wire(self.layout)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "run_id": self.run_id,
                "config": self.config.to_toml(),
                "layout": [[name, list(shape)] for name, shape in self.layout.tensors],
            }
        ).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Agreement:
        try:
            read = json.loads(data)
            if read["format"] != FORMAT:
                raise DataError(
                    f"the server speaks format {read['format']}, this client {FORMAT}: upgrade the older one"
                )
            layout = Layout(tuple((str(name), tuple(map(int, shape))) for name, shape in read["layout"]))
            config = Config.from_toml(read["config"], "the server's configuration")
            return Agreement(str(read["run_id"]), config, layout)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"what the broker holds is no run's configuration: {error}") from None


@final
@dataclass(frozen=True, slots=True)
class RunState:
    """How a run fares. `version` and `digest` are of the last broadcast that went out."""

    state: str
    version: int
    digest: int
    server_steps: int = 0
    uploads: int = 0
    updates_per_s: float = 0.0
    upload_bytes: int = 0
    broadcast_bytes: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    """For the clients heard of last: how many versions behind their latest accepted update was."""
    buffer: str = ""
    metric: float | None = None
    metric_name: str = ""
    renewed_at: float = 0.0
    session: str = ""
    """Changes when the server had to connect anew: what was on its way then may be lost."""

    @property
    def ended(self) -> bool:
        return self.state not in ("running", "stopped")

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> RunState:
        try:
            read: dict[str, Any] = json.loads(data)
            return RunState(**{key: value for key, value in read.items() if key in RunState.__dataclass_fields__})
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"what the broker holds is no run's state: {error}") from None
