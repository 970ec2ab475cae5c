"""Ringleader ASGD: every step uses an update of every client. Maranjyan and Richtárik, arXiv 2509.22860.

Tables (G, b) and (G⁺, b⁺) hold each client's sum of updates and their number. Phase 1 collects into (G, b) until every
b > 0; clients continue from the model that they hold. Phase 2 makes exactly n steps x ← x − η_g (1/n)Σ Gᵢ/bᵢ, the first
with the arrival that ends phase 1. The newest model goes to the client that triggers a step; that client leaves the
pending set. An arrival from a pending client adds to (G, b) and triggers a step; any other adds to (G⁺, b⁺). When
no client is pending, (G, b) ← (G⁺, b⁺), and phase 1 starts again. The delay is at most 2n − 2.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm.admission import PolynomialStaleness
from qafel.algorithm.algorithm import Algorithm
from qafel.algorithm.methods.fedbuff import UNQUANTIZED
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE
from qafel.algorithm.parts import Accumulator, Batch, Direction, Needs, Next, Upload
from qafel.algorithm.state import Rows
from qafel.params import Vector
from qafel.quantizers.protocol import Quantizer


@final
class OneOfEach(Accumulator):
    """The mean over all clients of each client's mean update. O(n·d). A client cannot join during a run."""

    needs = Needs(clients=True, continues=True, exact_uploads=True)

    def problem(self, algorithm: Algorithm) -> str | None:
        plain = algorithm.client_weights == "equal" and algorithm.staleness == PolynomialStaleness()
        fits = plain and not algorithm.client_rule.sends_model
        return None if fits else "Ringleader needs equal weights, no staleness law, and clients that send updates"

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        assert clients is not None
        self.size, self.clients = size, clients
        self.sums, self.later_sums = Rows(dtype=np.float32), Rows(dtype=np.float32)
        self.numbers, self.later_numbers = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
        self.pending: NDArray[np.bool_] = np.zeros(clients, bool)
        """In phase 2, the clients that have not triggered a step. In phase 1, none."""
        self.count = self.max_staleness = 0
        self.trigger = -1
        """The client whose arrival makes a step due; −1: none."""

    @property
    def due(self) -> bool:
        return self.trigger >= 0

    def add_(self, upload: Upload, quantizer: Quantizer) -> Next:
        update, client = upload.vector(quantizer), upload.client
        collecting = not self.pending.any()
        if collecting or self.pending[client]:
            sums, numbers = self.sums, self.numbers
        else:
            sums, numbers = self.later_sums, self.later_numbers
        sums[client] = sums[client] + update if client in sums else update.copy()  # a row becomes read-only
        numbers[client] += 1
        self.count += 1
        self.max_staleness = max(self.max_staleness, upload.staleness)
        if collecting and (numbers > 0).all():
            self.pending[:] = True  # phase 2 begins with this arrival
        if numbers is self.later_numbers or not self.pending[client]:
            return Next.SAME
        self.trigger = client
        return Next.NEWEST

    def close_(self) -> Batch:
        total = np.zeros(self.size, np.float64)
        for client in range(self.clients):  # in a fixed order, so that a replay gives the same bits
            total += self.sums[client] / float(self.numbers[client])
        batch = Batch(self.count, self.max_staleness, {"total": total.astype(np.float32)})
        self.pending[self.trigger] = False
        if not self.pending.any():
            self.sums, self.numbers = self.later_sums, self.later_numbers
            self.later_sums, self.later_numbers = Rows(dtype=np.float32), np.zeros(self.clients, np.int64)
        self.count, self.max_staleness, self.trigger = 0, 0, -1
        return batch

    def direction(self, batch: Batch, model: Vector) -> Direction:
        return Direction(
            batch.content["total"], float(self.clients), uploads=batch.uploads, max_staleness=batch.max_staleness
        )


RINGLEADER = Preset(
    "every step uses an update of every client",
    {**HIDDEN_STATE, "accumulator": "one-of-each", "client_rule": "update", "buffer_size": 1},
    UNQUANTIZED,
)
