"""One client can neither steer nor freeze the model with a norm or a weight, whoever else is there."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import Algorithm, HiddenState, LocalTraining, Message, Server, method
from qafel.config import Config
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.server import DefenceSettings, ServerSettings
from qafel.deployment.server.defence import RunningMedian, UploadChecker, resolved
from qafel.deployment.server.ledger import Ledger, UploadNote
from qafel.errors import NormTooLarge
from qafel.params import Vector
from tests.deployment.live import CONFIG, replay, serving, taking_part, until, update
from tests.uploads import receive, upload_of

SIZE = 16


def _algorithm(**changed: Any) -> Algorithm:
    quantizers = {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
    return method("qafel", server_lr=1.0, local=LocalTraining(0.1, 1), buffer_size=2, **quantizers, **changed)


def _initial() -> Vector:
    return np.zeros(SIZE, np.float32)


def _frame(algorithm: Algorithm, client: int, sequence: int, norm: float, weight: float = 1.0) -> bytes:
    start = HiddenState.of(_initial())
    trained = start.vector - np.float32(norm / math.sqrt(SIZE))
    return upload_of(start, trained, algorithm, client=client, sequence=sequence, weight=weight, seed=1)


def _checker(median: RunningMedian | None = None, **settings: Any) -> UploadChecker:
    defence = DefenceSettings(
        **{"max_norm_ratio": 100.0, "norm_excess": "reject", "max_norm": 5.0, "max_weight": 10.0, **settings}
    )
    return UploadChecker(_algorithm(), defence, 100, None, median or RunningMedian({}, 0.0))


def _judge(checker: UploadChecker, client: int, norm: float, weight: float = 1.0, now: float = 0.0) -> UploadNote:
    upload = Message.from_bytes(_frame(_algorithm(), client, 0, norm, weight))
    applied, decoded, _ = checker.check(Server(_initial(), _algorithm(), 1), client, upload, now)
    assert decoded.size == upload.dimension
    return applied


def test_before_three_clients_voted_updates_are_clipped_to_the_absolute_bound() -> None:
    checker = _checker()
    for client, norm in enumerate((1e16, 3.0)):
        applied = _judge(checker, client, norm)
        assert applied.factor == pytest.approx(min(1.0, 5.0 / norm))
    for client in (2, 3):
        _judge(checker, client, 1.0)
    with pytest.raises(NormTooLarge, match="100 times the median"):
        _judge(checker, 4, 1e16)


def test_a_minute_with_few_clients_opens_no_door() -> None:
    checker = _checker()
    for second in (0, 1):
        for client in range(3):
            _judge(checker, client, 1.0, now=second)
    assert _judge(checker, 3, 1e16, now=10_000.0).factor == pytest.approx(5e-16)


def test_clients_that_send_nothing_open_no_door() -> None:
    checker = _checker()
    for client in range(3):
        _judge(checker, client, 0.0)
    assert _judge(checker, 3, 1e16).factor == pytest.approx(5e-16)


def test_whoever_is_heard_of_first_cannot_say_that_any_norm_is_usual() -> None:
    checker = _checker(max_norm_ratio=10.0, norm_excess="clip")
    for client, norm in enumerate((1.0, 1e16, 1e16)):
        applied = _judge(checker, client, norm)
    assert applied.factor == pytest.approx(10 * 5.0 / 1e16)


def test_beyond_the_ratio_an_update_is_rejected_or_clipped() -> None:
    for excess in ("reject", "clip"):
        checker = _checker(max_norm_ratio=10.0, norm_excess=excess)
        for client in range(3):
            assert _judge(checker, client, 1.0).factor == 1.0
        if excess == "clip":
            applied = _judge(checker, 4, 1000.0)
            assert (applied.factor, applied.norm) == (pytest.approx(0.01), pytest.approx(1000.0))
        else:
            with pytest.raises(NormTooLarge):
                _judge(checker, 4, 1000.0)


def test_a_weight_is_believed_up_to_a_bound() -> None:
    assert _judge(_checker(), 0, 1.0, weight=3e38).weight == 10.0
    assert _judge(_checker(), 0, 1.0, weight=2.5).weight == 2.5


def test_the_bounds_follow_from_the_recipe() -> None:
    config = Config.from_dict(CONFIG)
    task = config.task.make()
    algorithm = config.algorithm.compose(task.layout)
    found = resolved(DefenceSettings(), algorithm, task)
    assert found.max_norm == pytest.approx(algorithm.local.lr * 2 * math.sqrt(task.layout.size))
    assert found.max_weight == 10.0
    assert resolved(DefenceSettings(max_norm=3.0, max_weight=math.inf), algorithm, task).max_norm == 3.0


@pytest.mark.parametrize("accumulator", ["mean", "weighted-mean", "median", "trimmed-mean"])
def test_what_was_applied_is_in_the_journal_and_votes_survive_a_kill(tmp_path: Path, accumulator: Any) -> None:
    algorithm = _algorithm(accumulator=accumulator)
    judged = [
        UploadNote.of(1.0, norm=1.0),
        UploadNote.of(10.0, 0.1, 7.0),
        UploadNote.of(0.7, 1 / 3, 2.0),
        UploadNote.of(1, norm=3),
    ]
    models = []
    for _ in range(2):  # the second start receives the journal of the first, which wrote no checkpoint
        with Ledger.open(tmp_path, _initial, algorithm, 1, size=SIZE) as ledger:
            for client in range(0 if models else len(judged)):
                frame = _frame(algorithm, client, 0, 1.0, weight=1e30)
                ledger.take(frame, Message.from_bytes(frame), judged[client])
                ledger.step_if_due()
            models.append(ledger.server.model.copy())
            assert models[0].tobytes() == models[-1].tobytes()
            norms = ledger.norms
    assert norms == {client: applied.norm for client, applied in enumerate(judged)}
    assert RunningMedian(norms, 0.0).value(0.0) == 3.0
    assert replay(tmp_path, _initial(), algorithm, 1).model.tobytes() == models[0].tobytes()


def test_a_clipped_update_counts_with_its_whole_weight_in_a_weighted_mean() -> None:
    server = Server(_initial(), _algorithm(accumulator="weighted-mean"), 1)
    for client, factor in ((0, 0.25), (1, 1.0)):
        receive(server, _frame(_algorithm(), client, 0, 4.0), factor)
    assert np.allclose(server.model, -(0.25 * 1.0 + 1.0) / 2)


async def _send(server: Any, access: Access, frames: list[tuple[int, bytes]]) -> None:
    before = server.ledger.traffic.uploads + sum(server.ledger.server.rejected.values())
    async with session(access, "test") as broker:
        for client, frame in frames:
            await broker.store(f"qafel.live.upload.{client}", frame)
    wanted = before + len(frames)
    await until(lambda: server.ledger.traffic.uploads + sum(server.ledger.server.rejected.values()) == wanted)


def test_at_a_live_server_neither_weight_nor_norm_of_one_client_makes_the_run_diverge_or_stand_still(
    tmp_path: Path, access: Access
) -> None:
    """As shown: an update of norm 1e16 was accepted, a weight of 3e38 diverged, one of 1e30 froze a weighted mean, and
    one of 1e-28 hid a norm of 1e27 that the weighted mean brought back.
    """

    async def check() -> None:
        config = Config.from_dict({**CONFIG, "algorithm": {**CONFIG["algorithm"], "accumulator": "weighted-mean"}})
        settings = ServerSettings(heartbeat_s=0.2, defence=DefenceSettings())
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, access, config, settings))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            start, algorithm = client.core.hidden_state, client.core.algorithm
            frames = []
            lies = [*3 * [(1e27, 1e-28)], (1e16, 1.0), (1.0, 3e38), (1e-9, 1e30), (1e-9, 1e30)]
            for sequence, (step, weight) in enumerate(lies):
                trained = start.vector - np.float32(step)
                frames.append((4, upload_of(start, trained, algorithm, client=4, sequence=sequence, weight=weight)))
            await _send(server, access, frames)
            core, bound = server.ledger.server, resolved(DefenceSettings(), algorithm, config.task.make()).max_norm
            assert server.intake.diverged is None
            assert np.linalg.norm(core.model) <= 2.02 * (bound or 0.0) * config.algorithm.server_lr
            before = core.model.copy()
            for _ in range(4):
                await update(client)
            assert core.version >= 2
            assert np.linalg.norm(core.model - before) > 1e-3, "frozen"
            digest = core.hidden_state.digest
            served = core.algorithm
        again = replay(tmp_path / "state", config.initial_model(config.task.make()), served, config.seed)
        assert again.hidden_state.digest == digest
        async with serving(tmp_path, access, config, settings) as server:
            assert server.ledger.server.hidden_state.digest == digest

    asyncio.run(check())
