"""The cache is built once, appears whole, notices changed sources and damage, and says what is wrong with the disk."""

import multiprocessing
import os

import numpy as np
import pytest

from qafel.errors import DataError
from qafel.tasks.datasets.files import cached


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_text("1 2 3")
    return path


def build_from(source, calls):
    def build():
        calls.append(1)
        return {"numbers": np.array(source.read_text().split(), np.int64)}

    return build


def test_the_second_use_maps_what_the_first_built(tmp_path, source):
    calls = []
    for _ in range(2):
        arrays = cached(tmp_path / "cache", "set", [source], build_from(source, calls))
        assert isinstance(arrays["numbers"], np.memmap)
        assert arrays["numbers"].tolist() == [1, 2, 3]
    assert calls == [1]
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")], (
        "nothing unfinished stays"
    )


def test_a_changed_source_or_setting_is_built_again(tmp_path, source):
    calls = []
    cached(tmp_path / "cache", "set", [source], build_from(source, calls))
    source.write_text("4 5")
    assert cached(tmp_path / "cache", "set", [source], build_from(source, calls))["numbers"].tolist() == [4, 5]
    cached(tmp_path / "cache", "set", [source], build_from(source, calls), "other")
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("damage", ["flip", "truncate", "no manifest", "bad manifest"])
def test_a_damaged_cache_is_built_again(tmp_path, source, damage):
    calls = []
    cached(tmp_path / "cache", "set", [source], build_from(source, calls))
    (folder,) = (tmp_path / "cache").iterdir()
    content = (folder / "numbers.npy").read_bytes()
    if damage == "flip":
        (folder / "numbers.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncate":
        (folder / "numbers.npy").write_bytes(content[:-8])
    elif damage == "no manifest":
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_text("[]")
    assert cached(tmp_path / "cache", "set", [source], build_from(source, calls))["numbers"].tolist() == [1, 2, 3]
    assert calls == [1, 1]


def _build_in_a_process(folder, source, barrier):
    def build():
        barrier.wait(30)  # both are building now
        return {"numbers": np.arange(3)}

    assert cached(folder, "set", [source], build)["numbers"].tolist() == [0, 1, 2]


def test_two_processes_may_build_at_once(tmp_path, source):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    workers = [
        context.Process(target=_build_in_a_process, args=(tmp_path / "cache", source, barrier)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_missing_source_says_which(tmp_path):
    with pytest.raises(DataError, match="nowhere is missing"):
        cached(tmp_path, "set", [tmp_path / "nowhere"], dict)


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, source):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="QAFEL_CACHE"):
        cached(tmp_path / "cache", "set", [source], lambda: {"numbers": np.arange(3)})


def test_a_failed_build_leaves_nothing(tmp_path, source):
    def fail():
        raise DataError("damaged")

    with pytest.raises(DataError, match="damaged"):
        cached(tmp_path / "cache", "set", [source], fail)
    assert not os.path.exists(tmp_path / "cache") or not os.listdir(tmp_path / "cache")
