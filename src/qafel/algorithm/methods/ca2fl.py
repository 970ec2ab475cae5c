"""CA²FL: the server calibrates a buffer by each client's last update. Wang et al., ICLR 2024.

The server caches hᵢ, the last update of client i, and their mean h̄ over all N clients. v = h̄ + (1/K)Σ(Δᵢ − hᵢ) with hᵢ
and h̄ from before the step; x ← x − η_g v; then hᵢ ← Δᵢ. If a client is in the buffer twice, both differences use the
old hᵢ, and its last update is kept. The server keeps payloads, not vectors: N times the bytes of an upload.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm.accumulators import Buffered
from qafel.algorithm.admission import PolynomialStaleness
from qafel.algorithm.algorithm import Algorithm
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE
from qafel.algorithm.parts import Batch, Direction, Needs, Next, Upload
from qafel.algorithm.state import Rows
from qafel.params import Vector
from qafel.quantizers.protocol import Quantizer


@final
class CachedUpdates(Buffered):
    """h̄ + (1/K)Σ(Δᵢ − hᵢ). A client that joins during a run has hᵢ = 0 until its first update."""

    needs = Needs(clients=True, exact_uploads=True)

    def problem(self, algorithm: Algorithm) -> str | None:
        plain = algorithm.client_weights == "equal" and algorithm.staleness == PolynomialStaleness()
        fits = plain and not algorithm.client_rule.sends_model
        return None if fits else "cached updates need equal weights, no staleness law, and clients that send updates"

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        assert clients is not None
        self.clients = clients
        self.mean: NDArray[np.float64] = np.zeros(size, np.float64)
        """h̄, in double precision: it is a sum of many small moves."""
        self.cached, self.waiting = Rows(dtype=np.uint8), Rows(dtype=np.uint8)
        """The last update of each client in the buffer."""
        super().begin_(algorithm, size, clients)

    def empty_(self) -> None:
        super().empty_()
        self.total: Vector = np.zeros(self.size, np.float32)

    def add_(self, upload: Upload, quantizer: Quantizer) -> Next:
        self.total += upload.vector(quantizer) - self._last(upload.client, quantizer)
        self.waiting[upload.client] = bytes(upload.payload)
        return self.count_(upload, 1.0)

    def close_(self) -> Batch:
        batch = Batch(self.count, self.max_staleness, {"total": self.total, "waiting": dict(self.waiting)})
        self.waiting = Rows(dtype=np.uint8)
        self.empty_()
        return batch

    def direction(self, batch: Batch, model: Vector) -> Direction:
        memory = self.mean.astype(np.float32)
        return Direction(batch.content["total"], float(batch.uploads), 0.0, memory, batch.uploads, batch.max_staleness)

    def stepped_(self, batch: Batch, quantizer: Quantizer) -> None:
        for client, payload in batch.content["waiting"].items():
            self.mean += (quantizer.decode(payload, self.size) - self._last(client, quantizer)) / self.clients
            self.cached[client] = payload

    def _last(self, client: int, quantizer: Quantizer) -> Vector:
        payload = self.cached.get(client)
        return np.zeros(self.size, np.float32) if payload is None else quantizer.decode(payload, self.size)


CA2FL = Preset("a buffer calibrated by each client's last update", {**HIDDEN_STATE, "accumulator": "cached"})
