"""Uploads that must not be taken, at a live server: none is, each is counted by its reason, its client is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import Kind, Message, Needs
from qafel.bench.deployment import mutated
from qafel.config import Config
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client.client import DeploymentClient
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access, signed_name
from qafel.deployment.messages import Receipt
from qafel.deployment.names import PART, Names, StreamLimits
from qafel.deployment.server import DefenceSettings, ServerSettings
from qafel.deployment.server.defence import RunningMedian, UploadChecker
from qafel.deployment.server.ledger import Ledger
from qafel.deployment.server.server import DeploymentServer
from qafel.errors import BrokerRefused, ConfigError
from qafel.rng import Stream
from tests.deployment.live import CONFIG, replay, serving, taking_part, until, update
from tests.uploads import upload_of


def _settings(**defence: Any) -> ServerSettings:
    return ServerSettings(heartbeat_s=0.2, defence=DefenceSettings(**defence))


def _upload(client: DeploymentClient, sequence: int, step: float = 0.01, weight: float = 1.0) -> bytes:
    start = client.core.hidden_state
    direction = np.sin(np.arange(start.vector.size, dtype=np.float32))
    trained = start.vector - np.float32(step) * direction
    number, algorithm = client.core.number, client.core.algorithm
    return upload_of(start, trained, algorithm, client=number, sequence=sequence, weight=weight, seed=1)


class Told:
    """What the receipts of a client say."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.duplicate: list[int] = []
        self.rejected: list[str] = []
        self.texts: list[str] = []

    async def hear(self, stored: Stored) -> None:
        receipt = Receipt.from_bytes(stored.data)
        self.accepted += [sequence for sequence, *_ in receipt.accepted]
        self.duplicate += receipt.duplicate
        self.rejected += [reason for _, reason, _ in receipt.rejected]
        self.texts += [text for _, _, text in receipt.rejected]

    def __len__(self) -> int:
        return len(self.accepted) + len(self.duplicate) + len(self.rejected)


async def _send(broker: Broker, told: Told, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
    before = len(told)
    await broker.store(subject, data, headers)
    await until(lambda: len(told) > before)


@pytest.mark.parametrize(("step", "weight"), [(1e37, 1e30), (3e38, 1.0)])
def test_an_update_that_would_make_the_sum_infinite_is_rejected_even_from_a_lonely_client(
    tmp_path: Path, access: Access, step: float, weight: float
) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            settings = _settings(max_norm_ratio=None)
            server = await stack.enter_async_context(serving(tmp_path, access, settings=settings))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            broker = await stack.enter_async_context(session(access, "test"))
            told = Told()
            await broker.subscribe(client.names.receipt(0), told.hear)
            for sequence in range(3):
                await _send(broker, told, client.names.upload(0), _upload(client, sequence, step, weight))
            assert told.rejected == ["norm"] * 3
            assert "overflow" in told.texts[0]
            await _send(broker, told, client.names.upload(0), _upload(client, 3))
            assert told.accepted == [3]
            assert np.isfinite(server.ledger.server.accumulator.total).all()

    asyncio.run(check())


def test_each_bad_upload_is_rejected_for_its_reason(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            config = Config.from_dict({**CONFIG, "algorithm": {**CONFIG["algorithm"], "max_staleness": 5}})
            settings = _settings(max_norm_ratio=10, norm_excess="reject", max_share=None)
            server = await stack.enter_async_context(serving(tmp_path, access, config, settings))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            broker = await stack.enter_async_context(session(access, "test"))
            told, stranger = Told(), Told()
            await broker.subscribe(client.names.receipt(0), told.hear)
            await broker.subscribe(client.names.receipt(77), stranger.hear)
            subject = client.names.upload(0)
            others = [await stack.enter_async_context(taking_part(tmp_path, access, n)) for n in (1, 2)]
            for other in others:
                await update(other)
            for sequence in range(25):
                await _send(broker, told, subject, _upload(client, sequence, step=0.3))
            await until(lambda: client.follower.version == 9)
            assert told.accepted == list(range(25))
            state = server.ledger.server
            before = (state.version, state.accumulator.count, state.accumulator.total.copy())

            good = Message.from_bytes(_upload(client, 25))
            changed = [
                ("duplicate", _upload(client, 3)),
                ("truncated", good.to_bytes()[:40]),
                ("oversized", good.to_bytes() + b"x"),
                ("checksum", good.to_bytes()[:-1] + bytes([good.to_bytes()[-1] ^ 1])),
                ("unknown-format", b"XX" + good.to_bytes()[2:]),
                ("wrong-kind", good._replace(kind=Kind.BROADCAST).to_bytes()),
                ("wrong-dimension", good._replace(dimension=114).to_bytes()),
                ("wrong-codec", good._replace(codec=bytes(16)).to_bytes()),
                ("malformed-payload", good._replace(payload=bytes(good.payload)[:-1]).to_bytes()),
                ("malformed-payload", good._replace(payload=b"\xff" * len(good.payload)).to_bytes()),
                ("malformed-payload", good._replace(weight=float("nan")).to_bytes()),
                ("stale", good._replace(version=0).to_bytes()),
                ("future", good._replace(version=1000).to_bytes()),
                ("wrong-sender", good._replace(sender=1).to_bytes()),
                ("norm", _upload(client, 26, step=1000.0)),
            ]
            for reason, data in changed:
                counted = state.rejected[reason]
                await _send(broker, told, subject, data)
                assert state.rejected[reason] == counted + 1, reason
                assert reason == "duplicate" or told.rejected[-1] == reason
            await _send(broker, stranger, client.names.upload(77), good.to_bytes())
            assert stranger.rejected == ["unknown-client"]
            assert told.duplicate == [3]
            assert (state.version, state.accumulator.count) == before[:2]
            assert np.array_equal(state.accumulator.total, before[2])
            await _send(broker, told, subject, good.to_bytes())
            assert told.accepted[-1] == 25

    asyncio.run(check())


def test_a_client_that_uploads_too_often_is_told_to_wait(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving(tmp_path, access, settings=_settings(max_rate=0.01)))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            broker = await stack.enter_async_context(session(access, "test"))
            told = Told()
            await broker.subscribe(client.names.receipt(0), told.hear)
            for sequence in range(8):
                await _send(broker, told, client.names.upload(0), _upload(client, sequence))
            assert len(told.accepted) == 1
            assert told.rejected == ["rate"] * 7
            assert "wait" in told.texts[0]

    asyncio.run(check())


def test_a_client_that_lost_its_count_goes_on_above_what_the_server_knows(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, access))
            async with taking_part(tmp_path / "before", access, 0) as client:
                for _ in range(5):
                    await update(client)
            fresh = await stack.enter_async_context(taking_part(tmp_path / "after", access, 0))
            await update(fresh)
            assert dict(fresh.outbox.counts) == {"duplicate": 1}
            await update(fresh)
            assert dict(fresh.outbox.counts) == {"duplicate": 1, "accepted": 1}
            assert server.ledger.traffic.uploads == 6
            told = server._run_state("running")
            assert (told.rejected, told.repeated) == ({}, 1), "a repeat harms nobody, and is no rejection"
            summary = server.evaluator.summary()
            assert (summary["rejected"], summary["repeated"]) == ({}, 1)

    asyncio.run(check())


def test_a_client_that_floods_fills_only_its_own_queue(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with session(access, "test") as broker:
            await broker.ensure(Names("live"), StreamLimits(queue_per_client=10))
            for _ in range(10):
                await broker.store("qafel.live.upload.0", b"flood")
            with pytest.raises(BrokerRefused, match="exceeded"):
                await broker.store("qafel.live.upload.0", b"flood")
            await broker.store("qafel.live.upload.1", b"another's")

    asyncio.run(check())


def test_the_median_is_that_of_all_votes_that_have_not_run_out():
    """Held against sorting them all, over voters that come, repeat and fall silent."""
    chooser, now = random.Random(3), 0.0
    median, votes = RunningMedian({}, 0.0), {}
    for _ in range(4000):
        now += chooser.choice([0.0, 0.1, 1.0, 30.0, 700.0]) if chooser.random() < 0.5 else 0.01
        client, norm = chooser.randrange(400), float(chooser.randrange(20))
        before = votes.pop(client, None)
        votes[client] = (norm, now, 600.0 if before is None else max(60.0, 10 * (now - before[1])))
        votes = dict(list(votes.items())[-256:])
        median.vote(client, norm, now)
        counted = sorted(norm for norm, then, lasts_s in votes.values() if now <= then + lasts_s)
        assert median.value(now) == (counted[len(counted) // 2] if len(counted) >= 3 else None)
    assert median.norms() == {client: norm for client, (norm, _, _) in votes.items()}


def test_the_median_is_over_clients_not_over_uploads() -> None:
    median = RunningMedian({}, 0.0)
    for _ in range(1000):
        median.vote(0, 1000.0, 0.0)  # one that floods has one vote
    median.vote(1, 1.0, 0.0)
    assert median.value(0.0) is None
    median.vote(2, 2.0, 0.0)
    assert median.value(0.0) == 2.0
    assert RunningMedian(median.norms(), 0.0).value(0.0) == 2.0


def test_clients_that_left_do_not_shut_out_those_who_stayed() -> None:
    """As happened: two clients near their own optimum filled the median, and nobody else was ever accepted again."""
    median = RunningMedian({}, 0.0)
    for second in range(100):
        for gone in range(5):
            median.vote(gone, 0.01, second)
    for second in range(100, 300):
        for number in range(3):
            median.vote(10 + number, 1.0 + number, second)
    assert median.value(300.0) == 2.0


def test_a_rejected_norm_votes_so_that_a_majority_is_heard() -> None:
    median = RunningMedian({}, 0.0)
    for number in range(3):
        median.vote(number, 0.01, 0.0)
    values = []
    for number in range(3, 7):
        median.vote(number, 10.0, 0.0)
        values.append(median.value(0.0))
    assert values == [0.01, 0.01, 10.0, 10.0]


async def _good_uploads_per_s(server: DeploymentServer, client: DeploymentClient, broker: Broker, first: int) -> float:
    began, before = time.perf_counter(), server.ledger.traffic.uploads
    for group in range(10):
        batch = [_upload(client, first + 30 * group + number) for number in range(30)]
        await asyncio.gather(*(broker.store(client.names.upload(0), data) for data in batch))
        await until(lambda n=group: server.ledger.traffic.uploads == before + 30 * (n + 1))
    return 300 / (time.perf_counter() - began)


@pytest.mark.timeout(200)
def test_ten_thousand_mutated_messages_neither_count_nor_crash_the_server(tmp_path: Path, access: Access) -> None:
    """How fast it stays is printed here and measured by `qafel bench deployment --case mutants`."""

    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            wide = ServerSettings(heartbeat_s=0.2, limits=StreamLimits(queue_per_client=10_000))
            server = await stack.enter_async_context(serving(tmp_path, access, settings=wide))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            broker = await stack.enter_async_context(session(access, "test"))
            before_rate = await _good_uploads_per_s(server, client, broker, 0)
            chooser = random.Random(5)
            frames = [_upload(client, 10_000 + number) for number in range(50)]
            state, rejected = server.ledger.server, server.ledger.server.rejected
            taken, refused = server.ledger.traffic.uploads, sum(rejected.values())
            held = (state.version, state.accumulator.count, state.accumulator.total.copy())
            began = time.perf_counter()
            for start in range(0, 10_000, 100):
                batch = [(mutated(frames, chooser), _odd_headers(chooser)) for _ in range(100)]
                await asyncio.gather(
                    *(broker.store(client.names.upload(n % 5), m, odd) for n, (m, odd) in enumerate(batch))
                )
                await until(
                    lambda n=start: sum(rejected.values()) >= refused + n + 100 or server.ledger.traffic.uploads > taken
                )
            mutants_per_s = 10_000 / (time.perf_counter() - began)
            assert server.ledger.traffic.uploads == taken, "a mutant was taken"
            assert sum(rejected.values()) == refused + 10_000
            assert (state.version, state.accumulator.count) == held[:2]
            assert np.array_equal(state.accumulator.total, held[2])
            after_rate = await _good_uploads_per_s(server, client, broker, 300)
            print(f"good {before_rate:.0f}/s, mutants {mutants_per_s:.0f}/s, good again {after_rate:.0f}/s; {rejected}")

    asyncio.run(check())


def _odd_headers(chooser: random.Random) -> dict[str, str] | None:
    """For some, a header that names no part of anything."""
    return (
        {PART: chooser.choice(["", "x", "1/2", "3/2/1", "0/0/0", "1/0/999999", "٣/٠/١"])}
        if chooser.random() < 0.05
        else None
    )


def _checker(keys: dict[int, str] | None) -> UploadChecker:
    algorithm: Any = SimpleNamespace(needs=Needs())
    return UploadChecker(algorithm, DefenceSettings(), 5, keys)


def test_a_server_that_signs_does_not_start_without_its_registry(tmp_path: Path) -> None:
    folder = BrokerFolder.init(tmp_path / "broker", 1).path
    (folder / "server" / "clients.json").unlink()
    with pytest.raises(ConfigError, match=r"clients\.json is missing"):
        Access.of(None, folder / "server").registry()
    assert Access.of(None, folder / "clients" / "0").registry() is None
    assert Access().registry() is None


@pytest.mark.parametrize("left", [None, b"", b'{"0": "UAB', b'{"0": null}', b"[]"])
def test_a_registry_that_is_being_replaced_leaves_the_last_one_in_force(
    tmp_path: Path, left: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = BrokerFolder.init(tmp_path / "broker", 1)
    access, path = Access.of(None, folder.path / "server"), folder.path / "server" / "clients.json"
    checker = _checker(access.registry())
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    for _ in range(3):
        asyncio.run(checker.renew_keys(access))
    assert checker.knows(0)
    assert not checker.knows(1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    folder.add([1])
    asyncio.run(checker.renew_keys(access))
    assert checker.knows(1)
    path.unlink()
    asyncio.run(checker.renew_keys(access))
    assert len(caplog.records) == 2


def test_a_registry_that_vanishes_where_nothing_is_signed_stays_in_force_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checker = _checker({0: "a key"})
    asyncio.run(checker.renew_keys(Access(folder=tmp_path)))
    assert checker.knows(0)
    assert not checker.knows(1)  # which it would without keys
    assert "registry" in caplog.text


def test_a_run_that_never_had_a_registry_is_not_warned_of_it(caplog: pytest.LogCaptureFixture) -> None:
    checker = _checker(None)
    asyncio.run(checker.renew_keys(Access()))
    assert checker.knows(1)
    assert not caplog.records


def test_the_server_takes_only_what_the_clients_key_signed(tmp_path: Path) -> None:
    async def check(folder: Path) -> None:
        owner, number = Access.of(None, folder / "server"), Access.of(None, folder / "clients" / "0")
        async with serving(tmp_path, owner) as server, taking_part(tmp_path, number, 0) as client:
            await update(client)
            start = client.begin()
            upload = client.finish(start, client._train).upload
            async with session(number, "0") as broker:
                await broker.store(client.names.upload(0), upload)
                await until(lambda: server.ledger.server.rejected["signature"] == 1)
            client.outbox.add(start.sequence, upload)
            await until(lambda: server.ledger.traffic.uploads == 2)
            BrokerFolder(folder).revoke(0)  # without telling the broker: the server's own registry suffices
            await until(lambda: not server.intake.checker.knows(0))
            await update(client)
            assert client.outbox.counts["unknown-client"] == 1

    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m").path
    with LocalBroker(folder, port=port):
        asyncio.run(check(folder))


def test_a_number_that_was_used_up_serves_again_after_the_client_got_a_new_key(tmp_path: Path) -> None:
    """Whoever had the key for a moment sent number 2³²−1: nothing is higher. A restart and a replay know of it, too."""

    async def check(keys: Path) -> None:
        owner = Access.of(None, keys / "server")
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, owner))
            async with taking_part(tmp_path, Access.of(None, keys / "clients" / "0"), 0) as client:
                await update(client)
                old = client.outbox._signer.headers(
                    signed_name(client.names.upload(0), server.ledger.run_id), frame := _upload(client, 9)
                )
                client.outbox.add(2**32 - 1, _upload(client, 2**32 - 1))
                await until(lambda: server.ledger.traffic.uploads == 2)
                await update(client)
                assert client.outbox.counts["duplicate"] == 1
            BrokerFolder(keys).add([0])
            assert BrokerFolder(keys).reload()
            await until(lambda: server.intake.checker._keys == owner.registry())
            again = await stack.enter_async_context(taking_part(tmp_path, Access.of(None, keys / "clients" / "0"), 0))
            for _ in range(3):
                await update(again)
            assert again.outbox.counts == {"accepted": 3}
            async with session(owner, "server") as broker:
                await broker.store(again.names.upload(0), frame, old)
                await until(lambda: server.ledger.server.rejected["signature"] == 1)
            held, windows = server.ledger.server.model.copy(), dict(server.ledger.server.seen.windows)
        config = Config.from_dict(CONFIG)
        task = config.task.make()
        algorithm = config.algorithm.compose(task.layout)
        initial = task.initial_model(Stream.named(config.seed, "initial-model"))
        for checkpoint in (True, False):  # the second time from the journal alone
            if not checkpoint:
                for path in (tmp_path / "state").glob("checkpoint-*"):
                    path.unlink()
            with Ledger.open(tmp_path / "state", lambda: initial, algorithm, config.seed, size=initial.size) as ledger:
                assert ledger.server.model.tobytes() == held.tobytes()
                assert ledger.server.seen.windows == windows
                assert ledger.has_new_key(0, 1)
        assert replay(tmp_path / "state", initial, algorithm, config.seed).model.tobytes() == held.tobytes()

    port = free_port()
    keys = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m").path
    with LocalBroker(keys, port=port):
        asyncio.run(check(keys))
