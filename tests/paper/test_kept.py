"""A kept run is all that an entry needs."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from qafel.errors import DataError, OutputError
from qafel.paper.entry import Change, configuration
from qafel.paper.kept import keep, require_writable, take_back, whole_run
from qafel.runs.directory import state_of
from qafel.runs.reading import Run
from qafel.search.runner import RunSpec, perform

TINY = Change("tiny", ("stop.uploads=200", 'evaluation.unit="uploads"', "evaluation.every=20"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two planned runs in one folder, of which the first is finished."""
    runs = tmp_path_factory.mktemp("runs")
    planned = [RunSpec("QAFeL", configuration("mushrooms-qafel-4bit", seed, TINY)) for seed in (0, 1)]
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


def flipped(content):
    """Forty bytes of a compressed file, in its middle, the other way round."""
    half = len(content) // 2
    return content[:half] + bytes(255 - byte for byte in content[half : half + 40]) + content[half + 40 :]


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        gzip.compress(b"no JSON", mtime=0),
        gzip.compress(b"[1]", mtime=0),
        flipped(gzip.compress(json.dumps(list(range(2000))).encode(), mtime=0)),
        gzip.compress(b'{"columns": {"metric": [1]}, "config.toml": "", "summary.json": {}}', mtime=0),
    ],
    ids=("a", "b", "c", "d", "e"),
)
def test_a_damaged_file_is_named_and_leaves_nothing(finished, tmp_path, content):
    planned, _ = finished
    file = tmp_path / f"{planned[0].folder}.json.gz"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"seed0\.json\.gz is damaged"):
        take_back(planned, tmp_path / "back", tmp_path)
    assert not (tmp_path / "back").exists()


def changed(file, **parts):
    """The kept run with other parts."""
    content = json.loads(gzip.decompress(file.read_bytes()))
    file.write_bytes(gzip.compress(json.dumps(content | parts).encode(), mtime=0))


@pytest.fixture
def kept(finished, tmp_path):
    """The first planned run, its kept file, and what that file holds."""
    planned, runs = finished
    keep(planned, runs, tmp_path / "results")
    file = tmp_path / "results" / f"{planned[0].folder}.json.gz"
    return planned[0], file, json.loads(gzip.decompress(file.read_bytes()))


def test_rows_that_end_too_soon_are_noticed_and_not_kept(kept, finished, tmp_path):
    run, file, content = kept
    changed(file, columns={name: values[:6] for name, values in content["columns"].items()})
    with pytest.raises(DataError, match=r"json\.gz is damaged .*it ends after 100 uploads, and the run did after 200"):
        take_back([run], tmp_path / "back", file.parent)
    changed(file, columns={name: values for name, values in content["columns"].items() if name != "uploads"})
    with pytest.raises(DataError, match="it has no uploads"):
        take_back([run], tmp_path / "back", file.parent)
    assert not any((tmp_path / "back").glob("*")), "nothing is left behind"
    cut = shutil.copytree(finished[1] / run.folder, tmp_path / "cut" / run.folder)
    rows = (cut / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_bytes(b"".join(rows[:5]))
    for read in (lambda: whole_run(cut), lambda: keep([run], tmp_path / "cut", tmp_path / "other")):
        with pytest.raises(DataError, match="it ends after 80 uploads"):
            read()


def test_a_kept_run_that_is_another_one_is_an_error_not_a_gap(kept, tmp_path):
    run, file, content = kept
    changed(file, **{"config.toml": content["config.toml"].replace("buffer_size = 10", "buffer_size = 7")})
    with pytest.raises(DataError, match=r"is another run than .* is now: delete it"):
        take_back([run], tmp_path / "back", file.parent)
    changed(file, **{"config.toml": content["config.toml"].replace("format 2", "format 99")})
    with pytest.raises(DataError, match="format 99"):
        take_back([run], tmp_path / "back", file.parent)


@pytest.mark.parametrize("harm", ["summary.json", "config.toml"])
def test_a_damaged_run_is_moved_aside_for_the_kept_one(kept, finished, tmp_path, harm):
    run, file, _ = kept
    path = shutil.copytree(finished[1] / run.folder, tmp_path / "back" / run.folder)
    (path / harm).write_text("")
    take_back([run], tmp_path / "back", file.parent)
    assert state_of(path, run.config) == "finished"
    assert [one.name for one in (tmp_path / "back").glob(f"{run.folder}.old*")] == [f"{run.folder}.old-1"]


def test_a_folder_that_is_absent_or_cannot_be_written_is_said_before_any_run(kept, tmp_path):
    run, file, _ = kept
    with pytest.raises(DataError, match="is no folder of kept runs"):
        take_back([run], tmp_path / "back", tmp_path / "nowhere")
    require_writable(tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())
    with pytest.raises(OutputError, match="--results"):
        require_writable(file)
