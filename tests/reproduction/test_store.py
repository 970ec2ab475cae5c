"""A stored run is all that an entry needs."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from qafel.errors import DataError, OutputError
from qafel.runs import Run
from qafel.search import RunSpec, perform
from reproduction.entry import Change, configuration
from reproduction.store import Store, whole_run

TINY = Change("tiny", ("stop.uploads=200", 'evaluation.unit="uploads"', "evaluation.every=20"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two planned runs in one folder, of which the first is finished."""
    runs = tmp_path_factory.mktemp("runs")
    planned = [RunSpec("QAFeL", configuration("mushrooms-qafel-4bit", seed, TINY)) for seed in (0, 1)]
    perform(planned[0].config, runs / planned[0].folder)
    return planned, runs


@pytest.fixture
def stored(finished, tmp_path):
    """The first planned run, a store that has it as a file alone, that file, and its content."""
    planned, runs = finished
    Store(runs, tmp_path / "results").keep(planned)
    store = Store(tmp_path / "none", tmp_path / "results")
    file = tmp_path / "results" / f"{planned[0].folder}.json.gz"
    return planned[0], store, file, json.loads(gzip.decompress(file.read_bytes()))


def test_a_stored_run_is_loaded_as_it_was(finished, stored):
    planned, runs = finished
    run, store, file, _ = stored
    assert list(file.parent.iterdir()) == [file], "an unfinished run is not stored"
    assert store.unfinished(planned) == planned[1:]
    ((loaded, found),) = store.load(planned)
    original = Run.load(runs / run.folder)
    assert loaded == run
    assert found.summary == original.summary
    assert (found.name, found.goal, found.task) == (original.name, original.goal, original.task)
    for column in ("metric", "uploads", "version", "virtual_time", "upload_bytes_total", "broadcast_bytes_total"):
        assert found.column(column).tolist() == original.column(column).tolist()


def test_the_same_run_gives_the_same_bytes_and_few_of_them(finished, stored, tmp_path):
    planned, runs = finished
    Store(runs, tmp_path / "other").keep(planned)
    content = (tmp_path / "other" / stored[2].name).read_bytes()
    assert content == stored[2].read_bytes()
    assert len(content) < 3000


def flipped(content):
    """A compressed file with forty inverted bytes in the middle."""
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
        gzip.compress(b'{"columns": {"metric": [1]}, "config.toml": "[", "summary.json": "{}"}', mtime=0),
    ],
    ids=("a", "b", "c", "d", "e", "f"),
)
def test_a_damaged_file_is_named(stored, content):
    run, store, file, _ = stored
    file.write_bytes(content)
    for read in (store.check, store.load):
        with pytest.raises(DataError, match=r"seed0\.json\.gz is damaged"):
            read([run])


def changed(file, **parts):
    """Replace parts of a stored run."""
    content = json.loads(gzip.decompress(file.read_bytes()))
    file.write_bytes(gzip.compress(json.dumps(content | parts).encode(), mtime=0))


def test_rows_that_end_too_early_are_noticed_and_not_stored(stored, finished, tmp_path):
    run, store, file, content = stored
    changed(file, columns={name: values[:6] for name, values in content["columns"].items()})
    with pytest.raises(DataError, match="damaged.*after 100 uploads"):
        store.check([run])
    changed(file, columns={name: values for name, values in content["columns"].items() if name != "uploads"})
    with pytest.raises(DataError, match="has no uploads"):
        store.check([run])
    cut = shutil.copytree(finished[1] / run.folder, tmp_path / "cut" / run.folder)
    rows = (cut / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_bytes(b"".join(rows[:5]))
    for read in (lambda: whole_run(Run.load(cut)), lambda: Store(cut.parent, tmp_path / "other").keep([run])):
        with pytest.raises(DataError, match="after 80 uploads"):
            read()


def test_a_stored_run_with_other_settings_is_an_error_not_a_gap(stored):
    run, store, file, content = stored
    changed(file, **{"config.toml": content["config.toml"].replace("buffer_size = 10", "buffer_size = 7")})
    with pytest.raises(DataError, match="other settings"):
        store.check([run])


def test_a_folder_that_is_absent_or_not_writable_is_refused_before_any_run(stored, tmp_path):
    run, _, file, _ = stored
    with pytest.raises(DataError, match="not a folder"):
        Store(tmp_path, tmp_path / "nowhere").check([run])
    Store(tmp_path, tmp_path / "new").require_writable()
    assert not any((tmp_path / "new").iterdir())
    with pytest.raises(OutputError, match="--results"):
        Store(tmp_path, file).require_writable()
