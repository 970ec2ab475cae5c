"""What happens to a fleet. Each fault is a function that leaves everything running again, as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from tests.deployment.clock import CANNOT
from tests.deployment.faults.fleet import CLIENTS, RUN, STRANGER, Fleet
from tests.deployment.processes import Command, wait_for
from tests.deployment.raw import BAD_HEADERS, random_headers, raw_line

Fault: TypeAlias = Callable[[Fleet], None]
_MINUTE_S = 60
_DAY_S = 24 * 60 * _MINUTE_S
_ENDS_S = 300.0


def kill_server(fleet: Fleet) -> None:
    fleet.server.kill()
    fleet.server = fleet.start_server()


def kill_client(fleet: Fleet) -> None:
    number = fleet.any_client()
    fleet.clients[number].kill()
    fleet.start_client(number)


def kill_broker(fleet: Fleet) -> None:
    fleet.broker.stop(signal.SIGKILL)
    fleet.broker.start()


def wipe_broker(fleet: Fleet) -> None:
    fleet.broker.stop(signal.SIGKILL)
    shutil.rmtree(fleet.store)
    fleet.broker.start()


def roll_back_broker(fleet: Fleet) -> None:
    """The broker's store is replaced by a copy of a while ago; sometimes by one of long ago."""
    if not fleet.copies or fleet.random.random() < 0.5:
        fleet.broker.stop(fleet.random.choice((signal.SIGTERM, signal.SIGKILL)))
        name = f"store-{fleet.random.getrandbits(40):x}"
        fleet.copies.append(Path(shutil.copytree(fleet.store, fleet.folder / name)))
        fleet.broker.start()
        fleet.goes_on()
    fleet.broker.stop(signal.SIGKILL)
    shutil.rmtree(fleet.store)
    shutil.copytree(fleet.random.choice(fleet.copies), fleet.store)
    fleet.broker.start()


def damage_blocks(fleet: Fleet) -> None:
    """Of messages."""
    _damage_store(fleet, "msgs/*.blk")


def damage_indexes(fleet: Fleet) -> None:
    """Which nats-server trusts after a clean end."""
    _damage_store(fleet, "msgs/*.db")


def damage_consumers(fleet: Fleet) -> None:
    """What each is, and how far it got."""
    _damage_store(fleet, "obs/*/*")


def damage_meta(fleet: Fleet) -> None:
    """What each stream is."""
    _damage_store(fleet, "meta.*")


def _damage_store(fleet: Fleet, pattern: str) -> None:
    """One or three files of the broker's streams are cut short, or a bit of them flips, near the end or anywhere."""
    fleet.broker.stop(fleet.random.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)))
    paths = [path for path in sorted(fleet.store.glob(f"jetstream/*/streams/*/{pattern}")) if path.stat().st_size]
    for path in fleet.random.sample(paths, min(len(paths), fleet.random.choice((1, 3)))):
        data, chooser = bytearray(path.read_bytes()), fleet.random
        at = chooser.randrange(max(0, len(data) - chooser.choice((1500, len(data)))), len(data))
        if chooser.random() < 0.3:
            del data[at:]
        else:
            data[at] ^= 1 << chooser.randrange(8)
        path.write_bytes(data)
    fleet.broker.start()


def stop_server_without_broker(fleet: Fleet) -> None:
    """The broker is killed, or hangs, as the server is told to stop: it ends all the same."""
    hangs = fleet.random.random() < 0.5
    if hangs:
        os.kill(fleet.broker.pid, signal.SIGSTOP)
    else:
        fleet.broker.stop(signal.SIGKILL)
    assert fleet.server.end(_ENDS_S) in (0, -signal.SIGTERM)  # one that has not begun yet dies of the signal
    if hangs:
        os.kill(fleet.broker.pid, signal.SIGCONT)
    else:
        fleet.broker.start()
    fleet.server = fleet.start_server()


def cut_connections(fleet: Fleet) -> None:
    fleet.line.cut()


def client_leaves(fleet: Fleet) -> None:
    if len(fleet.clients) > 2:
        # One that has not begun yet dies of the signal.
        assert fleet.clients.pop(fleet.any_client()).end() in (0, -signal.SIGTERM)
    else:
        client_joins(fleet)


def client_joins(fleet: Fleet) -> None:
    absent = sorted(set(range(CLIENTS)) - set(fleet.clients))
    if absent:
        fleet.start_client(fleet.random.choice(absent))
    else:
        client_leaves(fleet)


def pause_server(fleet: Fleet) -> None:
    _pause(fleet, fleet.server.process.pid)


def pause_client(fleet: Fleet) -> None:
    _pause(fleet, fleet.clients[fleet.any_client()].process.pid)


def pause_broker(fleet: Fleet) -> None:
    _pause(fleet, fleet.broker.pid)


def _pause(fleet: Fleet, pid: int) -> None:
    """For up to half a minute: longer than anyone waits for an answer, and than the broker waits for its pings'."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(min(fleet.longest_pause_s, fleet.random.uniform(1, 45)))  # one in three as long as possible
    os.kill(pid, signal.SIGCONT)


def split_brain(fleet: Fleet) -> None:
    """A server that stands still is replaced by one in a copy of its folder, and then wakes up."""
    fleet.goes_on()
    before = fleet.server
    before.process.send_signal(signal.SIGSTOP)
    fleet.run = Path(shutil.copytree(fleet.run, fleet.folder / f"run-{fleet.random.getrandbits(40):x}"))
    fleet.server = fleet.start_server("--take-over")
    fleet.goes_on()
    before.process.send_signal(signal.SIGCONT)
    _ends(before, f"another server took over run {RUN!r}")


def second_server(fleet: Fleet) -> None:
    """In a folder of its own, or in a copy, which may be torn: its journal is older than its note of what was synced.

    On a broker that has just lost all, the first one to come would win.
    """
    fleet.goes_on()
    intruder, mine = fleet.folder / f"intruder-{fleet.random.getrandbits(40):x}", fleet.run
    if fleet.random.random() < 0.5:
        shutil.copytree(fleet.run, intruder)
    fleet.run = intruder
    second = fleet.start_server()
    fleet.run = mine
    refusals = ("another server serves run", "on the broker is a different run", "without this folder")
    _ends(second, *refusals, "were synced")
    shutil.rmtree(intruder)


def fill_server_disk(fleet: Fleet) -> None:
    """Files cannot grow any more, in the middle of a record: the server ends, and goes on when there is room."""
    newest = sorted((fleet.run / "state").glob("journal-*.log"))[-1:]
    full = min(5000, sum(path.stat().st_size for path in newest) + fleet.random.randrange(1, 400))
    _limit_files(fleet.server.process.pid, full)
    _ends(fleet.server, "cannot write")
    fleet.server = fleet.start_server()


def fill_client_disk(fleet: Fleet) -> None:
    number = fleet.any_client()
    client = fleet.clients[number]
    _limit_files(client.process.pid, 0)
    _ends(client, "cannot write")
    fleet.start_client(number)


def fill_broker_disk(fleet: Fleet) -> None:
    """nats-server dies of it, sooner or later."""
    _limit_files(fleet.broker.pid, fleet.random.randrange(1000, 100_000))
    time.sleep(fleet.random.uniform(0.5, 4))
    kill_broker(fleet)


def _limit_files(pid: int, most_bytes: int) -> None:
    """A process cannot write beyond this in any file: its writes come back short, and then fail."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))


def flip_journal(fleet: Fleet) -> None:
    """A bit of one of the newest files: the server refuses and says where, until the file is restored; or it does not
    need what is damaged.
    """
    fleet.server.kill()
    files = [path for path in sorted((fleet.run / "state").glob("journal-*.log")) if path.stat().st_size > 50]
    path = fleet.random.choice(files[-3:])
    whole, damaged = _flip(path, fleet.random)
    server, before = fleet.start_server(), fleet.version()
    wait_for(lambda: not server.alive or fleet.version() > before, "the server to refuse or go on", _ENDS_S)
    if server.alive:
        server.kill()
    else:
        _ends(server, f"{path} is damaged at byte", f"{path} has format version")
        assert path.read_bytes() == damaged, "it was to be left as it is"
    if (left := path.read_bytes()) == damaged:
        path.write_bytes(whole)
    else:  # the flip was in the last record, which was not synced: nobody was told of it
        assert damaged.startswith(left)
        assert server.said(f"{path}: cut off {len(damaged) - len(left)} bytes from byte {len(left)} on")
    fleet.server = fleet.start_server()


def flip_checkpoint(fleet: Fleet) -> None:
    """A bit of the newest checkpoint, or of both: the one before is used, or the whole journal, and that is said."""
    fleet.server.kill()
    found = sorted((fleet.run / "state").glob("checkpoint-*.qafel"))[-fleet.random.choice((1, 1, 2)) :]
    for path in found:
        _flip(path, fleet.random)
    fleet.server = fleet.start_server()
    wait_for(lambda: all(path.with_suffix(".unused").exists() for path in found), "another start", _ENDS_S)
    for path in found:
        assert fleet.server.said(f"Cannot use {path}")
        path.with_suffix(".unused").unlink()


def flip_note(fleet: Fleet) -> None:
    """A bit of one of the server's small files: it does without, or says what to do."""
    fleet.server.kill()
    path = fleet.run / "state" / fleet.random.choice(("run-id", "epoch", "synced"))
    whole, _ = _flip(path, fleet.random)
    fleet.server = fleet.start_server()
    if path.name != "run-id":
        wait_for(lambda: fleet.server.said(f"{path} is damaged"), "a word of it", _ENDS_S)
        return
    _ends(fleet.server, f"{path} is damaged: restore it from a copy, or delete it and start with --take-over")
    path.unlink()
    if fleet.random.random() < 0.5:
        path.write_bytes(whole)
        fleet.server = fleet.start_server()
    else:  # another run in the clients' eyes, and older copies of the broker's store hold the one before
        fleet.copies.clear()
        fleet.server = fleet.start_server("--take-over")
    fleet.goes_on()


def flip_client_file(fleet: Fleet) -> None:
    """A client does without a damaged x̂; if it cannot know which numbers it used, it says that its folder must go."""
    number = fleet.any_client()
    fleet.clients[number].kill()
    files = [path for path in sorted(fleet.state_of(number).iterdir()) if path.stat().st_size]
    if files:
        _flip(fleet.random.choice(files), fleet.random)
    output = fleet.clients[number].output
    before = output.stat().st_size
    client = fleet.start_client(number)
    wait_for(lambda: not client.alive or output.stat().st_size > before, "the client to refuse or go on", _ENDS_S)
    if not client.alive:
        _ends(client, "is damaged", "delete the client's folder")
        shutil.rmtree(fleet.state_of(number))
        fleet.start_client(number)


def _flip(path: Path, chooser: random.Random) -> tuple[bytes, bytes]:
    """The file's bytes before and after."""
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[chooser.randrange(len(whole))] ^= 1 << chooser.randrange(8)
    path.write_bytes(damaged)
    return whole, bytes(damaged)


def jump_clock(fleet: Fleet) -> None:
    """The server's or a client's clock is wrong by seconds or years for a while, sometimes when a process starts or
    connects. One that cannot believe the broker's certificate then says so; it is started when the clock is right.
    """
    name = fleet.random.choice(("server", str(fleet.any_client())))
    clock = fleet.clock(name)
    clock.be_off(fleet.random.choice((-50 * 365, -1, 1, 30, 20 * 365)) * _DAY_S + fleet.random.randrange(-30, 30))
    match fleet.random.randrange(3):
        case 0:
            cut_connections(fleet)
        case 1 if name == "server":
            kill_server(fleet)
        case 1:
            fleet.clients[int(name)].kill()
            fleet.start_client(int(name))
        case _:
            pass
    time.sleep(fleet.random.uniform(0.5, 5))
    clock.be_off(0)
    time.sleep(0.5)
    if name == "server" and not fleet.server.alive:
        _ends(fleet.server, "set the clock")
        fleet.server = fleet.start_server()
    elif name != "server" and not (client := fleet.clients[int(name)]).alive:
        _ends(client, "set the clock")
        fleet.start_client(int(name))


def malformed_headers(fleet: Fleet) -> None:
    """A registered client sends header blocks that are not what the protocol says."""

    async def send() -> None:
        async with raw_line(fleet.access(f"clients/{STRANGER}")) as line:
            for block in (*BAD_HEADERS, *(random_headers(fleet.random) for _ in range(30))):
                line.publish(f"qafel.{RUN}.upload.{STRANGER}", block)
            await line.flush()

    asyncio.run(send())
    fleet.goes_on()


def _ends(command: Command, *sentences: str) -> None:
    """It ends with a failure, and has said one of these."""
    wait_for(lambda: not command.alive, f"{command.output} to end", _ENDS_S)
    assert command.process.returncode
    assert any(map(command.said, sentences)), f"{sentences} are not in: {command.errors[-1000:]}"


KINDS: dict[Fault, int] = {
    kill_server: 4,
    kill_client: 3,
    kill_broker: 3,
    wipe_broker: 1,
    roll_back_broker: 2,
    damage_blocks: 3,
    damage_indexes: 1,
    damage_consumers: 1,
    damage_meta: 1,
    stop_server_without_broker: 1,
    cut_connections: 4,
    client_leaves: 2,
    client_joins: 2,
    pause_server: 1,
    pause_client: 1,
    pause_broker: 1,
    split_brain: 1,
    second_server: 2,
    fill_server_disk: 2,
    fill_client_disk: 1,
    fill_broker_disk: 1,
    flip_journal: 2,
    flip_checkpoint: 2,
    flip_note: 1,
    flip_client_file: 1,
    jump_clock: 3,
    malformed_headers: 3,
}
"""Every kind of fault, and how often it comes."""
if CANNOT:
    del KINDS[jump_clock]


def run_faults(
    folder: Path,
    faults: list[Fault],
    *,
    seed: int,
    clients: int = 4,
    most_s: float = float("inf"),
    secured: bool = True,
    longest_pause_s: float = 30.0,
    catch_up: str = "exact",
    tell: Callable[[int, str], None] = lambda *_: None,
) -> dict[str, Any]:
    """Start a fleet, let these faults happen at random moments, none after `most_s`, and prove the outcome.

    `tell` is called with each fault's number and name as it begins.
    """
    began = time.monotonic()
    fleet = Fleet(folder, clients, seed, secured=secured, longest_pause_s=longest_pause_s, catch_up=catch_up)
    happened: Counter[str] = Counter()
    try:
        fleet.reach(2)
        for fault in faults:
            if time.monotonic() - began > most_s:
                break
            happened[fault.__name__] += 1
            tell(happened.total(), fault.__name__)
            time.sleep(fleet.random.uniform(0.0, 0.6))
            fault(fleet)
            if fleet.random.random() < 0.5:  # else the next fault comes into the recovery
                fleet.goes_on()
        return {"faults": happened.total(), **happened, **fleet.end()}
    finally:
        fleet.close()
