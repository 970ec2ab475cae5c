"""The two messages of a method: a frame of 64 bytes and the quantizer's payload, the longest where lengths vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from qafel.algorithm.messages import HEADER_BYTES
from qafel.quantizers.protocol import Quantizer


@final
@dataclass(frozen=True, slots=True)
class Exchange:
    """What a client sends and what the server sends."""

    upload_bytes: int
    broadcast_bytes: int
    snapshot_bytes: int
    """The whole model, which a client downloads before its first start."""

    @staticmethod
    def of(client: Quantizer, server: Quantizer, size: int) -> Exchange:
        return Exchange(
            HEADER_BYTES + client.max_payload_bytes(size),
            HEADER_BYTES + server.max_payload_bytes(size),
            HEADER_BYTES + 4 * size,
        )
