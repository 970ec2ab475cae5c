"""Runs are seen where they are: rows as they come, new runs, runs that begin anew; and what is damaged harms nobody."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path

import pytest

from qafel.errors import DataError
from qafel.runs.live import write_live
from qafel.runs.reading import RowReader
from qafel.watch.sources import Folders, FollowedRun, Reported, find_runs
from tests.watch.states import live_state


def add_rows(path: Path, *metrics: float | None, start: int = 0, end: str = "\n") -> None:
    with (path / "metrics.jsonl").open("a") as file:
        for number, metric in enumerate(metrics, start):
            row = {"metric": metric, "uploads": 10 * number, "version": number, "staleness_histogram": [9, 1]}
            file.write(json.dumps(row) + end)


@pytest.fixture
def folder(make_run, tmp_path: Path) -> Path:
    path = make_run("mine", metric=[0.5, 0.4], finished=False)
    assert path == tmp_path / "mine"
    return path


def test_rows_are_taken_up_as_they_come_and_half_a_row_waits(folder: Path) -> None:
    followed = FollowedRun(folder)
    assert followed.look().run.column("metric").tolist() == [0.5, 0.4]
    add_rows(folder, 0.3, start=2)
    add_rows(folder, 0.2, start=3, end="")
    assert followed.look().run.column("metric").tolist() == [0.5, 0.4, 0.3]
    add_rows(folder, start=4)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\nnot json\n[]\n")
    add_rows(folder, None, start=4)
    found = followed.look()
    assert found.run.column("uploads").tolist() == [0, 10, 20, 30, 40]
    assert found.run.staleness_histogram.tolist() == [1 + 1 + 27, 2 + 2 + 3, 6, 4, 2]


def test_every_byte_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = FollowedRun(folder)
    followed.look()
    read = []
    row_of = RowReader._row
    monkeypatch.setattr(RowReader, "_row", lambda self, line: read.append(line) or row_of(self, line))
    add_rows(folder, 0.3, start=2)
    followed.look()
    followed.look()
    assert len(read) == 1


def test_a_run_that_begins_anew_forgets_its_rows(folder: Path, make_run) -> None:
    followed = FollowedRun(folder)
    followed.look()
    shutil.rmtree(folder)
    make_run("mine", metric=[0.9, 0.8, 0.7], finished=False)
    assert followed.look().run.column("metric").tolist() == [0.9, 0.8, 0.7]


def test_the_end_is_seen_and_so_is_a_run_that_goes_on_after_it(folder: Path) -> None:
    followed = FollowedRun(folder)
    write_live(folder, live_state())
    assert followed.look().word == "running"
    summary = {"status": "finished", "metric_name": "loss", "target": 0.1, "metric_final": 0.2, "server_steps": 3}
    summary |= {"uploads": 30, "upload_bytes_total": 300, "broadcast_bytes_total": 30}
    (folder / "summary.json").write_text(json.dumps(summary))
    found = followed.look()
    assert (found.word, found.live, found.run.summary["metric_name"]) == ("finished", None, "loss")
    (folder / "summary.json").unlink()
    assert followed.look().word == "running"


def test_what_the_driver_says_completes_what_rows_say(folder: Path) -> None:
    write_live(folder, live_state(at=time.time() - 100, problem="the disk is full"))
    found = FollowedRun(folder).look()
    assert (found.word, found.problem) == ("silent for 1 min 40 s", "the disk is full")
    assert (found.run.goal, found.run.number("target"), found.run.number("uploads")) == ("max", 0.85, 400)
    assert found.run.staleness_histogram.tolist() == [300, 80, 20]


@pytest.mark.parametrize(
    ("file", "words"), [("config.toml", "config.toml is damaged"), ("summary.json", "summary.json")]
)
def test_a_damaged_run_is_shown_with_its_problem(folder: Path, file: str, words: str) -> None:
    (folder / file).write_text("[[[")
    assert words in FollowedRun(folder).look().problem


def test_runs_are_found_in_folders_of_folders_but_not_those_moved_aside(make_run, tmp_path: Path) -> None:
    for name in ("b10", "b2", "sweep/a", "sweep/deep/er", "b2.old-1", "much/too/deep/run", "b2/state/inner"):
        make_run(name, finished=False)
    (tmp_path / "empty").mkdir()
    names = [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)]
    assert names == ["b2", "b10", "sweep/a", "sweep/deep/er"]
    assert find_runs(tmp_path / "b2.old-1") == [tmp_path / "b2.old-1"], "who names it sees it"


def test_a_new_run_comes_last_and_one_that_is_gone_goes(make_run, tmp_path: Path) -> None:
    make_run("runs/m", finished=False)
    source = Folders([tmp_path / "runs"])
    assert [one.run.path.name for one in source.look_now()] == ["m"]
    make_run("runs/a", finished=False)
    assert [one.run.path.name for one in source.look_now()] == ["m", "a"]
    shutil.rmtree(tmp_path / "runs" / "m")
    assert [one.run.path.name for one in source.look_now()] == ["a"]


def test_a_folder_that_is_named_twice_is_shown_once(make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run("runs/m", finished=False)
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    assert len(Folders([path, Path("runs"), tmp_path / "link"]).look_now()) == 1


@pytest.mark.parametrize(("name", "words"), [("gone", "gone does not exist"), ("file", "file is not a folder")])
def test_a_folder_must_be_there(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=words):
        Folders([tmp_path / name])


def test_told_states_become_a_history_that_begins_anew_with_the_run() -> None:
    told = Reported("nats://here")
    for uploads, metric in ((100, 0.1), (200, 0.2), (200, 0.2), (300, 0.2), (300, None)):
        told.report("mine", live_state(uploads=uploads, metric=metric), 1.0)
    [found] = asyncio.run(told.look())
    assert found.key == "nats://here/mine"
    assert found.run.column("uploads").tolist() == [100, 200, 300]
    assert (found.word, found.run.goal) == ("running", "max")
    told.report("mine", live_state(uploads=5, metric=0.05), 60.0)
    [found] = asyncio.run(told.look())
    assert found.run.column("uploads").tolist() == [5]
    assert found.word == "silent for 60 s"
    told.report("other", live_state(status="finished"), 1000.0)
    assert [one.word for one in asyncio.run(told.look())] == ["silent for 60 s", "finished"]
    told.forget_all_but(["other"])
    assert [one.run.name for one in asyncio.run(told.look())] == ["other"]


def test_a_long_told_history_is_thinned() -> None:
    told = Reported("here")
    for uploads in range(9_000):
        told.report("mine", live_state(uploads=uploads, metric=0.5), 0.0)
    [found] = asyncio.run(told.look())
    assert found.rows <= 4_000
    assert (found.run.column("uploads")[0], found.run.column("uploads")[-1]) == (0, 8_999)
