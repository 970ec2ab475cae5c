"""How long messages travel: real bytes over a client's bandwidth, so that quantization shortens virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from qafel.errors import ConfigError
from qafel.simulator.durations import client_factors


@final
@dataclass(frozen=True, slots=True)
class Network:
    """Bytes per unit of virtual time each way (None: at once), a latency, and a factor for each client."""

    upload_rate: float | None = None
    download_rate: float | None = None
    latency: float = 0.0
    factors: list[float] | None = None

    @staticmethod
    def of(
        seed: int,
        clients: int,
        *,
        upload_rate: float | None,
        download_rate: float | None,
        latency: float,
        spread: float,
    ) -> Network:
        for rate in (upload_rate, download_rate):
            if rate is not None and rate <= 0:
                raise ConfigError(f"a network rate is positive, got {rate}")
        return Network(upload_rate, download_rate, latency, client_factors(seed, "bandwidth", clients, spread))

    def upload_time(self, client: int, size_bytes: int) -> float:
        return self.latency + self._time(client, size_bytes, self.upload_rate)

    def download_time(self, client: int, size_bytes: int) -> float:
        return self.latency + self._time(client, size_bytes, self.download_rate)

    def _time(self, client: int, size_bytes: int, rate: float | None) -> float:
        if rate is None:
            return 0.0
        return size_bytes / (rate if self.factors is None else rate * self.factors[client])
