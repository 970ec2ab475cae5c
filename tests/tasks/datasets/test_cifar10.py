"""CIFAR-10 is read alike from both official layouts; damage is named; a pickle cannot run anything."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from qafel.errors import DataError
from qafel.tasks.datasets.cifar10 import BINARY_MD5, PYTHON_MD5, load_cifar10
from tests.tasks.datasets.fake_data import write_cifar10_binary, write_cifar10_python


def test_both_layouts_give_the_same_samples(tmp_path):
    write_cifar10_binary(tmp_path / "a")
    write_cifar10_python(tmp_path / "b")
    binary, python = load_cifar10(tmp_path / "a", verify=False), load_cifar10(tmp_path / "b", verify=False)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(binary, part).inputs, getattr(python, part).inputs)
        np.testing.assert_array_equal(getattr(binary, part).labels, getattr(python, part).labels)
    assert binary.train.inputs.shape == (100, 3, 32, 32)
    assert binary.test.inputs.shape == (20, 3, 32, 32)


def test_a_record_is_a_label_and_three_planes(tmp_path):
    write_cifar10_binary(tmp_path)
    record = (tmp_path / "cifar-10-batches-bin/data_batch_2.bin").read_bytes()[:3073]
    train = load_cifar10(tmp_path, verify=False).train
    inputs, labels = train.batch(np.array([20]))
    assert labels[0] == record[0]
    assert inputs[0, 1, 0, 5] == record[1 + 1024 + 5]


def test_a_missing_file_says_which_and_where(tmp_path):
    with pytest.raises(DataError, match=r"data_batch_1.bin is missing"):
        load_cifar10(tmp_path)
    write_cifar10_binary(tmp_path)
    (tmp_path / "cifar-10-batches-bin/test_batch.bin").unlink()
    with pytest.raises(DataError, match="test_batch.bin is missing"):
        load_cifar10(tmp_path, verify=False)


@pytest.mark.parametrize("write", [write_cifar10_binary, write_cifar10_python])
def test_a_file_that_is_not_the_official_one_is_refused(tmp_path, write):
    write(tmp_path)
    with pytest.raises(DataError, match=r"data_batch_1(.bin)? is damaged: its md5 is"):
        load_cifar10(tmp_path)


def test_a_truncated_batch_is_refused(tmp_path):
    write_cifar10_binary(tmp_path)
    path = tmp_path / "cifar-10-batches-bin/data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match="data_batch_3.bin is damaged"):
        load_cifar10(tmp_path, verify=False)


def test_an_impossible_label_is_refused(tmp_path):
    write_cifar10_binary(tmp_path)
    path = tmp_path / "cifar-10-batches-bin/data_batch_3.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match="expected a label from 0 to 9"):
        load_cifar10(tmp_path, verify=False)


class Harmful:
    def __reduce__(self):
        return os.system, ("echo harmed",)


@pytest.mark.parametrize("content", [pickle.dumps({b"data": Harmful(), b"labels": []}, 2), b"", b"nonsense"])
def test_a_pickle_that_names_a_function_is_refused_not_run(tmp_path, capfd, content):
    write_cifar10_python(tmp_path)
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(content)
    with pytest.raises(DataError, match="test_batch is damaged"):
        load_cifar10(tmp_path, verify=False)
    assert "harmed" not in capfd.readouterr().out


@pytest.mark.skipif("QAFEL_DATA" not in os.environ, reason="QAFEL_DATA, the folder of real datasets, is not set")
def test_the_official_files_have_the_known_counts():
    folder = Path(os.environ["QAFEL_DATA"])
    if not any((folder / name).is_dir() for name in ("cifar-10-batches-bin", "cifar-10-batches-py")):
        pytest.skip("there is no CIFAR-10 under QAFEL_DATA")
    data = load_cifar10(folder)
    assert np.bincount(data.train.labels).tolist() == [5000] * 10
    assert np.bincount(data.test.labels).tolist() == [1000] * 10
    mean = np.asarray(data.train.inputs).mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(mean, (0.4914, 0.4822, 0.4465), atol=1e-4)


def test_both_lists_of_checksums_name_six_files():
    assert len(BINARY_MD5) == len(PYTHON_MD5) == 6
