"""Linked starts: both ends move one point per client. The server may lose what it remembers, or remember old points."""

from __future__ import annotations

import numpy as np
import pytest

from qafel.algorithm import Client, HiddenState, Message, method
from qafel.algorithm.catch_up import Link, Linked, Links, linked_start
from qafel.errors import Drifted, WrongCodec

SIZE, SEED = 4096, 5
ALGORITHM = method("qafel", catch_up="link")


def target(version: int) -> HiddenState:
    """A model that moves a little with each version."""
    steps = np.random.default_rng(1).normal(size=(version + 1, SIZE))
    steps[1:] *= 0.2
    return HiddenState.of(steps.sum(axis=0).astype(np.float32), version)


def new_client(number: int = 3, *, makes_initial: bool = True) -> Client:
    client = Client(number, HiddenState.of(np.zeros(SIZE, np.float32), -1), ALGORITHM, SEED)
    client.initial = target(0) if makes_initial else None
    return client


def new_links() -> Links:
    return Links(ALGORITHM.catch_up, SEED, target(0))


def ask(links: Links, client: Client, version: int) -> bytes:
    """The server's reply to a client that starts at this version."""
    digest = client.hidden_state.digest if client.hidden_state.version >= 0 else 0
    found = links.reply(client.number, version, digest, target(version), makes_initial=client.initial is not None)
    return found[0]


def distance(client: Client, version: int) -> float:
    """The squared error of the client's start point, relative to the model's move since version 0."""
    aim = target(version).vector
    moved = aim - target(0).vector
    return float(np.sum((client.hidden_state.vector - aim) ** 2) / np.sum(moved**2))


@pytest.mark.parametrize("makes_initial", [True, False])
def test_both_ends_hold_the_same_point_which_stays_near_the_model(makes_initial: bool) -> None:
    links, client, held, sizes = new_links(), new_client(makes_initial=makes_initial), np.zeros(0), []
    for version in range(1, 30):
        message = ask(links, client, version)
        sizes.append(len(message))
        before = client.hidden_state.vector
        assert client.receive(message)
        link = links.memory[client.number]
        read = Message.from_bytes(message)
        codec = ALGORITHM.catch_up.first if version == 1 else ALGORITHM.catch_up.link
        base = before if version > 1 else target(0).vector if makes_initial else np.zeros(SIZE, np.float32)
        held = base + codec.decode(read.payload, SIZE)
        assert np.array_equal(link.base, base)
        assert np.array_equal(client.hidden_state.vector, held)
        assert client.hidden_state.version == version
        assert not client.hidden_state.exact
        if version > 5:
            assert distance(client, version) < 0.8
    assert max(sizes[1:]) < 0.6 * sizes[0]


def test_a_lost_reply_costs_nothing_but_its_bytes() -> None:
    links, client = new_links(), new_client()
    ask(links, client, 1)
    client.receive(ask(links, client, 2))
    for version in (3, 4, 5):
        ask(links, client, version)
    message = ask(links, client, 6)
    assert Message.from_bytes(message).sender == client.hidden_state.digest
    client.receive(message)
    assert client.hidden_state.version == 6


def test_a_repeated_request_gets_the_same_bytes() -> None:
    links, client = new_links(), new_client()
    client.receive(ask(links, client, 1))
    assert ask(links, client, 2) == ask(links, client, 2)


def test_a_lost_memory_an_old_copy_of_it_and_a_lost_folder_each_cost_one_longer_message() -> None:
    links, client = new_links(), new_client()
    client.receive(ask(links, client, 1))
    old = dict(links.memory)
    for version in (2, 3, 4):
        client.receive(ask(links, client, version))
    usual = len(ask(links, client, 5))
    for memory in ({}, old):
        links.memory = dict(memory)
        message = ask(links, client, 5)
        assert Message.from_bytes(message).sender == target(0).digest
        assert len(message) > 1.5 * usual
        client.receive(message)
        message = ask(links, client, 6)
        assert len(message) < 1.05 * usual
        client.receive(message)
    client = new_client()
    client.receive(ask(links, client, 7))
    assert len(ask(links, client, 8)) < 1.05 * usual


def test_two_processes_with_one_number_never_start_from_a_wrong_point() -> None:
    links, one, other = new_links(), new_client(), new_client()
    for version in range(1, 12):
        for client in (one, other):
            message = ask(links, client, version)
            assert client.receive(message)
            assert client.hidden_state.digest == Message.from_bytes(message).digest


def test_a_message_for_another_point_is_refused_and_changes_nothing() -> None:
    links, one, other = new_links(), new_client(1), new_client(2)
    for version in (1, 2):
        for client in (one, other):
            client.receive(ask(links, client, version))
    message, held = ask(links, one, 3), other.hidden_state
    with pytest.raises(Drifted):
        other.receive(message)
    assert other.hidden_state is held
    with pytest.raises((Drifted, WrongCodec)):
        new_client().receive(message)


@pytest.mark.parametrize(("link", "first"), [("qsgd:4", "qsgd:8"), ("trellis:1", "trellis:2"), ("qsgd:8", "none")])
def test_a_first_message_is_read_also_where_the_initial_model_is_not_known_any_more(link: str, first: str) -> None:
    size, generator = 1200, np.random.default_rng(1)
    part, zero = Linked(link, first), HiddenState.of(np.zeros(size, np.float32), -1)
    initial = HiddenState.of(generator.normal(size=size).astype(np.float32))
    state = HiddenState.of(initial.vector + generator.normal(size=size).astype(np.float32), 7)
    memory: dict[int, Link] = {}
    frame, _ = Links(part, 3, initial, memory).reply(0, 0, 0, state)
    held = linked_start(Message.from_bytes(frame), part, zero, initial)
    later = Links(part, 3, HiddenState.of(zero.vector), memory)
    frame, known = later.reply(0, 1, held.digest, state, makes_initial=False)
    assert linked_start(Message.from_bytes(frame), part, held, initial).digest == known.digest
