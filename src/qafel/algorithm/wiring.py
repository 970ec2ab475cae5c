"""All that server and clients must agree on, as one value; and what a method fixes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Real
from typing import Any, Literal, TypeAlias, final, get_args

from qafel.algorithm.aggregation import MOST_BUCKETS, ROBUST, Aggregation, PolynomialStaleness
from qafel.algorithm.messages import Kind
from qafel.algorithm.own import Aggregator, StalenessLaw, Step, checked, own_parts
from qafel.errors import ConfigError, require, require_numbers
from qafel.quantizers import Identity, as_quantizer
from qafel.quantizers.protocol import Quantizer

Broadcast: TypeAlias = Literal["difference", "model"]
DirectDraw: TypeAlias = Literal["step", "start"]
Upload: TypeAlias = Literal["update", "model"]
ClientWeights: TypeAlias = Literal["equal", "samples"]
FromOmega: TypeAlias = Literal["from-omega"]
Rate: TypeAlias = float | FromOmega
"""A memory's rate α: a number, or 1/(2(1 + ω)) with the ω of the quantizer whose messages it takes up."""
_CHOICES = {
    "aggregation": Aggregation,
    "client_weights": ClientWeights,
    "broadcast": Broadcast,
    "direct_draw": DirectDraw,
    "upload": Upload,
}


@final
@dataclass(frozen=True, slots=True)
class LocalTraining:
    """What a client does between copying x̂ and uploading: y ← y − η_ℓ g(y), for P steps or for some epochs."""

    lr: float
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    """Samples per step; None: all that the client has."""
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """The largest norm of a gradient; a larger one is scaled down to it."""
    proximal: float = 0.0
    """FedProx's μ: the local loss has μ/2·‖y − y₀‖² added."""

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.lr > 0, "the client learning rate is positive", self.lr)
        require((self.steps is None) != (self.epochs is None), "local training lasts some steps or some epochs", self)
        require((self.steps or self.epochs or 0) >= 1, "there is at least one local step or epoch", self)
        require(self.batch_size is None or self.batch_size >= 1, "a batch has at least one sample", self.batch_size)
        require(self.weight_decay >= 0, "weight decay is zero or more", self.weight_decay)
        require(self.clip_norm is None or self.clip_norm > 0, "the clipping norm is positive", self.clip_norm)
        require(self.proximal >= 0, "the proximal term's weight is zero or more", self.proximal)

    def steps_for(self, samples: int) -> int:
        """How many steps a client with so many samples takes: an epoch is a step per batch, the last may be smaller."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * (-(-samples // self.batch_size) if self.batch_size else 1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One asynchronous method. QAFeL is the general case; the others leave something out."""

    name: str
    local: LocalTraining
    server_lr: float
    buffer_size: int = 10
    server_momentum: float = 0.0
    aggregation: Aggregation | Aggregator = "mean"
    buckets: int | None = None
    """Of a robust aggregation; None: ten, or one for each update of a smaller buffer."""
    server_step: Step | None = None
    """An own step instead of x ← x − η_g v: it has its own learning rate and momentum."""
    staleness: StalenessLaw = field(default_factory=PolynomialStaleness)
    max_staleness: int | None = None
    client_weights: ClientWeights = "equal"
    client_quantizer: Quantizer = field(default_factory=Identity)
    server_quantizer: Quantizer = field(default_factory=Identity)
    snapshot_quantizer: Quantizer | None = None
    """Q_snap: a client that would have to fetch x̂ whole may start from Q_snap(x̂) instead; None: from x̂ itself."""
    broadcast: Broadcast = "difference"
    """What the server sends: Q_s(x − x̂), which moves the hidden state; or Q_s(x) itself, direct quantization."""
    direct_draw: DirectDraw = "step"
    """Direct quantization: whether Q_s(x) is drawn once a step, for all, or anew for every client that starts."""
    memory_rate: Rate = 1.0
    """α: how much of q the reference of the next difference takes up; 1 but for MCM."""
    uplink_memory_rate: Rate = 0.0
    """α: how much of its quantized upload a client's memory takes up, which the next one is relative to (MCM)."""
    upload: Upload = "update"
    """What a client sends: y₀ − y_P; or its model y_P, which the server mixes into its own (FedAsync)."""

    partial_work: bool = False
    """Whether a client that a round's deadline overtakes uploads what it has done by then (FedProx)."""

    def __post_init__(self) -> None:
        require_numbers(self)
        require(isinstance(self.local, LocalTraining), "local is a LocalTraining(lr, steps)", repr(self.local))
        for role in ("client_quantizer", "server_quantizer"):
            object.__setattr__(self, role, as_quantizer(getattr(self, role)))
        self._settle_snapshots()
        require(self.server_lr > 0, "the server learning rate is positive", self.server_lr)
        require(self.buffer_size >= 1, "the buffer holds at least one update", self.buffer_size)
        require(0 <= self.server_momentum < 1, "server momentum lies in [0, 1)", self.server_momentum)
        buckets = self.buckets is None or 1 <= self.buckets <= self.buffer_size
        require(buckets, f"there are 1 to {self.buffer_size} buckets, the buffer's size", self.buckets)
        require((self.max_staleness or 0) >= 0, "maximum staleness is zero or more", self.max_staleness)
        require(callable(self.staleness), "a staleness law is a function of τ", self.staleness)
        checked(self.staleness)(0)
        own_parts(self.aggregation, self.server_step)
        own_momentum = "an own server step has its own momentum: leave server_momentum out"
        require(self.server_step is None or not self.server_momentum, own_momentum, self.server_momentum)
        self._require_fit_memories()
        for name, kind in _CHOICES.items():
            known, found = get_args(kind), getattr(self, name)
            own = name == "aggregation" and not isinstance(found, str)
            require(own or found in known, f"{name} is one of {', '.join(known)}", found)
        direct = self.broadcast == "model"
        require(direct or self.direct_draw == "step", 'direct_draw = "start" needs broadcast = "model"', self.broadcast)

    def _settle_snapshots(self) -> None:
        """Take the identity for no quantizer, and refuse one where an inexact start would last.

        docs/decisions/simulator-starts-pay-what-they-download.md
        """
        given = None if self.snapshot_quantizer is None else as_quantizer(self.snapshot_quantizer)
        quantizer = None if isinstance(given, Identity) else given
        object.__setattr__(self, "snapshot_quantizer", quantizer)
        if quantizer is None:
            return
        if self.broadcast != "difference" or self.memory_rate != 1 or self.uplink_memory_rate:
            rule = "a hidden state that broadcasts move by differences, and no memories (MCM)"
            raise ConfigError(f"a snapshot_quantizer needs {rule}; {self.name} has others: leave it out")
        if self.upload != "update":
            rule = 'upload = "update": a model would bring the snapshot\'s error to the server'
            raise ConfigError(f'a snapshot_quantizer needs {rule}; {self.name} has "{self.upload}"')

    def _require_fit_memories(self) -> None:
        down, up = self.memory_rate, self.uplink_memory_rate
        require(down and _is_rate(down), 'memory_rate lies in (0, 1], or is "from-omega"', down)
        require(_is_rate(up), 'uplink_memory_rate lies in [0, 1], or is "from-omega"', up)
        # The server keeps the mean of the clients' memories alone: it must weigh all of them alike.
        plain_mean = self.upload == "update" and self.aggregation == "mean" and self.client_weights == "equal"
        rule = "an uplink memory needs the plain mean of updates, in rounds (max_staleness = 0)"
        require(not up or (plain_mean and self.max_staleness == 0), rule, f"{self.name} with other settings")

    @property
    def bucket_count(self) -> int:
        """How many buckets a robust aggregation has; 0 for any other."""
        if not isinstance(self.aggregation, str) or self.aggregation not in ROBUST:
            return 0
        return self.buckets or min(MOST_BUCKETS, self.buffer_size)

    @property
    def broadcast_kind(self) -> Kind:
        return Kind.BROADCAST if self.broadcast == "difference" else Kind.MODEL

    def downlink_rate(self, size: int) -> float:
        """α of the memory that differences are relative to, for a model of `size` parameters."""
        return _rate(self.memory_rate, self.server_quantizer, size)

    def uplink_rate(self, size: int) -> float:
        """α of the memories that uploads are relative to, for a model of `size` parameters; 0: there are none."""
        return _rate(self.uplink_memory_rate, self.client_quantizer, size)


@final
@dataclass(frozen=True, slots=True)
class Preset:
    """What a method fixes, and what it only suggests."""

    summary: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    synchronous: bool = False

    def resolve(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with this preset's parts filled in; a setting that contradicts a fixed part is an error."""
        for key, value in self.fixed.items():
            if settings.get(key, value) != value:
                raise ConfigError(
                    f"{name} has {key} = {value!r} by definition, the configuration says {settings[key]!r}"
                )
        return {**self.default, **settings, **self.fixed}


def _is_rate(rate: Rate) -> bool:
    return rate in get_args(FromOmega) if isinstance(rate, str) else isinstance(rate, Real) and 0 <= rate <= 1


@lru_cache(maxsize=64)
def _rate(rate: Rate, quantizer: Quantizer, size: int) -> float:
    if not isinstance(rate, str):
        return rate
    omega = quantizer.omega(size)
    require(math.isfinite(omega), f"{quantizer.spec} has no bound ω from which a memory's rate follows", rate)
    return 1 / (2 * (1 + omega))
