"""Catching up: what a client downloads before it starts, and how many bytes that is.

The paper is silent on clients that miss broadcasts or join late; without this they could never train again. A plan
costs O(1): it follows from the bytes broadcast in all and those broadcast when the client last held x̂. The simulator
charges the plan, the deployment sends its messages. docs/decisions/simulator.md

Exact: the missed broadcasts, or x̂ whole if that is shorter.

Quantized: the same, or a quantized copy of x̂ for one start.

PerStart: Q_s(x), drawn for each start (direct quantization as published).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, final

from qafel.algorithm.hidden_state import DirectModel, HiddenState, HiddenStateDifference
from qafel.algorithm.messages import Kind, Message, expectations
from qafel.algorithm.parts import Needs, Part
from qafel.quantizers import as_quantizer
from qafel.quantizers.protocol import Quantizer
from qafel.rng import Stream

if TYPE_CHECKING:
    from qafel.algorithm.algorithm import Algorithm


class Held(NamedTuple):
    """What a client holds, for its next download."""

    position: int | None = None
    """The bytes broadcast in all when it last started; None: it never did."""
    exact: bool = True
    """Whether it holds x̂ of that time. False after a start from a quantized copy, or before the first start."""
    overpaid: int = 0
    """How many bytes less broadcasts would have been than the quantized copies that it fetched."""


class Offer(NamedTuple):
    """What the server has for a client that starts now."""

    position: int
    """The bytes broadcast in all."""
    held: Held
    """What a client holds that takes all of them."""
    snapshot_bytes: int
    """Of x̂ whole."""
    whole_bytes: int
    """Of the shortest message that needs nothing before it: a snapshot, or a broadcast that is a whole model."""
    quantized_bytes: Callable[[], int]
    """Of a quantized copy of x̂."""


class Means(Enum):
    """How a client gets to a point it can start from."""

    NOTHING = "nothing"
    BROADCASTS = "broadcasts"
    WHOLE = "whole"
    QUANTIZED = "quantized"
    OWN = "own"


class Plan(NamedTuple):
    """The download of one start."""

    means: Means
    download_bytes: int
    held: Held
    """What the client holds afterwards."""


class CatchUp(Part):
    """Decides what a client downloads before it starts."""

    quantizer: Quantizer | None = None
    """Of quantized copies."""

    @abstractmethod
    def plan(self, held: Held, offer: Offer) -> Plan:
        """The download of a client that starts now."""

    def start(self, held: HiddenState, algorithm: Algorithm, seed: int, client: int, sequence: int) -> HiddenState:
        """What the client trains from, given what it downloaded."""
        return held


@final
class Exact(CatchUp):
    """The broadcasts since the client's last start (of whole models the newest), or x̂ whole where that is shorter."""

    def plan(self, held: Held, offer: Offer) -> Plan:
        following = offer.held
        if held.position is None or (missed := offer.position - held.position) > offer.whole_bytes:
            return Plan(Means.WHOLE, offer.whole_bytes, following)
        return Plan(Means.BROADCASTS if missed else Means.NOTHING, missed, following)


@final
class Quantized(CatchUp):
    """A client that would have to fetch x̂ whole may start from Q(x̂) instead.

    It fetches such a copy where the missed broadcasts are longer, or where it holds no x̂ to add them to. Once copies
    have cost it as much more than broadcasts would have as x̂ costs more than one copy, it fetches x̂ and follows. So a
    client that starts often pays at most about twice what it would have paid with x̂ from the start.
    """

    needs = Needs(quantized_starts=True)

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = as_quantizer(quantizer)

    def problem(self, algorithm: Algorithm) -> str | None:
        if not isinstance(algorithm.downlink, HiddenStateDifference) or algorithm.needs.client_memory:
            return "quantized starts need a hidden state that differences move, and no memories: leave them out"
        if algorithm.client_rule.sends_model:
            return "quantized starts need clients that send updates: a model would carry the copy's error to the server"
        return None

    def plan(self, held: Held, offer: Offer) -> Plan:
        holds = held.exact and held.position is not None
        missed = None if held.position is None else offer.position - held.position
        if missed == 0:
            return Plan(Means.NOTHING if holds else Means.QUANTIZED, 0, held)
        size = offer.quantized_bytes()
        if holds and missed is not None and missed <= size:
            return Plan(Means.BROADCASTS, missed, offer.held)
        overpaid = held.overpaid + (0 if missed is None else max(0, size - missed))
        if overpaid >= offer.snapshot_bytes - size:
            return Plan(Means.WHOLE, offer.snapshot_bytes, offer.held)
        return Plan(Means.QUANTIZED, size, Held(offer.position, False, overpaid))


@final
class PerStart(CatchUp):
    """Each start downloads Q_s(x), drawn for it alone: direct quantization as in the published runs."""

    needs = Needs(own_starts=True)

    def problem(self, algorithm: Algorithm) -> str | None:
        direct = isinstance(algorithm.downlink, DirectModel)
        return None if direct else 'catch_up = "per-start" needs downlink = "direct"'

    def plan(self, held: Held, offer: Offer) -> Plan:
        return Plan(Means.OWN, 0, offer.held)

    def start(self, held: HiddenState, algorithm: Algorithm, seed: int, client: int, sequence: int) -> HiddenState:
        message = Message.from_bytes(own_start(held, algorithm, seed, client, sequence))
        return HiddenState.of(algorithm.server_quantizer.decode(message.payload, message.dimension), message.version)


def own_start(exact: HiddenState, algorithm: Algorithm, seed: int, client: int, sequence: int) -> bytes:
    """What one client downloads when it starts: Q_s(x), drawn for this start alone. `exact` holds x itself."""
    quantizer, model = algorithm.server_quantizer, exact.vector
    payload = quantizer.encode(model, Stream.named(seed, "start-quantizer", client, sequence))
    return Message(Kind.MODEL, quantizer.codec, model.size, exact.version, payload).to_bytes()


def quantized_copy(exact: HiddenState, quantizer: Quantizer, seed: int) -> bytes:
    """Q(x̂) as a message, one for a version: its random stream is named by the run's seed and the version.

    Its digest is that of the vector it decodes to.
    """
    vector = exact.vector
    payload = quantizer.encode(vector, Stream.named(seed, "snapshot-quantizer", number=exact.version))
    codec, _ = expectations(quantizer, vector.size)
    digest = HiddenState.of(quantizer.decode(payload, vector.size)).digest
    return Message(Kind.SNAPSHOT, codec, vector.size, exact.version, payload, digest=digest).to_bytes()
