"""A client sees its samples in an order of its own, and epochs are whole."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from qafel.algorithm import LocalTraining
from qafel.rng import Stream
from qafel.tasks.neural.trainer import batches, choose_device
from qafel.workers import WORKER

STREAM = Stream.named(1, "train", 2, 3)


@pytest.mark.parametrize("batch_size", [None, 4, 10])
def test_an_epoch_sees_every_row_once(batch_size):
    rows = np.arange(10) + 5
    seen = list(batches(rows, LocalTraining(0.1, epochs=2, batch_size=batch_size), STREAM.generator()))
    half = len(seen) // 2
    assert sorted(np.concatenate(seen[:half]).tolist()) == rows.tolist()
    assert sorted(np.concatenate(seen[half:]).tolist()) == rows.tolist()


@pytest.mark.parametrize("batch_size", [None, 4, 10])
def test_a_part_of_the_steps_is_the_beginning_of_all_of_them(batch_size):
    whole = LocalTraining(0.1, epochs=2, batch_size=batch_size)
    seen = list(batches(np.arange(10), whole, STREAM.generator()))
    assert len(seen) == whole.steps_for(10)
    for steps in range(1, len(seen) + 1):
        part = list(batches(np.arange(10), replace(whole, steps=steps, epochs=None), STREAM.generator()))
        assert [rows.tolist() for rows in part] == [rows.tolist() for rows in seen[:steps]]


def test_a_client_without_samples_takes_no_step():
    assert not list(batches(np.array([], np.int64), LocalTraining(0.1, steps=2), STREAM.generator()))


def test_workers_use_their_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert str(choose_device("cuda:{i}")) == "cuda:0"
    for worker, gpu in (("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")):
        monkeypatch.setenv(WORKER, worker)
        assert str(choose_device("cuda:{i}")) == gpu
