"""The median and the trimmed mean of bucket means: what they are, what a liar can do, that checkpoints keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.algorithm import Algorithm, HiddenState, LocalTraining, Server, method
from qafel.algorithm.server import restore_server, save_server
from qafel.config import Config
from qafel.errors import ConfigError
from qafel.params import Vector
from tests.running import run
from tests.uploads import receive, upload_of

SIZE = 7


def _algorithm(accumulator: str, buffer: int = 8, *, buckets: int | None = None, **changed: Any) -> Algorithm:
    settings = {"server_lr": 1.0, "local": LocalTraining(0.1, 1), "buffer_size": buffer, **changed}
    part = accumulator if buckets is None else {"name": accumulator, "buckets": buckets}
    return method("fedbuff", accumulator=part, **settings)


def _upload(algorithm: Algorithm, client: int, sequence: int, update: Vector) -> bytes:
    start = HiddenState.of(np.zeros(SIZE, np.float32))
    return upload_of(start, start.vector - update, algorithm, client=client, sequence=sequence, seed=1)


def _step(algorithm: Algorithm, updates: list[tuple[int, Vector]]) -> Vector:
    """The Δ̄ of one full buffer."""
    server = Server(np.zeros(SIZE, np.float32), algorithm, 1)
    for number, (client, update) in enumerate(updates):
        receive(server, _upload(algorithm, client, number, update))
    assert server.version == 1
    return -server.model


def _updates(count: int, seed: int = 0) -> Vector:
    return np.random.default_rng(seed).standard_normal((count, SIZE)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(buffer=st.integers(1, 10), seed=st.integers(0, 9))
def test_with_a_bucket_for_each_client_they_are_what_their_names_say(buffer: int, seed: int) -> None:
    updates = _updates(buffer, seed)
    sent = list(enumerate(updates))
    assert np.allclose(_step(_algorithm("median", buffer), sent), np.median(updates, axis=0), atol=1e-6)
    cut = buffer // 4
    expected = np.sort(updates, axis=0)[cut : buffer - cut].mean(axis=0)
    assert np.allclose(_step(_algorithm("trimmed-mean", buffer), sent), expected, atol=1e-6)


@pytest.mark.parametrize("accumulator", ["median", "trimmed-mean"])
def test_one_bucket_is_the_mean(accumulator: str) -> None:
    updates = _updates(8)
    found = _step(_algorithm(accumulator, buckets=1), list(enumerate(updates)))
    assert np.allclose(found, updates.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize(("accumulator", "liars"), [("median", 3), ("trimmed-mean", 2)])
def test_a_few_liars_stay_within_what_honest_clients_say_and_the_mean_does_not(accumulator: str, liars: int) -> None:
    updates = _updates(8)
    honest = updates[liars:]
    updates[:liars] = 1e6
    found = _step(_algorithm(accumulator), list(enumerate(updates)))
    assert (found >= honest.min(axis=0) - 1e-6).all()
    assert (found <= honest.max(axis=0) + 1e-6).all()
    assert (_step(_algorithm("mean"), list(enumerate(updates))) > 1e5).all()


def test_a_client_that_floods_a_buffer_spoils_one_bucket() -> None:
    honest = _updates(4)
    lies = np.full((4, SIZE), 1e6, np.float32)
    sent = [(99, lie) for lie in lies[:3]] + list(enumerate(honest)) + [(99, lies[3])]
    found = _step(_algorithm("median", buckets=5), sent)
    assert (found <= honest.max(axis=0) + 1e-6).all()


@pytest.mark.parametrize("accumulator", ["median", "trimmed-mean"])
@pytest.mark.parametrize("rule", ["update", "model"])
def test_a_checkpoint_in_the_middle_of_a_buffer_gives_the_same_bits(accumulator: str, rule: str) -> None:
    algorithm = _algorithm(accumulator, 6, buckets=4, client_rule=rule)
    whole = Server(np.ones(SIZE, np.float32), algorithm, 1)
    other = Server(np.ones(SIZE, np.float32), algorithm, 1)
    for number, update in enumerate(_updates(14)):
        upload = _upload(algorithm, number % 5, number, update)
        receive(whole, upload)
        receive(other, upload)
        other = restore_server(save_server(other), algorithm, 1, size=other.model.size)
    assert whole.version == other.version == 2
    assert whole.model.tobytes() == other.model.tobytes()


def test_wrong_buckets_are_a_sentence() -> None:
    with pytest.raises(ConfigError, match="there are 1 to 8 buckets, the buffer's size; got 9"):
        _algorithm("median", buckets=9)
    for wrong in (0, 1.5, True):
        with pytest.raises(ConfigError, match="buckets"):
            _algorithm("median", buckets=wrong)
    with pytest.raises(ConfigError, match="buckets"):
        _algorithm("mean", buckets=3)
    with pytest.raises(ConfigError, match="buckets"):
        Config.from_dict({"task": {"name": "quadratic"}, "algorithm": {"buckets": 3}})


def test_a_simulated_run_takes_them_from_its_recipe_on_any_executor(tmp_path: Path) -> None:
    def final(name: str, accumulator: str, executor: Any = "inline") -> str:
        config = Config.from_dict(
            {
                "task": {"name": "quadratic", "clients": 20, "dimension": 10},
                "algorithm": {"method": "qafel", "accumulator": accumulator, "server_lr": 0.1, "client_lr": 0.1},
                "stop": {"server_steps": 50},
            }
        )
        return str(run(config, tmp_path / name, executor=executor, workers=2)["model_sha256"])

    assert final("a", "median") == final("b", "median", "processes")
    assert final("c", "mean") != final("a2", "median")
