"""A server's whole state as named arrays and plain values, and back: what survives a killed process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from qafel.algorithm.hidden_state import HiddenState
from qafel.algorithm.server import Server
from qafel.algorithm.wiring import Algorithm
from qafel.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Arrays (copies, safe to write while the server goes on) and values that JSON can hold."""

    arrays: dict[str, NDArray[Any]]
    values: dict[str, Any]


def save_server(server: Server) -> Checkpoint:
    """Everything but the broadcast log, which a deployment keeps in its stream."""
    arrays: dict[str, NDArray[Any]] = {
        "model": server.model.copy(),
        "hidden_state": server.hidden_state.vector,
        "buffer": server.buffer.total.copy(),
        **server.seen.to_arrays(),
    }
    if server.hidden_state.memory is not server.hidden_state.vector:
        arrays["memory"] = server.hidden_state.memory
    if server.step.velocity is not None:
        arrays["velocity"] = server.step.velocity.copy()
    return Checkpoint(
        arrays,
        {
            "version": server.version,
            "digest": server.hidden_state.digest,
            "buffer_count": server.buffer.count,
            "weight_sum": server.buffer.weight_sum,
            "client_weight_sum": server.buffer.client_weight_sum,
            "rejected": dict(server.rejected),
        },
    )


def restore_server(checkpoint: Checkpoint, algorithm: Algorithm, seed: int, *, log_capacity: int = 100) -> Server:
    """The server as it was saved; a checkpoint that does not fit the algorithm or is damaged raises `DataError`."""
    arrays, values = checkpoint.arrays, checkpoint.values
    try:
        server = Server(arrays["model"], algorithm, seed, log_capacity=log_capacity)
        server.hidden_state = HiddenState.of(arrays["hidden_state"].copy(), values["version"], arrays.get("memory"))
        server.buffer.total[:] = arrays["buffer"]
        server.buffer.count = values["buffer_count"]
        server.buffer.weight_sum = values["weight_sum"]
        server.buffer.client_weight_sum = values["client_weight_sum"]
        if server.step.velocity is not None:
            server.step.velocity[:] = arrays["velocity"]
        server.seen.from_arrays(arrays)
        server.rejected = Counter(values["rejected"])
    except (KeyError, ValueError) as error:
        raise DataError(f"the checkpoint does not belong to this algorithm: {error}") from None
    if server.hidden_state.digest != values["digest"]:
        raise DataError("the checkpoint is damaged: its hidden state does not match its digest")
    return server
