"""A kept run is all that an entry needs."""

from __future__ import annotations

import gzip
import shutil

import pytest

from qafel.errors import DataError
from qafel.paper.entry import Change, configuration
from qafel.paper.kept import keep, take_back
from qafel.runs.directory import state_of
from qafel.runs.reading import Run
from qafel.sweeps.making import Planned, perform

TINY = Change("tiny", ("stop.uploads=200", 'evaluation.unit="uploads"', "evaluation.every=20"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two planned runs in one folder, of which the first is finished."""
    runs = tmp_path_factory.mktemp("runs")
    planned = [Planned("QAFeL", configuration("mushrooms-qafel-4bit", seed, TINY)) for seed in (0, 1)]
    perform(planned[0].config, runs / planned[0].folder)
    return planned, runs


def test_what_is_kept_comes_back_as_a_finished_run(finished, tmp_path):
    planned, runs = finished
    keep(planned, runs, tmp_path / "results")
    file = tmp_path / "results" / f"{planned[0].folder}.json.gz"
    assert list((tmp_path / "results").iterdir()) == [file], "a run that is not finished is not kept"
    take_back(planned, tmp_path / "back", tmp_path / "results")
    back = tmp_path / "back" / planned[0].folder
    assert state_of(back, planned[0].config) == "finished"
    kept, original = Run.load(back), Run.load(runs / planned[0].folder)
    assert kept.summary == original.summary
    for column in ("metric", "uploads", "version", "virtual_time"):
        assert kept.column(column).tolist() == original.column(column).tolist()
    assert kept.traffic.tolist() == original.traffic.tolist()
    assert perform(planned[0].config, back) == "finished", "it is not made again"


def test_the_same_run_gives_the_same_bytes_and_few_of_them(finished, tmp_path):
    planned, runs = finished
    contents = []
    for name in ("one", "other"):
        keep(planned, runs, tmp_path / name)
        contents.append((tmp_path / name / f"{planned[0].folder}.json.gz").read_bytes())
    assert contents[0] == contents[1]
    assert len(contents[0]) < 3000


def test_a_run_that_is_there_is_not_replaced(finished, tmp_path):
    planned, runs = finished
    keep(planned, runs, tmp_path / "results")
    shutil.copytree(runs / planned[0].folder, tmp_path / "back" / planned[0].folder)
    take_back(planned, tmp_path / "back", tmp_path / "results")
    assert (tmp_path / "back" / planned[0].folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"no JSON", mtime=0), gzip.compress(b"[1]", mtime=0)], ids=("a", "b", "c")
)
def test_a_damaged_file_is_named_and_leaves_nothing(finished, tmp_path, content):
    planned, _ = finished
    file = tmp_path / f"{planned[0].folder}.json.gz"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"seed0\.json\.gz is damaged"):
        take_back(planned, tmp_path / "back", tmp_path)
    assert not (tmp_path / "back").exists()
