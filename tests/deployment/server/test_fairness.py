"""A client has no more than its share of the recent updates; and nobody waits for clients that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qafel.config import Config
from qafel.deployment.keys import Access
from qafel.deployment.server import DefenceSettings, ServerSettings, defence
from qafel.deployment.server.defence import FairShare
from qafel.deployment.server.ledger import ClientShare
from qafel.errors import ConfigError, OverShare
from tests.deployment.live import CONFIG, serving, taking_part, update


class Fleet:
    """Clients that send at their own rates, in virtual time."""

    def __init__(self, rates: dict[int, float], max_share: float | None = 2.0) -> None:
        self.shares, self.rates, self.now, self.max_share = FairShare(max_share), rates, 0.0, max_share
        self.random = random.Random(1)
        self.saved: list[ClientShare] = []
        self.since: list[int] = []

    def save(self) -> None:
        """What a checkpoint holds; the journal goes on after it."""
        self.saved, self.since = self.shares.client_shares(self.now), []

    def restart(self, now: float | None = None) -> None:
        """A new process with what the checkpoint and the journal hold; its clock shows any time."""
        self.shares, self.now = FairShare(self.max_share), self.random.uniform(0, 1e6) if now is None else now
        self.shares.restore(self.saved, self.since, self.now)

    def refuses(self, client: int) -> bool:
        try:
            self.shares.check(client, self.now)
        except OverShare:
            return True
        return False

    def count(self, client: int) -> None:
        self.shares.count(client, self.now)
        self.since.append(client)

    def send(self, client: int) -> bool:
        """Whether an update of this client, sent now, is accepted."""
        if self.refuses(client):
            return False
        self.count(client)
        return True

    def run(self, seconds: float, only: set[int] | None = None) -> Counter[int]:
        """How many updates of each client were accepted."""
        accepted: Counter[int] = Counter()
        sending = {client: rate for client, rate in self.rates.items() if only is None or client in only}
        end, total, clients = self.now + seconds, sum(sending.values()), list(sending)
        below = list(itertools.accumulate(sending.values()))
        while (now := self.now + self.random.expovariate(total)) < end:
            self.now = now
            (client,) = self.random.choices(clients, cum_weights=below)
            accepted[client] += self.send(client)
        self.now = end
        return accepted


@pytest.mark.parametrize(
    ("clients", "rate", "most"),
    [
        (50, 1.0, 0.122),
        (50, 1 / 120, 0.13),
        pytest.param(200, 0.1, 0.032, marks=pytest.mark.slow),
        pytest.param(200, 1 / 300, 0.036, marks=pytest.mark.slow),
    ],
)
def test_three_clients_that_flood_have_at_most_twice_their_equal_shares(clients: int, rate: float, most: float) -> None:
    fleet = Fleet(dict.fromkeys(range(3, clients), rate) | dict.fromkeys(range(3), 300 * rate))
    fleet.run(20 / rate)
    accepted = fleet.run(40 / rate)
    assert sum(accepted[client] for client in range(3)) / accepted.total() <= most
    assert sum(accepted[client] for client in range(3, clients)) > 0.95 * (clients - 3) * 40


STALLS = {
    "fast ones are killed": (dict.fromkeys(range(8), 19.0), range(3), 2.0, 30),
    "slow ones stop": (dict.fromkeys(range(3), 20.0) | dict.fromkeys(range(3, 8), 0.5), range(3), 2.0, 60),
    "rare ones leave": (dict.fromkeys(range(5), 1 / 60) | dict.fromkeys(range(5, 50), 1 / 300), range(5), 2.0, 7200),
}


@pytest.mark.parametrize(("rates", "stay", "max_share", "seconds"), STALLS.values(), ids=STALLS)
@pytest.mark.parametrize("restart", [False, True])
def test_clients_that_stay_keep_their_rate_when_the_others_leave(
    rates: dict[int, float], stay: range, max_share: float, seconds: float, restart: bool
) -> None:
    fleet = Fleet(rates, max_share)
    fleet.run(seconds)
    fleet.save()
    if restart:
        fleet.restart()
    fleet.run(max(20.0, 600.0 if seconds > 600 else 0.0), only=set(stay))
    accepted = fleet.run(seconds, only=set(stay))
    sent = sum(rates[client] for client in stay) * seconds
    assert accepted.total() > 0.8 * sent, accepted.total() / sent


@pytest.mark.parametrize("max_share", [1.0, 2.0])
def test_a_client_whose_uploads_are_rejected_holds_up_nobody(max_share: float) -> None:
    """It passes the check of shares and fails a later one; perhaps it once sent a good upload."""
    fleet = Fleet(dict.fromkeys(range(6), 5.0), max_share)
    fleet.run(10)
    accepted: Counter[int] = Counter()
    for _ in range(60):
        accepted += fleet.run(1, only={0, 1, 2, 3, 4})
        with contextlib.suppress(OverShare):
            fleet.shares.check(5, fleet.now)
    assert min(accepted[client] for client in range(5)) > (0.9 if max_share > 1 else 0.4) * 5.0 * 60, accepted


class Visitor(NamedTuple):
    """A client that comes and goes."""

    interval_s: float
    floods: bool
    """It sends a hundred times as often and never rests."""
    sound: float
    """The part of its uploads that passes the checks after that of shares."""
    present_s: float
    absent_s: float


VISITORS = st.builds(
    Visitor,
    st.sampled_from([0.2, 1.0, 5.0, 30.0, 200.0]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([1.0, 1.0, 0.5, 0.0]),
    st.sampled_from([10.0, 60.0, 600.0, 1e9]),
    st.sampled_from([10.0, 60.0, 600.0, 3000.0]),
)


@settings(max_examples=30, deadline=None)
@example(  # a pause that a restart does not shorten
    [
        Visitor(200.0, False, 1.0, 10.0, 10.0),
        Visitor(0.2, False, 1.0, 10.0, 600.0),
        Visitor(0.2, False, 1.0, 600.0, 60.0),
        Visitor(1.0, False, 1.0, 10.0, 3000.0),
    ],
    1.0,
    [634.0],
    137,
)
@given(
    st.lists(VISITORS, min_size=2, max_size=16),
    st.sampled_from([1.0, 1.5, 2.0, 4.0]),
    st.lists(st.floats(0, 2000), max_size=2),
    st.integers(0, 2**32),
)
def test_nobody_is_refused_for_longer_than_the_longest_pause_of_a_client_that_was_accepted_lately(
    visitors: list[Visitor], max_share: float, restarts: list[float], seed: int
) -> None:
    """Clients join, leave, flood and send what is rejected, at any rates; the server restarts. The bound is counted
    here from accepted updates alone: the longest pause ever of a client accepted in the last ten minutes, or 5 s.
    """
    fleet, chance = Fleet({}, max_share), random.Random(seed)
    accepted: dict[int, float] = {}  # the last accepted update
    since: dict[int, float] = {}  # that, or the restart after it
    pauses: dict[int, float] = {}
    rests = dict.fromkeys(range(len(visitors)), 1.0)
    queue = [(chance.expovariate(1 / visitor.absent_s), number) for number, visitor in enumerate(visitors)]
    leaves = [begin + visitor.present_s for (begin, _), visitor in zip(queue, visitors, strict=True)]
    heapq.heapify(queue)
    crashes = sorted(restarts)
    for _ in range(4000):
        fleet.now, number = heapq.heappop(queue)
        visitor = visitors[number]
        while crashes and crashes[0] <= fleet.now:
            crashes.pop(0)
            fleet.restart(fleet.now)
            since = dict.fromkeys(since, fleet.now)
        if fleet.now > leaves[number]:
            again = fleet.now + chance.expovariate(1 / visitor.absent_s)
            leaves[number] = again + visitor.present_s
            heapq.heappush(queue, (again, number))
            continue
        wait_s = chance.expovariate((100 if visitor.floods else 1) / visitor.interval_s)
        if fleet.refuses(number):
            lately = [pauses[each] for each, then in since.items() if fleet.now - then <= 600]
            assert fleet.now - since[number] < min(600, max(5, *lately, 0))
            wait_s = wait_s if visitor.floods else max(wait_s, rests[number])
            rests[number] = min(16.0, 2 * rests[number])
        elif chance.random() < visitor.sound:
            fleet.count(number)
            pauses[number] = max(pauses.get(number, 0.0), fleet.now - accepted.get(number, fleet.now))
            accepted[number], since[number], rests[number] = fleet.now, fleet.now, 1.0
        if chance.random() < 0.005:
            fleet.save()
        heapq.heappush(queue, (fleet.now + wait_s, number))


def test_clients_that_flood_get_no_more_while_the_others_come_and_go() -> None:
    """Half of 94 clients are there at a time, for half a minute each: six of some fifty shares are 12 %."""
    fleet, chance = Fleet({}), random.Random(3)
    present, accepted = set(range(3, 50)), Counter[bool]()
    for _ in range(3000):
        fleet.rates = dict.fromkeys(present, 1.0) | dict.fromkeys(range(3), 100.0)
        for client, count in fleet.run(0.2).items():
            accepted[client < 3] += count
        for client in range(3, 97):
            if chance.random() < 0.2 / 30:
                present ^= {client}
    assert accepted[True] / accepted.total() < 0.14


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
    with pytest.raises(ConfigError, match="at least 1"):
        DefenceSettings(max_share=0.5)


@pytest.mark.parametrize("max_share", [2.0, pytest.param(None, marks=pytest.mark.slow)])
def test_a_client_that_floods_a_live_server_is_told_and_the_others_fill_the_buffer(
    tmp_path: Path, access: Access, max_share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defence, "_LEAST_S", 600.0)  # this machine may be slow
    config = Config.from_dict({**CONFIG, "task": {"name": "mushrooms", "clients": 12}})
    server_settings = ServerSettings(heartbeat_s=0.2, defence=DefenceSettings(max_share=max_share))

    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, access, config, server_settings))
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
    monkeypatch.setattr(defence, "_LEAST_S", 600.0)  # this machine may be slow
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


@pytest.mark.parametrize(("clients", "buffer"), [(2, 1), pytest.param(2, 3, marks=pytest.mark.slow), (5, 1)])
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
