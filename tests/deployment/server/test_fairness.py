"""A client has no more than its share of the recent updates; and nobody waits for clients that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from qafel.config import Config
from qafel.deployment.keys import Access
from qafel.deployment.server import DefenceSettings, ServerSettings, fairness
from qafel.deployment.server.fairness import FairShare, Standing
from qafel.errors import ConfigError, OverShare
from tests.deployment.live import CONFIG, serving, taking_part, update


class Fleet:
    """Clients that send at their own rates, in virtual time."""

    def __init__(self, rates: dict[int, float], max_share: float | None = 2.0) -> None:
        self.shares, self.rates, self.now, self.max_share = FairShare(max_share), rates, 0.0, max_share
        self.random = random.Random(1)
        self.saved: list[Standing] = []
        self.since: list[int] = []

    def save(self) -> None:
        """What a checkpoint holds; the journal goes on after it."""
        self.saved, self.since = self.shares.standings(self.now), []

    def restart(self) -> None:
        """A new process, whose clock begins anew, with what the checkpoint and the journal say."""
        self.shares, self.now = FairShare(self.max_share), self.random.uniform(0, 1e6)
        self.shares.restore(self.saved, self.since, self.now)

    def send(self, client: int) -> bool:
        """Whether an update of this client, sent now, is accepted."""
        try:
            self.shares.check(client, self.now)
        except OverShare:
            return False
        self.shares.count(client)
        self.since.append(client)
        return True

    def run(self, seconds: float, only: set[int] | None = None) -> Counter[int]:
        """How many updates of each client were accepted."""
        accepted: Counter[int] = Counter()
        sending = {client: rate for client, rate in self.rates.items() if only is None or client in only}
        end, total = self.now + seconds, sum(sending.values())
        while (now := self.now + self.random.expovariate(total)) < end:
            self.now = now
            (client,) = self.random.choices(list(sending), list(sending.values()))
            accepted[client] += self.send(client)
        self.now = end
        return accepted


def test_three_of_two_hundred_that_flood_have_no_more_than_their_shares() -> None:
    honest = dict.fromkeys(range(3, 200), 0.1)
    flood = dict.fromkeys(range(3), 100.0)
    for max_share, most in ((None, 0.9), (2.0, 6 / 200), (1.0, 3 / 200)):
        fleet = Fleet({**honest, **flood}, max_share)
        fleet.run(60)
        accepted = fleet.run(120)
        share = sum(accepted[client] for client in range(3)) / accepted.total()
        assert share > 0.9 if max_share is None else share < 1.2 * most, (max_share, share)
        assert sum(accepted[client] for client in honest) > 0.9 * 197 * 0.1 * 120


def test_a_share_cannot_be_saved_up_for_a_burst() -> None:
    fleet = Fleet(dict.fromkeys(range(1, 100), 1.0) | {0: 0.0001})
    fleet.run(300)
    fleet.rates[0] = 1000.0
    assert fleet.run(1)[0] <= 8 + 4


def test_clients_that_are_alike_are_never_refused() -> None:
    fleet = Fleet(dict.fromkeys(range(50), 2.0))
    assert fleet.run(100).total() > 0.999 * 50 * 2.0 * 100 * 0.98


@pytest.mark.parametrize("clients", [1, 2])
def test_a_small_fleet_is_never_limited_however_unequal(clients: int) -> None:
    rates = {client: 1000.0 if client == 0 else 0.01 for client in range(clients)}
    assert Fleet(rates).run(30)[0] > 29_000


def test_a_lone_fast_client_goes_on_when_the_others_fall_silent() -> None:
    fleet = Fleet(dict.fromkeys(range(100), 1.0) | {0: 50.0})
    limited = fleet.run(60)[0] / 60
    assert limited < 0.05 * 150
    fleet.run(20, only={0})  # the others were usually heard of every second
    assert fleet.run(10, only={0})[0] > 0.9 * 50 * 10


def test_clients_that_were_heard_of_once_hold_up_nobody() -> None:
    fleet = Fleet(dict.fromkeys(range(20), 1.0))
    for client in range(20):
        fleet.send(client)
    fleet.run(6, only={0})
    assert fleet.run(60, only={0})[0] > 40


def test_no_client_is_kept_below_an_equal_share() -> None:
    """However slow the others are, and however many: one in n is always taken."""
    fleet = Fleet(dict.fromkeys(range(30), 0.2) | {0: 100.0}, max_share=1.0)
    fleet.run(120)
    accepted = fleet.run(300)
    assert accepted[0] / accepted.total() > 0.9 / 30


@pytest.mark.parametrize("others", [0, 12])
def test_no_client_is_refused_because_a_crowd_joins(others: int) -> None:
    """Whether it has just sent all that it may at once, or rested meanwhile: what it has on its way was sent before."""
    fleet = Fleet({})
    for client in (1, 2):
        assert fleet.send(client)
    assert all(fleet.send(0) for _ in range(8))
    assert all(fleet.send(1 + number % 2) for number in range(others))
    assert all(fleet.send(client) for client in range(3, 103 if others else 33))
    assert all(fleet.send(0) for _ in range(8))


def test_a_client_that_floods_has_little_of_what_comes_while_a_crowd_joins() -> None:
    fleet, flood = Fleet({}), 0
    for client in range(1, 1001):
        fleet.now += 0.01
        assert fleet.send(client)
        flood += sum(fleet.send(0) for _ in range(10))
    assert flood < 0.1 * 1000


@pytest.mark.parametrize("checkpoint_every_s", [3.0, 1e9])
def test_a_server_that_is_killed_again_and_again_gives_nobody_a_new_share(checkpoint_every_s: float) -> None:
    fleet = Fleet(dict.fromkeys(range(3, 200), 0.1) | dict.fromkeys(range(3), 100.0))
    fleet.run(60)
    fleet.save()
    accepted: Counter[int] = Counter()
    for second in range(0, 120, 2):
        accepted += fleet.run(2)
        if second % checkpoint_every_s < 2:
            fleet.save()
        fleet.restart()
    share = sum(accepted[client] for client in range(3)) / accepted.total()
    assert share < 1.2 * 6 / 200, share
    assert sum(accepted[client] for client in range(3, 200)) > 0.9 * 197 * 0.1 * 120


def test_a_restart_limits_nobody_in_a_small_fleet_and_keeps_nobody_waiting_for_those_who_left() -> None:
    small = Fleet({0: 1000.0, 1: 0.01})
    small.run(30)
    small.restart()
    assert small.run(30)[0] > 29_000
    left = Fleet(dict.fromkeys(range(20), 1.0) | {0: 50.0})
    left.run(60)
    left.run(60, only={0})
    left.save()
    left.restart()
    assert left.run(10, only={0})[0] > 0.9 * 50 * 10


def test_a_share_below_an_equal_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, an equal one; got 0.5"):
        DefenceSettings(max_share=0.5)


@pytest.mark.parametrize("max_share", [2.0, None])
def test_a_client_that_floods_a_live_server_is_told_and_the_others_fill_the_buffer(
    tmp_path: Path, access: Access, max_share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "_LEAST_S", 600.0)  # this machine may be slow
    config = Config.from_dict({**CONFIG, "task": {"name": "mushrooms", "clients": 12}})
    settings = ServerSettings(heartbeat_s=0.2, defence=DefenceSettings(max_share=max_share))

    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, access, config, settings))
            fleet = [await stack.enter_async_context(taking_part(tmp_path, access, number)) for number in range(12)]
            for client in fleet:
                await update(client)
            flooder = fleet[0]
            for _ in range(40):
                await update(flooder)
            counts = flooder.outbox.counts
            if max_share is None:
                assert counts == {"accepted": 41}
                return
            assert (counts["accepted"], counts["share"]) == (10, 31), "8 at once, and a sixth of what comes"
            assert server.ledger.server.rejected["share"] == 31
            assert flooder._pause_until > 0, "it rests"
            for client in fleet[1:]:
                await update(client)
                assert client.outbox.counts == {"accepted": 2}

    asyncio.run(check())


@pytest.mark.parametrize("kept", ["checkpoint", "journal"])
def test_a_client_that_floods_gets_no_new_share_from_a_restarted_server(
    tmp_path: Path, access: Access, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "_LEAST_S", 600.0)  # this machine may be slow
    config = Config.from_dict({**CONFIG, "task": {"name": "mushrooms", "clients": 12}})

    async def check() -> None:
        async with serving(tmp_path, access, config):
            for number in (*range(1, 12), 0):
                async with taking_part(tmp_path, access, number) as client:
                    for _ in range(1 if number else 20):
                        await update(client)
                    assert client.outbox.counts["accepted"] == (1 if number else 9)
        if kept == "journal":
            for checkpoint in (tmp_path / "state").glob("checkpoint-*"):
                checkpoint.unlink()
        async with serving(tmp_path, access, config), taking_part(tmp_path, access, 0) as flooder:
            for _ in range(20):
                await update(flooder)
            assert flooder.outbox.counts["accepted"] <= 1

    asyncio.run(check())


@pytest.mark.parametrize(("clients", "buffer"), [(2, 1), (2, 3), (5, 1)])
def test_a_fast_client_of_a_small_fleet_makes_steps_while_the_others_rest(
    tmp_path: Path, access: Access, clients: int, buffer: int
) -> None:
    algorithm = {**CONFIG["algorithm"], "buffer_size": buffer}
    config = Config.from_dict({**CONFIG, "task": {"name": "mushrooms", "clients": clients}, "algorithm": algorithm})

    async def check() -> None:
        async with serving(tmp_path, access, config) as server:
            async with taking_part(tmp_path, access, 1) as other:
                await update(other)
            async with taking_part(tmp_path, access, 0) as client:
                for _ in range(100):
                    await update(client)
                assert client.outbox.counts == {"accepted": 100}
                assert server.ledger.server.version == 101 // buffer

    asyncio.run(check())
