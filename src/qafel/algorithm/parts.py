"""The parts that a method is made of, and their state.

A method is a value: an `Algorithm` that names one part for each job.

    ClientRule    what a client sends, and how its memory changes
    Accumulator   what the server does with an accepted upload; when a step is due; the direction Δ̄
    ServerRule    from x and Δ̄ to the next x
    Downlink      what the server broadcasts, and how x̂ moves         (hidden_state)
    CatchUp       what a client downloads before it starts            (catch_up)

Parts that ship and parts of a user are the same kind of object. Subclass one of the classes here: the defaults of
`Part` then apply. Accumulators and server rules keep state, and the server works with its own copies of them. State is
named arrays, numbers and `Rows`; `state` saves and restores all parts of a server the same way. Other parts must not
change during a run.
"""

from __future__ import annotations

import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from qafel.algorithm.state import KEPT, Rows, State, checked_state
from qafel.errors import ConfigError, DataError, PartFailed
from qafel.params import Vector
from qafel.parts import is_custom
from qafel.quantizers.protocol import Payload, Quantizer
from qafel.text import path_of

if TYPE_CHECKING:
    from qafel.algorithm.algorithm import Algorithm, LocalTraining
    from qafel.algorithm.hidden_state import HiddenState


class Needs(NamedTuple):
    """What a part needs from the driver that runs it. A method needs the union of its parts' needs."""

    rounds: bool = False
    """Clients start in rounds, all of a round from one version."""
    clients: bool = False
    """The number of clients is known."""
    continues: bool = False
    """A client starts again after the server's answer, which may tell it to continue from the model that it holds."""
    client_memory: bool = False
    """A client has one upload in flight, and its memory survives a crash."""
    exact_uploads: bool = False
    """The server adds an upload as it was sent, not scaled down."""
    own_starts: bool = False
    """Each start gets a separate message."""
    quantized_starts: bool = False
    """A client may start from a quantized copy of the hidden state."""
    linked_starts: bool = False
    """The server remembers the point that each client last started from."""
    correction: bool = False
    """Local training adds a correction to every gradient."""

    def union(self, other: Needs) -> Needs:
        return Needs(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))


_NEEDED: Mapping[str, tuple[str, str]] = {
    "rounds": ("clients that start in rounds", 'simulate it with timing.arrivals = "rounds"'),
    "clients": ("a known number of clients", "state the number"),
    "continues": (
        "clients that train all the time and may continue from the model that they hold",
        'simulate it with timing.arrivals = "always-training"',
    ),
    "client_memory": ("a memory at each client", "use a client rule without a memory"),
    "exact_uploads": ("uploads that are never scaled down", "turn the limit on norms off"),
    "own_starts": ("a separate message for each start", 'simulate it, or set catch_up = "exact"'),
    "quantized_starts": ("clients that start from a quantized hidden state", 'set catch_up = "exact"'),
    "linked_starts": ("a start point remembered for each client", 'simulate it, or set catch_up = "snapshot"'),
    "correction": ("a task with takes_correction = True", "use such a task, or another client rule"),
}
"""For each need: what must be provided, and what a user can do where it is not."""


def require_provided(algorithm: Algorithm, provided: Needs, driver: str) -> None:
    """Raise `ConfigError` if a method needs more than a driver provides."""
    for name, needed in algorithm.needs._asdict().items():
        if needed and not getattr(provided, name):
            what, remedy = _NEEDED[name]
            raise ConfigError(f"{algorithm.name} needs {what}, which {driver} does not provide: {remedy}")


class Part(ABC):  # noqa: B024
    """One job of a method. The defaults suit a part whose state is its attributes that are arrays, numbers or rows."""

    needs: Needs = Needs()

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:  # noqa: B027
        """Prepare for a run: a model of `size` parameters and, if known, the number of clients."""

    def problem(self, algorithm: Algorithm) -> str | None:
        """Why this part does not fit the other parts of a method; None if it does."""
        return None

    def state(self) -> State:
        """What a checkpoint keeps. Override it together with `restore_`."""
        return {name: value for name, value in _attributes(self).items() if isinstance(value, KEPT)}

    def restore_(self, state: State) -> None:
        """Restore a saved state, with the names and shapes of `state()`."""
        for name, value in state.items():
            object.__setattr__(self, name, value)


def _attributes(part: object) -> dict[str, Any]:
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    return {**{name: getattr(part, name) for name in slots if hasattr(part, name)}, **getattr(part, "__dict__", {})}


class Trained(NamedTuple):
    """What local training gives: the model y_P, the steps done, and figures about them."""

    model: Vector
    steps: int | None = None
    metrics: Mapping[str, float] = {}


class Upload(NamedTuple):
    """An upload that the server admits."""

    client: int
    sequence: int
    version: int
    staleness: int
    """τ: the server steps since the version that it started from."""
    weight: float
    """The client's."""
    staleness_weight: float
    factor: float
    """Below one: the update counts as scaled down by it."""
    payload: Payload
    decoded: Vector | None
    """The decoded payload, if already available."""
    size: int
    """The number of coordinates."""

    def vector(self, quantizer: Quantizer) -> Vector:
        """The decoded payload; not to be changed."""
        return quantizer.decode(self.payload, self.size) if self.decoded is None else self.decoded

    def add_to_(self, total: Vector, quantizer: Quantizer, weight: float) -> None:
        """Add weight · update: in one pass over the payload, or from the decoded vector, with the same bits."""
        if self.decoded is None:
            quantizer.add_decoded_(total, self.payload, weight)
        else:
            total += self.decoded if weight == 1 else np.float32(weight) * self.decoded


class Next(Enum):
    """What the sender of an upload starts from next."""

    NEWEST = "newest"
    """The newest hidden state."""
    SAME = "same"
    """The hidden state that it started from."""


class Batch(NamedTuple):
    """What the uploads of one step add up to. Later uploads belong to the next batch."""

    uploads: int
    """How many."""
    max_staleness: int
    content: Mapping[str, Any]
    """The accumulator's own: arrays and numbers by name."""


class Direction(NamedTuple):
    """Δ̄ = (mixed·x − total)/divisor where clients send models, else total/divisor; plus a memory, if there is one.

    Unevaluated, so that a server rule can make the whole step in one pass.
    """

    total: Vector
    divisor: float = 1.0
    mixed: float = 0.0
    memory: Vector | None = None
    uploads: int = 1
    """How many it is made of."""
    max_staleness: int = 0

    def update(self, model: Vector) -> Vector:
        """Δ̄ as a new vector; `model` is x."""
        total = np.float32(self.mixed) * model - self.total if self.mixed else self.total
        update: Vector = total / np.float32(self.divisor)
        return update if self.memory is None else update + self.memory


def require_direction(found: object, size: int, accumulator: object) -> None:
    """Raise `PartFailed` unless an accumulator's `direction` returned what server rules can use unchecked."""
    if not isinstance(found, Direction):
        raise PartFailed(f"{path_of(accumulator)}.direction returned {type(found).__name__}, not a Direction")
    vectors = {"total": found.total} if found.memory is None else {"total": found.total, "memory": found.memory}
    for name, vector in vectors.items():
        is_array = isinstance(vector, np.ndarray)
        if not is_array or vector.dtype != np.float32 or vector.shape != (size,) or not vector.flags.c_contiguous:
            kind = f"{vector.dtype}{list(vector.shape)}" if is_array else type(vector).__name__
            raise PartFailed(
                f"{path_of(accumulator)}.direction returned a {name} of {kind}, not a contiguous float32[{size}]"
            )
    for name, number in {"divisor": found.divisor, "mixed": found.mixed}.items():
        is_number = isinstance(number, int | float | np.number)
        if not is_number or not math.isfinite(number) or (name == "divisor" and not number):
            needed = "a finite number" if name == "mixed" else "a finite number other than 0"
            raise PartFailed(f"{path_of(accumulator)}.direction returned the {name} {number!r}, not {needed}")


class ClientRule(Part):
    """What a client sends. Pure: memory in, memory out; it runs in worker processes too."""

    sends_model: bool = False
    """Whether it sends a model y, which the server mixes into its own, instead of an update."""
    corrects_bias: bool = False
    """Whether it makes up for the error of a biased Q_c."""

    def new_memory(self, size: int) -> State:
        """A client's memory before its first upload; empty for a rule without memory."""
        return {}

    def local(self, local: LocalTraining, start: HiddenState, memory: State) -> LocalTraining:
        """The local training of one update."""
        return local

    @abstractmethod
    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        """What Q_c encodes."""

    def following(self, start: HiddenState, trained: Trained, memory: State, sent: Vector) -> State:
        """The memory once the server has accepted the upload; `sent` is what the upload decodes to."""
        return memory


@final
class Update(ClientRule):
    """Sends y₀ − y_P. Algorithm 2, line 6."""

    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        return start.vector - trained.model


@final
class Model(ClientRule):
    """Sends y_P, which the server mixes into x (FedAsync)."""

    sends_model = True

    def vector(self, start: HiddenState, trained: Trained, memory: State) -> Vector:
        return trained.model


class Accumulator(Part):
    """What the server does with uploads until it steps. Algorithm 1, lines 6 to 8."""

    divides_by_weights: bool = False
    """Whether Δ̄ is divided by the clients' weights: then a tiny weight does not reduce an update's norm."""

    count: int
    """The uploads since the last step."""

    @property
    @abstractmethod
    def due(self) -> bool:
        """Whether the server should step now."""

    @abstractmethod
    def add_(self, upload: Upload, quantizer: Quantizer) -> Next:
        """Take an upload. One that does not decode raises and changes nothing."""

    @abstractmethod
    def close_(self) -> Batch:
        """End the batch, and begin the next one."""

    @abstractmethod
    def direction(self, batch: Batch, model: Vector) -> Direction:
        """Δ̄; `model` is x."""

    def stepped_(self, batch: Batch, quantizer: Quantizer) -> None:
        """Called after the step; `quantizer` is Q_c."""

    def moved_(self, version: int, payload: Payload) -> None:
        """Called after the broadcast that leads to a version, with its payload."""


class ServerRule(Part):
    """Moves the server model. Algorithm 1, line 9."""

    @abstractmethod
    def step_(self, model: Vector, direction: Direction) -> Vector:
        """The next server model, as a new vector."""


def settings_of(parts: Mapping[str, Part]) -> dict[str, str]:
    """The numbers and texts that new parts hold, by "part.name"."""
    return {
        f"{role}.{name}": repr(value)
        for role, part in parts.items()
        for name, value in _attributes(part).items()
        if isinstance(value, bool | int | float | str)
    }


def require_same_settings(saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise `DataError` if new parts have other settings than those that a checkpoint was made with."""
    for name in sorted(saved.keys() | now.keys()):
        if saved.get(name) != now.get(name):
            raise DataError(f"{name} is {now.get(name, 'not set')}, and was {saved.get(name, 'not set')}")


def contents(parts: Mapping[str, object]) -> dict[str, bytes | None]:
    """The attributes of each custom part; None if they cannot be compared. A `cached_property` does not count."""
    owners = {role: getattr(part, "__self__", part) for role, part in parts.items()}  # of a method, its object
    return {
        role: _pickled({name: it for name, it in _attributes(owner).items() if not _is_cached(owner, name)})
        for role, owner in owners.items()
        if is_custom(owner)
    }


def _is_cached(part: object, name: str) -> bool:
    return isinstance(getattr(type(part), name, None), cached_property)


def unsaved(parts: Mapping[str, Part]) -> dict[str, bytes | None]:
    """For each part, what must not change, so that its state restores it; None if that cannot be compared.

    That is the names and types in its state, and the attributes that are not in it. A class that defines `state`
    itself answers for the latter.
    """
    found: dict[str, bytes | None] = {}
    for role, part in parts.items():
        state = checked_state(part)
        forms = {
            name: None if isinstance(value, Rows) else (np.asarray(value).dtype.str, np.shape(value)[1:])
            for name, value in state.items()
        }
        others = {} if "state" in vars(type(part)) else _attributes(part)
        found[role] = _pickled(forms, {name: other for name, other in others.items() if name not in state})
    return found


def _pickled(*tables: Mapping[str, Any]) -> bytes | None:
    """The tables as bytes to compare; None if they cannot be pickled."""
    try:
        return pickle.dumps([sorted(table.items(), key=itemgetter(0)) for table in tables])
    except Exception:
        return None
