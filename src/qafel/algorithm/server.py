"""The server: take uploads into the buffer; when it is full, step and broadcast. Algorithm 1.

`save_server` and `restore_server` carry its state across a killed process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm.aggregation import Buffer, PolynomialStaleness, ReplayWindows, ServerStep
from qafel.algorithm.hidden_state import BroadcastLog, HiddenState, advance, inexact_snapshot
from qafel.algorithm.messages import Kind, Message, expectations
from qafel.algorithm.own import OwnPart, StalenessLaw, checked, own_parts
from qafel.algorithm.state import Expected, require_arrays, require_numbers_of
from qafel.algorithm.wiring import Algorithm
from qafel.errors import (
    ConfigError,
    DataError,
    FutureUpload,
    MalformedPayload,
    MessageError,
    RejectedUpload,
    StaleUpload,
)
from qafel.params import Vector, require_finite
from qafel.quantizers import kernels
from qafel.rng import Stream

_NUMBERS: Final = {
    "version": Expected(np.int64, low=0),
    "buffer_count": Expected(np.int64, low=0),
    "weight_sum": Expected(np.float64, low=0, high=float(np.finfo(np.float32).max)),
    "client_weight_sum": Expected(np.float64, low=0, high=float(np.finfo(np.float32).max)),
}
"""Among the values of a checkpoint."""


@final
class Accepted(NamedTuple):
    """What became of an upload that counts."""

    staleness: int
    """τ: the server steps between the version it is based on and its arrival."""
    broadcast: bytes | None
    """The message that the server now sends to all clients, if the upload filled the buffer."""


@final
class Server:
    """Server model x, hidden state x̂, buffer, momentum and version: O(d), however many clients there are."""

    __slots__ = (
        "algorithm",
        "buffer",
        "clients",
        "hidden_state",
        "inexact",
        "log",
        "model",
        "own_aggregation",
        "own_step",
        "rejected",
        "seed",
        "seen",
        "step",
        "uplink_memory",
        "weigh",
    )

    def __init__(
        self, model: Vector, algorithm: Algorithm, seed: int, *, log_capacity: int = 100, clients: int | None = None
    ) -> None:
        """x̂⁰ = x⁰, unquantized: everyone starts from the same model. Algorithm 1, line 1.

        model          x⁰
        algorithm      what server and clients agree on
        seed           the run's: it names the random streams of the server's quantizer
        log_capacity   how many broadcasts are kept for clients that missed some
        clients        how many there are, which only a method with an uplink memory needs
        """
        require_finite(model, "the initial model")
        self.algorithm = algorithm
        self.seed = seed
        self.model: Vector = np.array(model, np.float32)
        self.hidden_state = HiddenState.of(self.model.copy())
        law = algorithm.staleness
        self.weigh: StalenessLaw = law if isinstance(law, PolynomialStaleness) else checked(law)
        self.own_aggregation, self.own_step = own_parts(algorithm.aggregation, algorithm.server_step)
        keeps, buckets = self.own_aggregation is not None, algorithm.bucket_count
        self.buffer = Buffer(model.size, keeps=keeps, buckets=buckets)
        self.step = ServerStep(algorithm.server_lr, algorithm.server_momentum, model.size)
        self.uplink_memory: Vector | None = np.zeros(model.size, np.float32) if algorithm.uplink_memory_rate else None
        """h̄, the mean of all clients' memories. They are apart from each other, and only with the clients."""
        if self.uplink_memory is not None and not clients:
            raise ConfigError("a server with an uplink memory is told how many clients there are")
        self.clients = clients or 0
        self.log = BroadcastLog(log_capacity)
        self.inexact: tuple[int, bytes] | None = None
        """The last version of which anyone asked Q_snap(x̂), and that message."""
        self.seen = ReplayWindows()
        self.rejected: Counter[str] = Counter()

    @property
    def version(self) -> int:
        """t, the number of server steps done."""
        return self.hidden_state.version

    def receive(self, message: Message, factor: float = 1.0, decoded: Vector | None = None) -> Accepted:
        """Take one upload, as `Message.from_bytes` read it; step and broadcast if it fills the buffer.

        With a `factor` below one the update counts as scaled down by it, and its client's weight stays. Who has decoded
        the payload hands it on as `decoded`; the result is the same to the bit. Algorithm 1, lines 4 to 14. A message
        that does not fit or is not wanted raises, is counted under its reason, and changes nothing else.
        """
        try:
            staleness = self._take(message, factor, decoded)
        except (MessageError, RejectedUpload) as error:
            self.rejected[error.reason] += 1
            raise
        full = self.buffer.count == self.algorithm.buffer_size
        return Accepted(staleness, self._step() if full else None)

    def catch_up(self, version: int, digest: int | None = None) -> list[bytes]:
        """What a client at this version must receive to hold the current hidden state, or an inexact one to start from.

        `digest` is that of the client's own hidden state; one that has drifted raises `Drifted`.
        """
        state, inexact = self.hidden_state, self._inexact_snapshot()
        most_bytes = state.snapshot_bytes if inexact is None else len(inexact)
        missed = self.log.missed(state, version, digest, self.algorithm.broadcast_kind, most_bytes)
        return [self.snapshot()] if missed is None else missed

    def snapshot(self) -> bytes:
        """What a client fetches that holds nothing, or something too old: Q_snap(x̂), or x̂ where that is no longer."""
        inexact = self._inexact_snapshot()
        return self.hidden_state.to_snapshot() if inexact is None else inexact

    def _inexact_snapshot(self) -> bytes | None:
        """Q_snap(x̂) if it is shorter than x̂: made once for a version, when first asked for, and the same for all."""
        if self.algorithm.snapshot_quantizer is None:
            return None
        if self.inexact is None or self.inexact[0] != self.version:
            self.inexact = self.version, inexact_snapshot(self.hidden_state, self.algorithm, self.seed)
        made = self.inexact[1]
        return made if len(made) < self.hidden_state.snapshot_bytes else None

    def flush(self) -> bytes | None:
        """Step with what the buffer holds, be it fewer than K updates: a synchronous round that timed out."""
        return self._step() if self.buffer.count else None

    def _take(self, message: Message, factor: float, decoded: Vector | None) -> int:
        """Add an upload to the buffer; return its staleness."""
        quantizer = self.algorithm.client_quantizer
        message.check(Kind.UPLOAD, self.model.size, quantizer)
        staleness, most = self.hidden_state.version - message.version, self.algorithm.max_staleness
        if staleness < 0:
            raise FutureUpload(f"based on version {message.version}, the server is at {self.version}")
        if most is not None and staleness > most:
            raise StaleUpload(f"staleness {staleness} is above the maximum, {most}")
        window = self.seen.check(message.sender, message.sequence)
        weights = message.weight, self.weigh(staleness), factor
        self.buffer.add_(message.payload, quantizer, *weights, message.sender, decoded)
        self.seen.windows[message.sender] = window
        return staleness

    def _step(self) -> bytes:
        """Step: x ← x − η_g Δ̄, then q = Q_s(x − x̂) and x̂ ← x̂ + q. Algorithm 1, lines 9 to 14."""
        buffer, algorithm = self.buffer, self.algorithm
        if self.own_aggregation is None and self.own_step is None and buffer.buckets is None:
            mixed = buffer.weight_sum if algorithm.upload == "model" else 0.0
            divisor = buffer.divisor(algorithm.aggregation)
            following = self.step.apply(self.model, buffer.total, divisor, mixed, self.uplink_memory)
        else:
            following = self._another_model()
        if not kernels.shared.is_finite(following):
            require_finite(following, f"server model {self.version + 1}")
        self.model = following
        if self.uplink_memory is not None:
            # Who is in the buffer moves its memory by α times what it sent, the others do not: h̄ moves by the mean.
            rate = algorithm.uplink_rate(self.model.size) / self.clients
            self.uplink_memory = self.uplink_memory + np.float32(rate) * buffer.total
        buffer.empty_()
        return self._broadcast()

    def _another_model(self) -> Vector:
        """The next server model where a robust or a user's own aggregation makes Δ̄, or a user's own step makes x."""
        model, buffer, mixes = self.model, self.buffer, self.algorithm.upload == "model"
        if self.own_aggregation is not None:
            updates, weights = buffer.rows()
            update = self.own_aggregation(model.size, model - updates if mixes else updates, weights)
        elif buffer.buckets is not None:
            update = buffer.buckets.combined(self.algorithm.aggregation, model if mixes else None)
        else:
            total = np.float32(buffer.weight_sum) * model - buffer.total if mixes else buffer.total
            update = total / np.float32(buffer.divisor(self.algorithm.aggregation))
            update = update if self.uplink_memory is None else update + self.uplink_memory
        if self.own_step is None:
            return self.step.apply(model, update, 1.0, 0.0, None)
        return self.own_step(model.size, model.copy(), update)

    def _broadcast(self) -> bytes:
        before, quantizer, kind = self.hidden_state, self.algorithm.server_quantizer, self.algorithm.broadcast_kind
        target = self.model - before.memory if kind is Kind.BROADCAST else self.model
        payload = quantizer.encode(target, Stream.named(self.seed, "server-quantizer", number=before.version))
        try:
            self.hidden_state = advance(before, before.version, payload, self.algorithm)
        except MalformedPayload as error:  # not the upload's fault, so not a rejection
            raise ConfigError(
                f"the server quantizer does not decode its own broadcast {before.version}: {error}"
            ) from None
        codec, _ = expectations(quantizer, self.model.size)
        broadcast = Message(
            kind, codec, self.model.size, before.version, payload, digest=self.hidden_state.digest
        ).to_bytes()
        self.log.append(before.digest, broadcast)
        return broadcast


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What survives a killed process: arrays (copies, safe to write while the server goes on) and values for JSON."""

    arrays: dict[str, NDArray[Any]]
    values: dict[str, Any]


def save_server(server: Server) -> Checkpoint:
    """Save everything but the broadcast log, which a deployment keeps in its stream."""
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
    if server.uplink_memory is not None:
        arrays["uplink_memory"] = server.uplink_memory
    if server.buffer.kept is not None:
        arrays["buffer_rows"], arrays["buffer_weights"] = server.buffer.rows()
    if server.buffer.buckets is not None:
        arrays |= server.buffer.buckets.to_arrays()
    for prefix, part in _own(server):
        arrays.update({f"{prefix}{name}": array for name, array in part.state().items()})
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


def _own(server: Server) -> list[tuple[str, OwnPart]]:
    """The user's own parts of a server, and what the names of their arrays begin with."""
    parts = (("own_aggregation.", server.own_aggregation), ("own_step.", server.own_step))
    return [(prefix, part) for prefix, part in parts if part is not None]


def require_checkpoints(algorithm: Algorithm, size: int) -> None:
    """Raise `ConfigError` if a user's part changes in a trial and cannot be saved: before a run, not in its middle."""
    aggregation, step = own_parts(algorithm.aggregation, algorithm.server_step)
    ones = np.ones(size, np.float32)
    with np.errstate(all="ignore"):
        if aggregation is not None:
            rows = np.ones((algorithm.buffer_size, size), np.float32)
            aggregation.try_out(size, rows, np.ones(algorithm.buffer_size))
        if step is not None:
            step.try_out(size, ones.copy(), ones)


def restore_server(
    checkpoint: Checkpoint,
    algorithm: Algorithm,
    seed: int,
    *,
    size: int,
    log_capacity: int = 100,
    clients: int | None = None,
) -> Server:
    """The server as `save_server` saved it, for a model of `size` and the same `algorithm`, `seed` and `clients`.

    A checkpoint that does not fit the algorithm or is damaged raises `DataError`.
    """
    server = Server(np.zeros(size, np.float32), algorithm, seed, log_capacity=log_capacity, clients=clients)
    buffer, values = server.buffer, checkpoint.values
    own = dict(_own(server))
    arrays = {name: array.copy() for name, array in checkpoint.arrays.items() if not name.startswith(tuple(own))}
    try:
        require_numbers_of(values, _NUMBERS)
        require_arrays(arrays, _layout(server, values["version"]))
        server.model = arrays["model"]
        server.hidden_state = HiddenState.of(arrays["hidden_state"], values["version"], arrays.get("memory"))
        buffer.total = arrays["buffer"]
        buffer.count = values["buffer_count"]
        buffer.weight_sum, buffer.client_weight_sum = values["weight_sum"], values["client_weight_sum"]
        held = buffer.count
        if server.step.velocity is not None:
            server.step.velocity = arrays["velocity"]
        if server.uplink_memory is not None:
            server.uplink_memory = arrays["uplink_memory"]
        if buffer.kept is not None:
            weights: list[float] = arrays["buffer_weights"].tolist()
            buffer.kept = list(zip(arrays["buffer_rows"], weights, strict=True))
            held = len(weights)
        if buffer.buckets is not None:
            buffer.buckets.from_arrays(arrays)
            held = sum(buffer.buckets.counts)
        if not held == buffer.count < algorithm.buffer_size:
            raise DataError(f"the buffer holds {held} updates, and counts {buffer.count} of {algorithm.buffer_size}")
        server.seen.from_arrays(arrays)
        server.rejected = Counter({str(reason): int(count) for reason, count in values["rejected"].items()})
        for prefix, part in own.items():
            names = [name for name in checkpoint.arrays if name.startswith(prefix)]
            part.restore({name.removeprefix(prefix): checkpoint.arrays[name].copy() for name in names})
    except (DataError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"the checkpoint does not fit this algorithm: {error}") from None
    if server.hidden_state.digest != values.get("digest"):
        raise DataError("the checkpoint is damaged: its hidden state does not match its digest")
    return server


def _layout(server: Server, version: int) -> dict[str, Expected]:
    """The arrays that `save_server` makes of a server at this version, but for those of a user's own parts."""
    size = server.model.size
    vector = Expected(np.float32, (size,))
    held = {
        "memory": bool(version) and server.algorithm.downlink_rate(size) != 1,
        "velocity": server.step.velocity is not None,
        "uplink_memory": server.uplink_memory is not None,
    }
    names = ("model", "hidden_state", "buffer", *(name for name, there in held.items() if there))
    layout = dict.fromkeys(names, vector) | server.seen.layout()
    if server.buffer.kept is not None:
        layout |= {
            "buffer_rows": Expected(np.float32, ("kept", size)),
            "buffer_weights": Expected(np.float64, ("kept",)),
        }
    return layout if server.buffer.buckets is None else layout | server.buffer.buckets.layout()
