"""A method as one value. Server and clients must agree on it."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar, final

from qafel.algorithm.admission import PolynomialStaleness, StalenessLaw, weigh
from qafel.algorithm.catch_up import CatchUp
from qafel.algorithm.hidden_state import Downlink
from qafel.algorithm.parts import Accumulator, ClientRule, Needs, Part, ServerRule
from qafel.algorithm.state import is_row
from qafel.errors import ConfigError, require, require_numbers
from qafel.params import Vector
from qafel.parts import errors_of
from qafel.quantizers import as_quantizer
from qafel.quantizers.custom import Custom
from qafel.quantizers.protocol import Quantizer
from qafel.text import path_of

ClientWeights: TypeAlias = Literal["equal", "samples"]
_APart = TypeVar("_APart", bound=Part)


@final
@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning rate that falls with the version: along half a cosine, or by a factor every few steps."""

    lr: float
    cosine: int | None = None
    """Server steps from `lr` to `factor` times `lr`."""
    step: int | None = None
    """Server steps between two multiplications by `factor`."""
    factor: float = 0.1

    def __post_init__(self) -> None:
        require_numbers(self)
        kinds = f"cosine={self.cosine}, step={self.step}"
        require((self.cosine is None) != (self.step is None), "a schedule has either cosine or step", kinds)
        require((self.cosine or self.step or 0) >= 1, "a schedule lasts at least one server step", kinds)
        require(0 < self.factor <= 1, "the factor of a schedule is in (0, 1]", self.factor)

    def __call__(self, version: int) -> float:
        if self.step is not None:
            return max(self.lr * self.factor ** (version // self.step), sys.float_info.min)
        share = (1 + math.cos(math.pi * min(1.0, version / (self.cosine or 1)))) / 2
        return self.lr * (self.factor + (1 - self.factor) * share)


@final
@dataclass(frozen=True, slots=True)
class LocalTraining:
    """Local training between copying x̂ and uploading: y ← y − η_ℓ g(y), for P steps or some epochs."""

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
    partial: bool = False
    """Whether a client uploads the steps done when a round's deadline ends its training (FedProx)."""
    correction: Vector | None = field(default=None, compare=False)
    """Added to every gradient, after clipping. Client rules set it."""
    schedule: Callable[[int], float] | None = None
    """The learning rate by the version of the start, in place of `lr`; None: always `lr`."""

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.lr > 0, "the client learning rate is positive", self.lr)
        lasts = f"steps={self.steps}, epochs={self.epochs}"
        require((self.steps is None) != (self.epochs is None), "local training lasts some steps or some epochs", lasts)
        require((self.steps or self.epochs or 0) >= 1, "there is at least one local step or epoch", lasts)
        require(self.batch_size is None or self.batch_size >= 1, "a batch has at least one sample", self.batch_size)
        require(self.weight_decay >= 0, "weight decay is zero or more", self.weight_decay)
        require(self.clip_norm is None or self.clip_norm > 0, "the clipping norm is positive", self.clip_norm)
        require(self.proximal >= 0, "the proximal term's weight is zero or more", self.proximal)

    def at(self, version: int) -> LocalTraining:
        """The settings of an update that starts from this version: `lr` follows the schedule."""
        if self.schedule is None:
            return self
        with errors_of("the schedule of client_lr"):
            lr = float(self.schedule(version))
        return replace(self, lr=lr, schedule=None)

    def steps_for(self, samples: int) -> int:
        """The number of steps of a client with this many samples. An epoch is a step per batch."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * (-(-samples // self.batch_size) if self.batch_size else 1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One method as a composition of parts. `method` makes it from a name and settings, which it checks."""

    name: str
    local: LocalTraining
    client_rule: ClientRule
    accumulator: Accumulator
    server_rule: ServerRule
    downlink: Downlink
    catch_up: CatchUp
    client_quantizer: Quantizer
    """Q_c."""
    server_quantizer: Quantizer
    """Q_s."""
    buffer_size: int = 10
    """K."""
    staleness: StalenessLaw
    max_staleness: int | None = None
    client_weights: ClientWeights = "equal"
    own_needs: Needs = field(default_factory=Needs)
    """The needs of the method besides those of its parts, such as rounds."""

    def __post_init__(self) -> None:
        require(isinstance(self.local, LocalTraining), "local is a LocalTraining(lr, steps)", repr(self.local))
        for role in ("client_quantizer", "server_quantizer"):
            object.__setattr__(self, role, as_quantizer(getattr(self, role)))
        for role, part in self.parts.items():
            _require_part(role, ROLES[role], part)
        require(callable(self.staleness), "a staleness law is a function of τ", self.staleness)
        weigh(self.staleness, 0)
        for part in self.parts.values() if len(self.parts) == len(ROLES) else ():
            if (problem := part.problem(self)) is not None:
                raise ConfigError(f"{self.name}: {problem}")

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by their roles; at a client without those of the server."""
        return {role: part for role in ROLES if (part := getattr(self, role)) is not None}

    @property
    def stateless(self) -> dict[str, object]:
        """The objects whose state no checkpoint saves, by role: they must not change in a run."""
        quantizers = (self.client_quantizer, self.server_quantizer, *self.catch_up.quantizers.values())
        return {
            "staleness": self.staleness,
            **{role: getattr(self, role) for role in ("client_rule", "downlink", "catch_up")},
            **{
                f"quantizer {number}": quantizer.part if isinstance(quantizer, Custom) else quantizer
                for number, quantizer in enumerate(quantizers)
            },
        }

    @property
    def needs(self) -> Needs:
        """What a driver must provide: the union of the parts' needs."""
        needs = self.own_needs
        for part in self.parts.values():
            needs = needs.union(part.needs)
        return needs

    def at_client(self) -> Algorithm:
        """The method without the server's parts, which may not be picklable."""
        return replace(self, accumulator=None, server_rule=None, staleness=PolynomialStaleness())  # type: ignore[arg-type]

    def begun(self, part: _APart, size: int, clients: int | None) -> _APart:
        """A server's copy of a part, ready for a run."""
        try:
            own = copy.deepcopy(part)
        except Exception as error:
            raise ConfigError(f"{path_of(part)} cannot be copied, and each server needs its own: {error}") from error
        with errors_of(own, "begin_"):
            own.begin_(self, size, clients)
        return own


ROLES: dict[str, type[Part]] = {
    "client_rule": ClientRule,
    "accumulator": Accumulator,
    "server_rule": ServerRule,
    "downlink": Downlink,
    "catch_up": CatchUp,
}
"""The parts of a method, and what each of them is."""


def _require_part(role: str, kind: type[Part], part: object) -> None:
    if isinstance(part, type) or not isinstance(part, kind):
        raise ConfigError(f"{role} is an object of a subclass of qafel.{kind.__name__}, found {part!r}")
    if not isinstance(part, ClientRule):
        return
    with errors_of(part, "new_memory"):
        memory: object = part.new_memory(1)
    if not isinstance(memory, Mapping):
        raise ConfigError(f"{path_of(part)}.new_memory returns vectors by name, found {memory!r}")
    if memory:
        if not all(is_row(value) for value in memory.values()):
            raise ConfigError(f"{path_of(part)}.new_memory returns vectors of numbers by name, found {memory!r}")
        if not part.needs.client_memory:
            raise ConfigError(f"{path_of(part)} keeps a memory: declare needs = qafel.Needs(client_memory=True)")
