"""Uploads in parts: every message is acknowledged once it is of no more use, and none before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from nats.aio.msg import Msg

from qafel.algorithm import Algorithm, Client, HiddenState, LocalTraining, wire
from qafel.deployment.messages import Part, PartAssembler, split
from qafel.deployment.names import PART
from qafel.deployment.server.evaluation import Metrics
from qafel.deployment.server.intake import Group, Intake, UploadChecker
from qafel.deployment.server.ledger import Ledger
from qafel.deployment.settings import DefenceSettings
from qafel.errors import OversizedMessage
from qafel.params import Vector

SIZE = 3000
_stored = itertools.count(1)


def _stored_message(header: str, data: bytes, stored: int | None = None) -> Msg:
    stored = next(_stored) if stored is None else stored
    reply = f"$JS.ACK.qafel-live-upload.server.1.{stored}.{next(_stored)}.1700000000000000000.0"
    return Msg(cast(Any, None), "qafel.live.upload.0", reply, data, {PART: header})


def _add(assembly: PartAssembler, message: Msg, spent: list[Msg]) -> bytes | None:
    assert message.headers is not None
    return assembly.add(0, Part.from_header(message.headers[PART]), message, spent)


def test_parts_that_were_sent_twice_are_acknowledged_both_times() -> None:
    assembly, spent = PartAssembler(1 << 20, 1 << 30), list[Msg]()
    cut = [_stored_message(f"5/{n}/4", b"%d" % n) for n in range(3)]
    again = [_stored_message(f"5/{n}/4", b"%d" % n) for n in range(4)]
    wholes = [_add(assembly, message, spent) for message in cut + again]
    assert wholes == [None] * 6 + [b"0123"]
    assert spent == cut + again


def test_a_part_that_was_only_delivered_twice_stays_with_the_broker() -> None:
    assembly, spent = PartAssembler(1 << 20, 1 << 30), list[Msg]()
    for _ in range(2):
        _add(assembly, _stored_message("5/0/2", b"a", stored=1000), spent)
    assert spent == []


def test_an_upload_that_its_client_gave_up_is_acknowledged() -> None:
    assembly, spent = PartAssembler(1 << 20, 1 << 30), list[Msg]()
    given_up = [_stored_message(f"5/{n}/4", b"x") for n in range(3)]
    for message in given_up:
        _add(assembly, message, spent)
    assert _add(assembly, _stored_message("6/0/2", b"y"), spent) is None
    assert spent == given_up


def test_parts_that_are_too_large_together_are_all_acknowledged() -> None:
    assembly, spent = PartAssembler(4096, 1 << 30), list[Msg]()
    first = _stored_message("5/0/3", b"x" * 4000)
    _add(assembly, first, spent)
    with pytest.raises(OversizedMessage):
        _add(assembly, _stored_message("5/1/3", b"x" * 4000), spent)
    assert spent == [first]


def test_what_does_not_fit_the_bound_is_not_acknowledged() -> None:
    assembly, spent = PartAssembler(1024, 2048), list[Msg]()
    for client in range(5):
        assembly.add(client, Part(0, 0, 2), _stored_message("0/0/2", b"x" * 1000), spent)
    assert spent == []


def _algorithm() -> Algorithm:
    return wire("fedbuff", server_lr=1.0, local=LocalTraining(0.1, 1), buffer_size=100)


def _initial() -> Vector:
    return np.zeros(SIZE, np.float32)


@pytest.fixture
def intake(tmp_path: Path) -> Iterator[Intake]:
    with Ledger.open(tmp_path, _initial, _algorithm(), 7) as ledger:
        yield Intake(ledger, UploadChecker(_algorithm(), DefenceSettings(), 2), Metrics("live"))


def _parts(sequence: int) -> list[Msg]:
    client = Client(0, HiddenState.of(_initial()), _algorithm(), 7, sequence=sequence)
    parts = split(client.update(lambda start, _: start + np.float32(0.1)), 2048)
    return [_stored_message(f"{sequence}/{number}/{len(parts)}", part) for number, part in enumerate(parts)]


def _take(intake: Intake, messages: list[Msg]) -> Group:
    group = Group()
    for message in messages:
        intake.take(message, group, 0.0)
    return group


def test_leftovers_of_a_counted_upload_are_acknowledged_and_do_not_disturb_the_next(intake: Intake) -> None:
    assert _take(intake, _parts(5)).accepted == 1
    following, leftovers = _parts(6), _parts(5)[:3]
    group = _take(intake, following[:-1] + leftovers)
    assert group.acknowledge == leftovers
    assert group.receipts == {}
    last = _take(intake, following[-1:])
    assert last.accepted == 1
    assert last.acknowledge == following


def test_a_client_that_missed_the_receipt_is_told_once_that_its_parts_were_counted(intake: Intake) -> None:
    _take(intake, _parts(5))
    again = _parts(5)
    group = _take(intake, again)
    assert group.acknowledge == again
    assert group.accepted == 0
    assert (group.receipts[0].duplicate, group.receipts[0].highest) == ([5], 5)
    assert intake.ledger.server.rejected["duplicate"] == 1


def test_a_cut_upload_leaves_nothing_in_the_queue(intake: Intake) -> None:
    cut, again = _parts(5)[:4], _parts(5)
    group = _take(intake, cut + again)
    assert group.accepted == 1
    assert len(group.acknowledge) == len(cut + again)
    assert {message.reply for message in group.acknowledge} == {message.reply for message in cut + again}
