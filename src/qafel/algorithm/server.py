"""The server: take uploads; when a step is due, step and broadcast. Algorithm 1.

`save_server` and `restore_server` carry its state across a killed process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, NamedTuple, TypeAlias, final

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from qafel.algorithm.admission import ReplayWindows, weigh
from qafel.algorithm.algorithm import Algorithm
from qafel.algorithm.catch_up import Held, Offer, quantized_copy
from qafel.algorithm.hidden_state import HiddenState
from qafel.algorithm.messages import Kind, Message, expectations
from qafel.algorithm.parts import (
    Batch,
    Next,
    Part,
    Upload,
    contents,
    require_direction,
    require_same_settings,
    settings_of,
    unsaved,
)
from qafel.algorithm.state import (
    Checkpoint,
    Expected,
    expected_arrays,
    pack,
    require_arrays,
    require_restorable,
    restore_,
    state_of,
)
from qafel.errors import (
    ConfigError,
    DataError,
    FutureUpload,
    MalformedPayload,
    MessageError,
    PartFailed,
    RejectedUpload,
    StaleUpload,
    UnknownClient,
)
from qafel.params import Vector, require_finite, require_vector
from qafel.parts import errors_of, explain, raise_part_failed
from qafel.quantizers import kernels
from qafel.rng import Stream
from qafel.text import path_of

Count: TypeAlias = Annotated[int, Field(strict=True, ge=0, lt=2**64)]


@final
class Admitted(NamedTuple):
    """An upload that may count at the current version."""

    staleness: int
    staleness_weight: float
    window: tuple[int, int]
    """Its sender's replay window once it counts."""


@final
class Accepted(NamedTuple):
    """The result of an upload that counts."""

    staleness: int
    """τ: the server steps between the version it is based on and its arrival."""
    following: Next
    """What its sender starts from next."""
    batch: Batch | None
    """What `Server.step` takes, if a step is due."""


@final
class Server:
    """Server model x, hidden state x̂, version, and the parts of a method."""

    def __init__(self, model: Vector, algorithm: Algorithm, seed: int, *, clients: int | None = None) -> None:
        """x̂⁰ = x⁰, unquantized: all clients start from the same model. Algorithm 1, line 1.

        `model`: x⁰. `seed`: names the random streams of Q_s. `clients`: their number, which some methods need.
        """
        require_finite(model, "the initial model")
        if algorithm.needs.clients and not clients:
            raise ConfigError(f"{algorithm.name} needs the number of clients: set clients=")
        self.algorithm, self.seed, self.clients = algorithm, seed, clients
        self.model: Vector = np.array(model, np.float32)
        self.hidden_state = HiddenState.of(self.model.copy())
        self.accumulator = algorithm.begun(algorithm.accumulator, model.size, clients)
        if not hasattr(self.accumulator, "count"):
            raise ConfigError(
                f"{path_of(self.accumulator)} has no count, the uploads since the last step: set it in begin_"
            )
        self.server_rule = algorithm.begun(algorithm.server_rule, model.size, clients)
        self.seen = ReplayWindows()
        self.rejected: Counter[str] = Counter()
        self.broadcast_bytes = 0
        """Of all broadcasts so far."""
        self.last_bytes = 0
        """Of the last of them."""
        self._copy: tuple[int, bytes] | None = None
        self._settings, self._unsaved = settings_of(self.parts), unsaved(self.parts)
        self._expected, self._contents = expected_arrays(state_of(self.parts)), contents(algorithm.stateless)

    @property
    def parts(self) -> dict[str, Part]:
        """The parts with state."""
        return {"accumulator": self.accumulator, "server_rule": self.server_rule, "seen": self.seen}

    @property
    def version(self) -> int:
        """t, the number of server steps done."""
        return self.hidden_state.version

    def admit(self, message: Message, *, anew: bool = False) -> Admitted:
        """Check an upload: its form, number, sender and staleness. Raises if it cannot count.

        `anew`: the sender's numbers start again.
        """
        message.check(Kind.UPLOAD, self.model.size, self.algorithm.client_quantizer)
        window = self.seen.check(message.sender, message.sequence, anew)
        staleness, most = self.hidden_state.version - message.version, self.algorithm.max_staleness
        if self.clients is not None and message.sender >= self.clients:
            raise UnknownClient(f"the run has clients 0 to {self.clients - 1}, not {message.sender}")
        if staleness < 0:
            raise FutureUpload(f"based on version {message.version}, the server is at {self.version}")
        weight = weigh(self.algorithm.staleness, staleness)
        if weight is None or (most is not None and staleness > most):
            raise StaleUpload(f"staleness {staleness} is above the maximum{'' if most is None else f', {most}'}")
        return Admitted(staleness, weight, window)

    def receive(
        self,
        message: Message,
        factor: float = 1.0,
        decoded: Vector | None = None,
        admitted: Admitted | None = None,
    ) -> Accepted:
        """Receive one upload. Algorithm 1, lines 4 to 8.

        factor    The update is scaled by this factor, at most 1.
        decoded   The decoded payload, if already available. The result has the same bits.
        admitted  The result of `admit`, if already available.

        A rejected upload raises, and only its reason is counted.
        """
        try:
            staleness, weight, window = self.admit(message) if admitted is None else admitted
            upload = Upload(
                message.sender, message.sequence, message.version, staleness, message.weight, weight, factor,
                message.payload, decoded, self.model.size,
            )  # fmt: skip
            following = self.accumulator.add_(upload, self.algorithm.client_quantizer)
        except (MessageError, RejectedUpload) as error:
            self.rejected[error.reason] += 1
            raise
        except Exception as error:
            raise_part_failed(error, self.accumulator, "add_")
        self.seen.windows[message.sender] = window
        try:
            is_due = self.accumulator.due
        except Exception as error:
            raise_part_failed(error, self.accumulator, "due")
        return Accepted(staleness, following, self._closed() if is_due else None)

    def close(self) -> Batch | None:
        """Close the batch early, unless it is empty: a synchronous round timed out."""
        return self._closed() if self.accumulator.count else None

    def _closed(self) -> Batch:
        with errors_of(self.accumulator, "close_"):
            batch: object = self.accumulator.close_()
        if not isinstance(batch, Batch):
            raise PartFailed(f"{path_of(self.accumulator)}.close_ returned {type(batch).__name__}, not a Batch")
        return batch

    def step(self, batch: Batch) -> bytes:
        """Step: x ← x − η_g Δ̄, then q = Q_s(x − x̂) and x̂ ← x̂ + q; return the broadcast. Algorithm 1, lines 9 to 14."""
        with errors_of(self.accumulator, "direction"):
            direction = self.accumulator.direction(batch, self.model)
        require_direction(direction, self.model.size, self.accumulator)
        with errors_of(self.server_rule, "step_"):
            following = self.server_rule.step_(self.model, direction)
        following = require_vector(following, self.model.size, lambda: f"{path_of(self.server_rule)}.step_")
        if not kernels.shared.is_finite(following):
            require_finite(following, f"server model {self.version + 1}")
        self.model = following
        with errors_of(self.accumulator, "stepped_"):
            self.accumulator.stepped_(batch, self.algorithm.client_quantizer)
        return self._broadcast()

    def _broadcast(self) -> bytes:
        before, quantizer, downlink = self.hidden_state, self.algorithm.server_quantizer, self.algorithm.downlink
        stream = Stream.named(self.seed, "server-quantizer", number=before.version)
        payload = quantizer.encode(downlink.target(self.model, before), stream)
        try:
            self.hidden_state = downlink.advance(before, before.version, payload, quantizer)
        except MalformedPayload as error:  # not the upload's fault, so not a rejection
            raise ConfigError(
                f"the server quantizer does not decode its own broadcast {before.version}: {error}"
            ) from None
        with errors_of(self.accumulator, "moved_"):
            self.accumulator.moved_(self.version, payload)
        codec, _ = expectations(quantizer, self.model.size)
        broadcast = Message(
            downlink.kind, codec, self.model.size, before.version, payload, digest=self.hidden_state.digest
        ).to_bytes()
        self.broadcast_bytes += len(broadcast)
        self.last_bytes = len(broadcast)
        return broadcast

    def offer(self) -> Offer:
        """The downloads available to a client that starts now."""
        snapshot_bytes = self.hidden_state.snapshot_bytes
        is_whole = self.algorithm.downlink.kind is Kind.MODEL and self.version > 0
        whole_bytes = min(self.last_bytes, snapshot_bytes) if is_whole else snapshot_bytes
        position = self.broadcast_bytes
        return Offer(position, Held(position), snapshot_bytes, whole_bytes, self._quantized_bytes, self.model.size)

    def quantized(self) -> bytes:
        """A quantized copy of x̂, made once per version and the same for all clients."""
        quantizer = self.algorithm.catch_up.quantizer
        assert quantizer is not None
        if self._copy is None or self._copy[0] != self.version:
            self._copy = self.version, quantized_copy(self.hidden_state, quantizer, self.seed)
        return self._copy[1]

    def _quantized_bytes(self) -> int:
        return min(len(self.quantized()), self.hidden_state.snapshot_bytes)


def require_savable(server: Server) -> None:
    """Raise `ConfigError` if a part holds what a checkpoint can neither save nor compare."""
    _require_unchanged(server, server._unsaved)


def _require_unchanged(server: Server, now: Mapping[str, bytes | None]) -> None:
    for name, content in now.items():
        if content is None or content != server._unsaved[name]:
            raise ConfigError(
                f"{path_of(server.parts[name])} has state that a checkpoint does not save. Create all state in begin_, "
                "as arrays, numbers and Rows, or define state() and restore_(state)"
            )


def save_server(server: Server) -> Checkpoint:
    """Save the whole state of a server."""
    _require_unchanged(server, unsaved(server.parts))
    parts = server.algorithm.stateless
    for role, content in contents(parts).items():
        if content != server._contents[role]:
            raise ConfigError(
                f"{path_of(parts[role])} has changed since the run began, and a checkpoint does not save it. Only "
                "accumulators and server rules keep state, and client rules a memory; use cached_property for a cache"
            )
    held, saved = server.hidden_state, state_of(server.parts)
    inner, rows = pack(saved)
    require_restorable(server.parts, inner, server._expected)
    arrays = {"model": server.model.copy(), "hidden_state": held.vector, **inner}
    if held.memory is not held.vector:
        arrays["memory"] = held.memory
    values = {
        "version": server.version,
        "digest": held.digest,
        "broadcast_bytes": server.broadcast_bytes,
        "last_bytes": server.last_bytes,
        "rejected": dict(server.rejected),
        "settings": server._settings,
        "numpy_scalars": [name for name, value in saved.items() if isinstance(value, np.generic)],
    }
    return Checkpoint(arrays, values, rows)


class _Values(BaseModel):
    """The values of a server's checkpoint."""

    version: Count
    digest: Count
    broadcast_bytes: Count
    last_bytes: Count
    rejected: dict[str, Count]
    settings: dict[str, str]
    numpy_scalars: list[str]


def restore_server(
    checkpoint: Checkpoint, algorithm: Algorithm, seed: int, *, size: int, clients: int | None = None
) -> Server:
    """Restore a saved server, with the same `algorithm`, `seed` and `clients`.

    Raises `DataError` if the checkpoint is damaged or does not fit the algorithm.
    """
    server = Server(np.zeros(size, np.float32), algorithm, seed, clients=clients)
    arrays = {name: array.copy() for name, array in checkpoint.arrays.items()}
    try:
        values = _Values.model_validate(checkpoint.values)
        require_same_settings(values.settings, server._settings)
        apart = values.version > 0 and algorithm.downlink.keeps_memory(algorithm.server_quantizer, size)
        names = ("model", "hidden_state", "memory") if apart else ("model", "hidden_state")
        inner = {name: array for name, array in arrays.items() if name.partition(".")[0] in server.parts}
        vectors = {name: array for name, array in arrays.items() if name not in inner}
        require_arrays(vectors, dict.fromkeys(names, Expected(np.float32, (size,))))
        server.model = arrays["model"]
        server.hidden_state = HiddenState.of(arrays["hidden_state"], values.version, arrays.get("memory"))
        restore_(server.parts, inner, checkpoint.rows, values.numpy_scalars)
    except ValidationError as error:
        raise DataError(f"the checkpoint does not fit this algorithm: {explain(error)}") from None
    except DataError as error:
        raise DataError(f"the checkpoint does not fit this algorithm: {error}") from None
    server.broadcast_bytes, server.last_bytes = values.broadcast_bytes, values.last_bytes
    server.rejected = Counter(values.rejected)
    if server.hidden_state.digest != values.digest:
        raise DataError("the checkpoint is damaged: its hidden state does not match its digest")
    return server
