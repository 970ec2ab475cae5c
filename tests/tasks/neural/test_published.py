"""The three tasks are made of plain settings, and made again from them in another process."""

import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError, SpecError
from qafel.rng import Stream
from qafel.tasks.neural import celeba, cifar10, shakespeare
from qafel.tasks.neural.published import CharacterLstm, Cnn
from qafel.tasks.protocol import train_from
from tests.tasks.datasets.fake_data import write_celeba, write_cifar10_binary, write_shakespeare

INIT, STREAM = Stream.named(0, "initial model"), Stream.named(0, "train", 1, 1)
LOCAL = LocalTraining(0.05, steps=2, batch_size=4)


@pytest.fixture
def tasks(tmp_path):
    write_cifar10_binary(tmp_path)
    write_celeba(tmp_path)
    write_shakespeare(tmp_path)
    return {
        "cifar10": cifar10(clients=10, data=tmp_path, verify=False),
        "celeba": celeba(data=tmp_path),
        "shakespeare": shakespeare(data=tmp_path, verify=False, train_fraction=0.2, test_samples=5),
    }


@pytest.mark.parametrize(("name", "size"), [("cifar10", 31_594), ("celeba", 29_282), ("shakespeare", 819_920)])
def test_each_task_trains_and_evaluates_the_papers_model(tasks, name, size):
    task = tasks[name]
    assert task.name == name
    assert task.layout.size == size
    start = task.initial_model(INIT)
    trained = train_from(task, 1, start, LOCAL, STREAM)
    assert np.isfinite(trained).all()
    assert not np.array_equal(trained, start)
    found = task.evaluate(trained)
    assert 0 <= found["metric"] <= 1
    assert found["loss"] > 0


def _train(pickled):
    task = pickle.loads(pickled)
    return train_from(task, 1, task.initial_model(INIT), LOCAL, STREAM)


@pytest.mark.parametrize(
    "name", ["cifar10", *(pytest.param(x, marks=pytest.mark.slow) for x in ("celeba", "shakespeare"))]
)
def test_a_worker_makes_the_task_again_and_finds_the_same_bits(tasks, name):
    pickled = pickle.dumps(tasks[name])
    assert len(pickled) < 1000, "settings travel, not data"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_train, (pickled,)), _train(pickled))


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path)
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path))
    monkeypatch.setenv("QAFEL_CACHE", str(tmp_path / "elsewhere"))
    task = cifar10(clients=10, verify=False)
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "cache").exists()
    monkeypatch.delenv("QAFEL_DATA")
    assert pickle.loads(pickle.dumps(task)).clients == 10, "the folder is part of the settings"


def test_partitions_are_chosen_by_their_specs(tmp_path):
    write_cifar10_binary(tmp_path)
    task = cifar10(clients=10, partition="iid", data=tmp_path, verify=False)
    assert [task.samples(client) for client in range(10)] == [10] * 10
    with pytest.raises(SpecError, match="unknown partition"):
        cifar10(clients=10, partition="uniform", data=tmp_path, verify=False)
    with pytest.raises(ConfigError, match="users"):
        cifar10(clients=10, partition="user", data=tmp_path, verify=False)


def test_users_can_be_sampled_mixed_and_bounded(tmp_path):
    write_celeba(tmp_path)
    everyone = celeba(data=tmp_path)
    assert everyone.clients == 9
    some = celeba(data=tmp_path, clients=4, max_samples=5, test_samples=3)
    assert some.clients == 4
    assert some.partition.sizes.tolist() == [5] * 4
    assert len(some.test_samples) == 3
    mixed = celeba(data=tmp_path, clients=7, partition="iid")
    assert mixed.partition.sizes.sum() == everyone.partition.sizes.sum()
    for settings, words in [
        ({"clients": 10}, "users, 9"),
        ({"partition": "iid"}, "needs a number of clients"),
        ({"max_samples": 0}, "at least one sample"),
        ({"test_samples": 0}, "at least one test sample"),
    ]:
        with pytest.raises(ConfigError, match=words):
            celeba(data=tmp_path, **settings)


def test_the_readers_and_partitions_import_no_torch():
    modules = ["config", *(f"tasks.datasets.{name}" for name in ("files", "samples", "partition"))]
    modules += [f"tasks.datasets.{name}" for name in ("cifar10", "celeba", "shakespeare")]
    code = (
        "import sys; "
        + "; ".join(f"import qafel.{name}" for name in modules)
        + "; assert not {'torch', 'pooch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("classes", "size"), [(10, 31_594), (2, 29_282)])
def test_the_cnn_has_the_papers_number_of_parameters(classes, size):
    assert sum(p.numel() for p in Cnn(classes).parameters()) == size


def test_the_lstm_has_the_papers_number_of_parameters():
    assert sum(p.numel() for p in CharacterLstm().parameters()) == 819_920
