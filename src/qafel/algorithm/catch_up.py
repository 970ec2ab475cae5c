"""Catching up: what a client downloads before it starts, and how many bytes that is.

The paper is silent on clients that miss broadcasts or join late; without this they could never train again. A plan
costs O(1): it follows from the bytes broadcast in all and those broadcast when the client last held x̂. The simulator
charges the plan, the deployment sends its messages. docs/decisions/simulator.md

Exact: the missed broadcasts, or x̂ whole if that is shorter.

Snapshot: the same, or a quantized copy of x̂ for one start. All clients of a version get the same copy.

Linked: the quantized difference to the point that the client last started from. Server and client both know this
point, so it is a hidden state for one link: y ← y + Q(x̂ − y).

Auto: the shortest of broadcasts, a linked start and a quantized copy.

PerStart: Q_s(x), drawn for each start (direct quantization as published).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self, final

import numpy as np

from qafel.algorithm.hidden_state import DirectModel, HiddenState, HiddenStateDifference
from qafel.algorithm.messages import HEADER_BYTES, Kind, Message, expectations
from qafel.algorithm.parts import Needs, Part
from qafel.errors import Drifted, HiddenStateError, MessageError
from qafel.params import Layout, Vector
from qafel.quantizers import as_quantizer, make_quantizer, parse
from qafel.quantizers.custom import Custom
from qafel.quantizers.protocol import Payload, Quantizer
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
    linked: bool = False
    """Whether it holds the point that the server remembers for it."""


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
    size: int
    """The number of coordinates."""


class Means(Enum):
    """How a client gets to a point it can start from."""

    NOTHING = "nothing"
    BROADCASTS = "broadcasts"
    WHOLE = "whole"
    QUANTIZED = "quantized"
    LINK = "link"
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
    link: Quantizer | None = None
    """Of the differences to a client's last start."""
    first: Quantizer | None = None
    """Of a client's first linked start, which is longer: the difference to x⁰."""

    @property
    def quantizers(self) -> dict[str, Quantizer]:
        """The quantizers of starts, by role."""
        found = {"snapshot": self.quantizer, "link": self.link, "first start": self.first}
        return {role: quantizer for role, quantizer in found.items() if quantizer is not None}

    def fitted(self, layout: Layout | None) -> Self:
        """Return this part for a model of that layout, which some quantizers need."""
        made = copy(self)
        for name in ("quantizer", "link", "first"):
            quantizer = getattr(self, name)
            if quantizer is not None and not isinstance(quantizer, Custom):
                setattr(made, name, parse(quantizer.spec, layout))
        return made

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


class Quantized(CatchUp):
    """A client may start from an inexact point. It follows broadcasts where they are shorter and it holds x̂.

    Once inexact starts have cost it as much more than broadcasts would have as x̂ costs more than one of them, it
    fetches x̂ and follows. So a client that starts often pays at most about twice what it would have paid with x̂ from
    the start.
    """

    needs = Needs(quantized_starts=True)

    def problem(self, algorithm: Algorithm) -> str | None:
        if not isinstance(algorithm.downlink, HiddenStateDifference) or algorithm.needs.client_memory:
            return "quantized starts need a hidden state that differences move, and no memories: leave them out"
        if algorithm.client_rule.sends_model:
            return "quantized starts need clients that send updates: a model would carry the copy's error to the server"
        return None

    def inexact(self, held: Held, offer: Offer) -> tuple[Means, int]:
        """The shortest message to an inexact start, and its bytes."""
        return Means.QUANTIZED, offer.quantized_bytes()

    def plan(self, held: Held, offer: Offer) -> Plan:
        holds = held.exact and held.position is not None
        missed = None if held.position is None else offer.position - held.position
        if missed == 0:
            return Plan(Means.NOTHING if holds else Means.LINK if held.linked else Means.QUANTIZED, 0, held)
        means, size = self.inexact(held, offer)
        if holds and missed is not None and missed <= size:
            return Plan(Means.BROADCASTS, missed, offer.held)
        overpaid = held.overpaid + (0 if missed is None else max(0, size - missed))
        if overpaid >= offer.snapshot_bytes - size:
            return Plan(Means.WHOLE, offer.snapshot_bytes, offer.held)
        return Plan(means, size, Held(offer.position, False, overpaid, means is Means.LINK))


@final
class Snapshot(Quantized):
    """A quantized copy of x̂, one for each version."""

    def __init__(self, quantizer: Quantizer | str = "trellis:3") -> None:
        self.quantizer = _quantizer(quantizer)


@final
class Linked(Quantized):
    """Every start moves the client's last start point by Q(x̂ − y)."""

    needs = Needs(quantized_starts=True, linked_starts=True)

    def __init__(self, quantizer: Quantizer | str = "trellis:1", first: Quantizer | str = "trellis:2") -> None:
        self.link, self.first = _quantizer(quantizer), _quantizer(first)

    def plan(self, held: Held, offer: Offer) -> Plan:
        if held.linked and held.position == offer.position:
            return Plan(Means.LINK, 0, held)
        return Plan(Means.LINK, _link_bytes(self, held, offer), Held(offer.position, False, linked=True))


@final
class Auto(Quantized):
    """The shortest of what a client can use: broadcasts, a linked start, a quantized copy."""

    needs = Needs(quantized_starts=True, linked_starts=True)

    def __init__(
        self,
        link: Quantizer | str = "trellis:1",
        first: Quantizer | str = "trellis:2",
        snapshot: Quantizer | str = "trellis:3",
    ) -> None:
        self.link, self.first, self.quantizer = _quantizer(link), _quantizer(first), _quantizer(snapshot)

    def inexact(self, held: Held, offer: Offer) -> tuple[Means, int]:
        found = (Means.LINK, _link_bytes(self, held, offer)), (Means.QUANTIZED, offer.quantized_bytes())
        return min(found, key=lambda it: it[1])


def _quantizer(given: Quantizer | str) -> Quantizer:
    return make_quantizer(given) if isinstance(given, str) else as_quantizer(given)


def _link_bytes(part: CatchUp, held: Held, offer: Offer) -> int:
    """The most bytes of a linked start."""
    quantizer = part.link if held.linked else part.first
    assert quantizer is not None
    return HEADER_BYTES + expectations(quantizer, offer.size)[1]


class Link(NamedTuple):
    """What the server remembers of one client's start point."""

    base: Vector
    digest: int
    """Of the base."""
    message: bytes = b""
    """The last message, which moves the base; empty if the base is the client's start point."""


@final
class Links:
    """The start points of clients, as the server remembers them.

    The memory may be lost or old. A client names the digest of the point that it holds, and the server moves that point
    if it knows it, before or after the last message. Otherwise it begins again from x⁰, or from zero for a client that
    cannot make x⁰.
    """

    def __init__(
        self, part: CatchUp, seed: int, initial: HiddenState, memory: MutableMapping[int, Link] | None = None
    ) -> None:
        """`initial`: x⁰."""
        assert part.link is not None
        assert part.first is not None
        self._link, self._first = part.link, part.first
        self._seed, self.initial = seed, initial
        self._zero = HiddenState.of(np.zeros_like(initial.vector))
        self.memory: MutableMapping[int, Link] = {} if memory is None else memory

    def reply(
        self, client: int, sequence: int, digest: int, target: HiddenState, *, makes_initial: bool = True
    ) -> tuple[bytes, HiddenState]:
        """The message that moves a client's start point to `target`, and the point that results.

        sequence       the number of the client's start
        digest         of the point that the client holds; 0: none
        makes_initial  whether the client can make x⁰
        """
        base, before, quantizer = self._base(client, digest, makes_initial)
        stream = Stream.named(self._seed, "start-link", client, sequence)
        payload = quantizer.encode(target.vector - base, stream)
        state = _moved(base, payload, quantizer, target.version)
        codec, _ = expectations(quantizer, base.size)
        message = Message(
            Kind.START, codec, base.size, target.version, payload, before, sequence, digest=state.digest
        ).to_bytes()
        self.memory[client] = Link(base, before, message)
        return message, state

    def confirm(self, client: int, state: HiddenState) -> None:
        """Remember that the client holds the point of the last message."""
        self.memory[client] = Link(state.vector, state.digest)

    def _base(self, client: int, digest: int, makes_initial: bool) -> tuple[Vector, int, Quantizer]:
        link, origins = self.memory.get(client), (self.initial.digest, self._zero.digest)
        if link is not None and digest not in (0, *origins):
            if digest == link.digest:
                return link.base, digest, self._link
            if link.message and (message := Message.from_bytes(link.message)).digest == digest:
                for moving in (self._first, self._link):  # x⁰ may have changed since, so the message decides
                    with suppress(MessageError, HiddenStateError):
                        message.check(Kind.START, link.base.size, moving)
                        point = _moved(link.base, message.payload, moving, 0)
                        if point.digest == digest:
                            return point.vector, digest, self._link
        base = self.initial if makes_initial else self._zero
        return base.vector, base.digest, self._first


def _moved(base: Vector, payload: Payload, quantizer: Quantizer, version: int) -> HiddenState:
    """The point after a message: the one function that both ends apply."""
    vector = base.copy()
    quantizer.add_decoded_(vector, payload)
    return HiddenState.of(vector, version, exact=False)


def linked_start(message: Message, part: CatchUp, held: HiddenState, initial: HiddenState | None) -> HiddenState:
    """What a client starts from after a linked message, given what it holds and, if it can make it, x⁰."""
    size = held.vector.size
    bases = [HiddenState.of(np.zeros(size, np.float32)), *([] if initial is None else [initial])]
    base = next((base for base in bases if base.digest == message.sender), None)
    quantizer = part.link if base is None else part.first
    assert quantizer is not None
    message.check(Kind.START, size, quantizer)
    if base is None and held.digest != message.sender:
        raise Drifted(f"the start point of version {message.version} is based on a point that this client lacks")
    state = _moved((base or held).vector, message.payload, quantizer, message.version)
    return state.matching(message)


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
