"""Uploads and their parts at the intake: a whole one is decoded and counts once, and leaves nothing in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nats.aio.msg import Msg

from qafel.algorithm import Algorithm, Client, HiddenState, LocalTraining, method
from qafel.deployment.messages import split
from qafel.deployment.server import DefenceSettings
from qafel.deployment.server.defence import UploadChecker
from qafel.deployment.server.intake import Intake, UploadGroup
from qafel.deployment.server.ledger import Ledger
from qafel.params import Vector
from qafel.quantizers import Identity
from tests.deployment.test_messages import stored_message

SIZE = 3000
_PART_BYTES = 2048


def _algorithm() -> Algorithm:
    return method("fedbuff", server_lr=1.0, local=LocalTraining(0.1, 1), buffer_size=100)


def _initial() -> Vector:
    return np.zeros(SIZE, np.float32)


@pytest.fixture
def intake(tmp_path: Path) -> Iterator[Intake]:
    with Ledger.open(tmp_path, _initial, _algorithm(), 7, size=SIZE) as ledger:
        intake = Intake(ledger, UploadChecker(_algorithm(), DefenceSettings(), 2))
        intake.begin_session(_PART_BYTES)
        yield intake


def _parts(sequence: int) -> list[Msg]:
    client = Client(0, HiddenState.of(_initial()), _algorithm(), 7, sequence=sequence)
    parts = split(client.update(lambda start, *_: start.vector + np.float32(0.1)).upload, _PART_BYTES)
    return [stored_message(f"{sequence}/{number}/{len(parts)}", part) for number, part in enumerate(parts)]


def _take(intake: Intake, messages: list[Msg]) -> UploadGroup:
    group = UploadGroup()
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


def test_an_upload_that_counts_is_decoded_once(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    times, decode = 0, Identity.decode

    def counted(*arguments: Any) -> Vector:
        nonlocal times
        times += 1
        return decode(*arguments)

    monkeypatch.setattr(Identity, "decode", counted)
    assert _take(intake, _parts(5)).accepted == 1
    assert times == 1
    assert intake.ledger.server.accumulator.total.any()


def test_a_client_that_missed_the_receipt_is_told_once_that_its_parts_were_counted(intake: Intake) -> None:
    _take(intake, _parts(5))
    again = _parts(5)
    group = _take(intake, again)
    assert group.acknowledge == again
    assert group.accepted == 0
    assert (group.receipts[0].duplicate, group.receipts[0].last) == ([5], intake.ledger.last_of(0))
    assert intake.ledger.last_of(0)[0] == 5
    assert intake.ledger.server.rejected["duplicate"] == 1


def test_a_cut_upload_leaves_nothing_in_the_queue(intake: Intake) -> None:
    cut, again = _parts(5)[:4], _parts(5)
    group = _take(intake, cut + again)
    assert group.accepted == 1
    assert len(group.acknowledge) == len(cut + again)
    assert {message.reply for message in group.acknowledge} == {message.reply for message in cut + again}
