"""Uploads in parts are acknowledged once they are of no more use, and not before; status tells how a run goes."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import urllib.request
from pathlib import Path
from typing import Any, cast

import pytest
from nats.aio.msg import Msg
from typer.testing import CliRunner

from qafel.deployment.broker import free_port
from qafel.deployment.connection import session
from qafel.deployment.keys import Access, Verifier, new_seed, public_key, signed_name
from qafel.deployment.messages import Agreement, Part, PartAssembler, Receipt
from qafel.deployment.names import EPOCH, PART, Names
from qafel.deployment.server import ServerSettings
from qafel.deployment.status import read_status
from qafel.errors import BadSignature, DataError, MalformedPayload, OversizedMessage
from qafel.runs.live import LiveState
from qafel.text import printable
from tests.deployment.live import serving, taking_part, until, update

_stored = itertools.count(1)


def stored_message(header: str, data: bytes, stored: int | None = None) -> Msg:
    stored = next(_stored) if stored is None else stored
    reply = f"$JS.ACK.qafel-live-upload.server.1.{stored}.{next(_stored)}.1700000000000000000.0"
    return Msg(cast(Any, None), "qafel.live.upload.0", reply, data, {PART: header})


def _add(assembly: PartAssembler, message: Msg, spent: list[Msg], now: float = 0.0, client: int = 0) -> bytes | None:
    assert message.headers is not None
    part = Part.from_header(message.headers[PART])
    assembly.check(part, len(message.data))
    return assembly.add(client, part, message, now, spent)


def test_parts_that_were_sent_twice_are_acknowledged_both_times() -> None:
    assembly, spent = PartAssembler(100, 1, 1000), list[Msg]()
    cut = [stored_message(f"5/{n}/4", b"%d" % n) for n in range(3)]
    again = [stored_message(f"5/{n}/4", b"%d" % n) for n in range(4)]
    wholes = [_add(assembly, message, spent) for message in cut + again]
    assert wholes == [None] * 6 + [b"0123"]
    assert spent == cut + again
    assert assembly.held == 0


def test_a_part_that_was_only_delivered_twice_stays_with_the_broker() -> None:
    assembly, spent = PartAssembler(100, 1, 1000), list[Msg]()
    for _ in range(2):
        _add(assembly, stored_message("5/0/2", b"a", stored=1000), spent)
    assert spent == []
    assert assembly.held == 1


def test_an_upload_that_its_client_gave_up_is_acknowledged() -> None:
    assembly, spent = PartAssembler(100, 1, 1000), list[Msg]()
    given_up = [stored_message(f"5/{n}/4", b"x") for n in range(3)]
    for message in given_up:
        _add(assembly, message, spent)
    assert _add(assembly, stored_message("6/0/2", b"y"), spent) is None
    assert spent == given_up


def test_an_upload_of_which_nothing_new_came_for_long_is_acknowledged() -> None:
    """Neither a part that is delivered again nor another client's keeps it."""
    assembly, spent, patience_s = PartAssembler(100, 1, 1000), list[Msg](), PartAssembler.PATIENCE_S
    first = stored_message("5/0/4", b"x")
    _add(assembly, first, spent, 0.0)
    _add(assembly, first, spent, patience_s)
    assert spent == []
    _add(assembly, stored_message("9/0/4", b"y"), spent, patience_s + 1, client=1)
    assert spent == [first]
    late = stored_message("5/1/4", b"x")
    _add(assembly, late, spent, patience_s + 2)
    assert spent == [first, late], "its beginning is gone"
    again = [stored_message(f"5/{n}/4", b"%d" % n) for n in range(4)]
    assert [_add(assembly, message, spent, patience_s + 3) for message in again][-1] == b"0123"


@pytest.mark.parametrize(
    ("part", "size"),
    [(Part(5, 0, 1), 1000), (Part(5, 0, 2), 999), (Part(5, 0, 2), 1), (Part(5, 1, 2), 0), (Part(5, 2, 2), 10),
     (Part(5, 0, 128), 1), (Part(5, 0, 5), 1000), (Part(5, 1, 2), 1001), (Part(5, 0, 999_999), 1000)],
)  # fmt: skip
def test_a_part_of_an_upload_that_no_client_sends_is_refused_at_once(part: Part, size: int) -> None:
    with pytest.raises(MalformedPayload, match="impossible"):
        PartAssembler(3500, 1000, 100_000).check(part, size)


def test_parts_that_are_too_large_together_are_refused() -> None:
    assembly = PartAssembler(3500, 1000, 100_000)
    assembly.check(Part(5, 3, 4), 500)
    with pytest.raises(OversizedMessage):
        assembly.check(Part(5, 3, 4), 501)


def test_where_uploads_fit_in_a_message_there_are_no_parts() -> None:
    with pytest.raises(MalformedPayload, match="impossible"):
        PartAssembler(1000, 1000, 100_000).check(Part(5, 0, 2), 1000)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_clients_send_few_parts_wait_and_every_message_is_acknowledged(seed: int) -> None:
    """Parts of some clients at random, in any order, repeated, delivered again: each is held or spent, never both."""
    chooser, size = random.Random(seed), 10
    assembly = PartAssembler(4 * size, size, 30 * size)
    held, now, spent, given = {}, 0.0, list[Msg](), 0
    for _ in range(3000):
        now += chooser.choice([0.0, 0.1, 5.0, 40.0])
        if held and chooser.random() < 0.2:
            client, message = chooser.choice(list(held.values()))
        else:
            client, parts = chooser.randrange(50), chooser.randrange(2, 5)
            number = chooser.randrange(parts)
            data = bytes(size if number < parts - 1 else chooser.randrange(1, size + 1))
            message = stored_message(f"{chooser.randrange(3)}/{number}/{parts}", data)
            held[message.reply], given = (client, message), given + 1
        spent.clear()
        _add(assembly, message, spent, now, client)
        for done in spent:
            del held[done.reply]
        assert len(held) == assembly.held <= assembly.most_held == 30
    assert given > 2000


def test_an_upload_that_goes_on_is_not_pushed_out_by_many_that_wait() -> None:
    """Others would have to send between two of its parts as much as all may hold, but for itself: 40 parts less 8."""
    assembly, spent, others, whole = PartAssembler(80, 10, 400), list[Msg](), itertools.count(1), None
    for number in range(8):
        for _ in range(32):
            _add(assembly, stored_message("7/0/8", bytes(10)), spent, 10.0 * number, next(others))
        whole = _add(assembly, stored_message(f"5/{number}/8", bytes(10)), spent, 10.0 * number)
    assert whole == bytes(80)
    assert assembly.held <= assembly.most_held == 40


def test_status_and_metrics_tell_how_a_run_fares(tmp_path: Path, access: Access) -> None:
    from qafel.cli.status import status

    async def check() -> None:
        port = free_port()
        settings = ServerSettings(heartbeat_s=0.1, metrics_port=port)
        async with serving(tmp_path, access, settings=settings), taking_part(tmp_path, access, 2) as client:
            for _ in range(4):
                await update(client)
            async with session(access, "test") as broker:
                await broker.send("$KV.qafel.<b>not-a-run</b>.state", b"shown to nobody")
            while (run := (await read_status(access))[0]).state.uploads < 4:  # which a heartbeat tells
                await asyncio.sleep(0.05)
            assert (run.run, run.word, run.state.version, run.state.uploads) == ("live", "running", 1, 4)
            assert run.state.training == {"2": 0}
            assert await read_status(access, "nothing") == []
            text = await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics")
            assert 'qafel_accepted_updates_total{run="live"} 4.0' in text
            assert 'qafel_version{run="live"} 1.0' in text

    asyncio.run(check())
    (stopped,) = asyncio.run(read_status(access))
    assert stopped.word == "stopped"
    import typer

    app = typer.Typer()
    app.command()(status)
    shown = CliRunner().invoke(app, ["--broker", access.servers[0], "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)[0]["run"] == "live"
    assert CliRunner().invoke(app, ["--broker", access.servers[0]]).exit_code == 0
    assert CliRunner().invoke(app, ["nothing", "--broker", access.servers[0]]).exit_code == 1


def test_status_of_a_broker_without_runs_says_so(access: Access) -> None:
    assert asyncio.run(read_status(access)) == []


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return str(answer.read().decode())


def test_a_runs_name_must_fit_the_broker() -> None:
    from qafel.errors import ConfigError

    with pytest.raises(ConfigError, match="letters, digits"):
        Names("a.b")


@pytest.mark.parametrize("field", ["version", "uploads", "clients", "digest"])
@pytest.mark.parametrize("value", [-1, 10**400])
def test_a_number_that_nobody_can_show_is_refused(field: str, value: int) -> None:
    state = json.loads(LiveState(status="running", at=0.0, version=0).to_bytes())
    with pytest.raises(DataError, match=field):
        LiveState.from_bytes(json.dumps({**state, field: value}).encode())


def test_an_agreement_of_brackets_is_refused_in_a_sentence() -> None:
    assert Agreement.run_id_of(b"[" * 99_999) == ""
    with pytest.raises(DataError, match="does not hold a run's configuration"):
        Agreement.from_bytes(b"[" * 99_999)


ODD = "fine\n2026-01-01 forged line\x1b[2J\x9b1m\u202e\r"


def test_text_from_outside_is_escaped_where_it_comes_in() -> None:
    """A line of a log, or of a terminal, is ours, whatever a peer writes."""
    receipt = Receipt(rejected=[(1, ODD, ODD)])
    state = LiveState(
        status=ODD,
        at=0.0,
        version=0,
        problem=ODD,
        metric_name=ODD,
        rejected={ODD: 1},
        training={ODD: 1},
        silent={ODD: 1.0},
    )
    (_, reason, text), read = Receipt.from_bytes(receipt.to_bytes()).rejected[0], LiveState.from_bytes(state.to_bytes())
    shown = [reason, text, read.status, read.problem, read.metric_name]
    shown += [*read.rejected, *read.training, *read.silent]
    for refused in (Receipt.from_bytes, LiveState.from_bytes, Agreement.from_bytes):
        with pytest.raises(DataError) as error:
            refused(
                json.dumps({"format": 2, "run_id": "x", "layout": [], "config": f"name = 'x{ODD}", ODD: ODD}).encode()
            )
        shown.append(str(error.value))
    with pytest.raises(BadSignature) as unsigned:
        Verifier(public_key(new_seed())).check(signed_name(ODD.replace("\n", "")), b"", None)
    shown.append(str(unsigned.value))
    assert all(each.isprintable() for each in shown), shown
    assert "\\x1b[2J" in text
    assert printable("größer als ε, 3 × 4") == "größer als ε, 3 × 4"


def test_a_live_client_logs_a_rejection_on_one_line(
    tmp_path: Path, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with serving(tmp_path, access), taking_part(tmp_path, access, 0) as client:
            await until(lambda: client.follower.state is not None)
            client.outbox.add(5, bytes(64))
            epoch = {EPOCH: str(client.follower.state.epoch)}  # type: ignore[union-attr]
            async with session(access, "test") as broker:
                await broker.send(client.names.receipt(0), Receipt(rejected=[(5, ODD, ODD)]).to_bytes(), headers=epoch)
                await until(lambda: "5 was rejected" in caplog.text)

    asyncio.run(check())
    assert all(record.getMessage().isprintable() for record in caplog.records)
