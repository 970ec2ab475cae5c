"""The client: copies x̂, trains in a thread or a process, uploads; and follows the broadcasts meanwhile.

`participant` is its life; here a name on the broker and a folder become a client.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from qafel.algorithm import Client, HiddenState, Message
from qafel.algorithm.client import Train
from qafel.deployment.access import Access
from qafel.deployment.agreement import Agreement
from qafel.deployment.broker import Broker, session
from qafel.deployment.client_state import ClientState
from qafel.deployment.keys import Verifier
from qafel.deployment.layout import KEY_VALUE_STREAM, SIGNATURE, Names
from qafel.deployment.participant import ClientReport, DeploymentClient, Event
from qafel.deployment.settings import ClientSettings
from qafel.errors import BrokerError, BrokerRefused, BrokerUnreachable, DataError

MakeTrain: TypeAlias = Callable[[Agreement, int], tuple[Train, float]]
"""From the run's configuration and the client's number to its training function and its weight."""


def run_client(
    train: Train | None = None,
    *,
    run: str,
    client: int,
    state: Path,
    access: Access | None = None,
    make_train: MakeTrain | None = None,
    weight: float = 1.0,
    settings: ClientSettings | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> ClientReport:
    """Take part in a run with your own training function, until it ends or `max_updates` are done.

    `train(start, stream)` gets the hidden state (not to be changed) and a random stream, and returns the trained model
    as a flat vector. Where it depends on the run's configuration, give `make_train` instead.

    run_client(lambda start, stream: start - 0.1 * gradient(start), run="demo", client=3, state=Path("client-3"))
    """
    if make_train is None:
        if train is None:
            raise DataError("give a training function: train, or make_train")
        given = train

        def make_train(agreement: Agreement, number: int) -> tuple[Train, float]:
            return given, weight

    return asyncio.run(
        _take_part(make_train, Names(run), client, state, access or Access(), settings or ClientSettings(), on_event)
    )


async def _take_part(
    make_train: MakeTrain,
    names: Names,
    number: int,
    folder: Path,
    access: Access,
    settings: ClientSettings,
    on_event: Callable[[Event], None] | None,
) -> ClientReport:
    with ClientState(folder) as state:
        client = await open_client(make_train, names, number, state, access, settings, on_event)
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, client.stop)
        return await client.run()


async def open_client(
    make_train: MakeTrain,
    names: Names,
    number: int,
    state: ClientState,
    access: Access,
    settings: ClientSettings,
    on_event: Callable[[Event], None] | None = None,
) -> DeploymentClient:
    """A client that knows the run and holds a hidden state, from its disk or from a snapshot."""
    verifier = access.verifier()
    loop = asyncio.get_running_loop()
    deadline = None if settings.patience_s is None else loop.time() + settings.patience_s
    while True:
        try:
            async with session(access, str(number), patience_s=settings.patience_s) as broker:
                agreement, snapshot = await _first_contact(broker, names, verifier)
                break
        except BrokerError as error:
            if deadline is not None and loop.time() > deadline:
                raise BrokerUnreachable(f"there is no run {names.run!r} to take part in: {error}") from None
            await asyncio.sleep(0.3)
    algorithm, dimension = agreement.algorithm(), agreement.layout.size
    hidden_state = state.load(agreement.run_id, dimension, algorithm)
    if hidden_state is None:
        hidden_state = HiddenState.from_snapshot(Message.from_bytes(snapshot), dimension, algorithm)
    train, weight = await asyncio.to_thread(make_train, agreement, number)
    core = Client(number, hidden_state, algorithm, agreement.config.seed, weight=weight)
    return DeploymentClient(core, train, state, agreement.run_id, names, access, settings, on_event)


async def _first_contact(broker: Broker, names: Names, verifier: Verifier | None) -> tuple[Agreement, bytes]:
    stored = await broker.stored(KEY_VALUE_STREAM, names.config)
    if stored is None:
        raise BrokerRefused("its server has not started")
    found = await broker.object(names.snapshot)
    if found is None:
        raise BrokerRefused("its snapshot is not there yet")
    if verifier is not None:
        verifier.check(names.config, stored.data, stored.headers.get(SIGNATURE))
        verifier.check(names.snapshot, *found)
    return Agreement.from_bytes(stored.data), found[0]
