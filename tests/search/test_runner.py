"""The sweep leaves finished runs alone, resumes interrupted ones, replaces others and reports what failed."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from qafel.config import load_recipe
from qafel.errors import OutputError
from qafel.runs.directory import CHECKPOINT, same_run, settings_of, state_of
from qafel.runs.live import FunctionListener, environment
from qafel.search.runner import Ended, Runner, RunSpec, make_runs, perform, unfinished
from qafel.simulator import simulate
from tests.running import Change, configuration, run

STEPS = 30


class Recorder:
    """Hears how a sweep goes."""

    def __init__(self) -> None:
        self.started_runs: list[str] = []
        self.ended_runs: dict[str, str] = {}
        self.rows = 0
        self.notes: list[str] = []

    def started(self, run):
        self.started_runs.append(run.folder)

    def progressed(self, run, row):
        self.rows += 1

    def noted(self, run, text):
        self.notes.append(f"{run.folder}: {text}")

    def ended(self, run, status):
        self.ended_runs[run.folder] = status


def short(recipe="mushrooms-fedbuff", seed=0, steps=STEPS, tag="short"):
    return RunSpec(recipe, configuration(recipe, seed, Change(tag, (f"stop.server_steps={steps}",))))


def make(runs, folder, **options):
    recorder = Recorder()
    failures = make_runs(runs, folder, recorder, **{"executor": "inline", **options})
    return recorder, failures


def summary(folder, run):
    return json.loads((folder / run.folder / "summary.json").read_text())


def test_a_recipe_without_changes_is_what_qafel_run_would_write(tmp_path):
    planned = RunSpec("FedBuff", configuration("cifar10-fedbuff", 2))
    assert planned.folder == "cifar10-fedbuff-seed2"
    assert planned.config == load_recipe("cifar10-fedbuff", (), 2)


def test_finished_runs_are_not_run_again(tmp_path):
    runs = [short(seed=0), short(seed=1)]
    recorder, failures = make(runs, tmp_path)
    assert not failures
    assert recorder.ended_runs == {run.folder: "finished" for run in runs}
    assert recorder.rows > 0
    before = [(tmp_path / run.folder / "summary.json").stat().st_mtime_ns for run in runs]
    again, failures = make(runs, tmp_path)
    assert not again.started_runs
    assert not failures
    assert [(tmp_path / run.folder / "summary.json").stat().st_mtime_ns for run in runs] == before


def test_a_run_that_qafel_run_made_is_picked_up(tmp_path):
    planned = short()
    run(planned.config, tmp_path / planned.folder, track=())
    assert not unfinished([planned], tmp_path)


def test_a_run_made_before_a_description_changed_still_counts(tmp_path):
    planned = short()
    run(planned.config.model_copy(update={"description": "other words"}), tmp_path / planned.folder, track=())
    assert state_of(tmp_path / planned.folder, planned.config) == "finished"
    assert not same_run(settings_of(planned.config), settings_of(planned.config.model_copy(update={"seed": 7})))


@pytest.mark.parametrize("options", [{}, {"executor": "processes", "workers": 2}])
def test_another_configurations_run_is_moved_aside_and_the_watcher_told(tmp_path, options):
    wanted, other, third = short(steps=10), short(steps=20), short(steps=15)
    assert wanted.folder == other.folder == third.folder
    for number, planned in enumerate((other, third, wanted)):
        assert state_of(tmp_path / wanted.folder, planned.config) == ("other limits" if number else "absent")
        recorder, failures = make([planned], tmp_path, **options)
        moved = f"{wanted.folder}: Moved a run with other settings to {wanted.folder}.old-{number}."
        assert (failures, recorder.notes) == ({}, [moved] if number else [])
    kept = [(tmp_path / f"{wanted.folder}{suffix}/summary.json") for suffix in (".old-1", ".old-2", "")]
    assert [json.loads(file.read_text())["server_steps"] for file in kept] == [20, 15, 10]


@pytest.mark.parametrize("options", [{}, {"executor": "processes", "workers": 2}])
def test_runs_whose_limits_grew_go_on_to_the_result_of_runs_that_had_them_from_the_start(tmp_path, options):
    for recipe in ("mushrooms-fedbuff", "mushrooms-qafel-4bit"):
        shorter, longer = short(recipe, steps=20), short(recipe, steps=45)
        make([shorter], tmp_path, **options)
        recorder, failures = make([longer], tmp_path, **options)
        assert (failures, recorder.notes) == ({}, [])
        make([longer], tmp_path / "whole")
        assert [path.name for path in tmp_path.glob(f"{longer.folder}*")] == [longer.folder]
        rows = [
            [
                {**json.loads(line), "wall_s": 0}
                for line in (place / longer.folder / "metrics.jsonl").read_text().splitlines()
            ]
            for place in (tmp_path, tmp_path / "whole")
        ]
        assert rows[0] == rows[1]
        grown, whole = summary(tmp_path, longer), summary(tmp_path / "whole", longer)
        assert (grown["server_steps"], grown["model_sha256"]) == (45, whole["model_sha256"])


def test_a_run_that_met_the_target_does_not_go_on_to_limits_that_end_there(tmp_path):
    """With `at_target` from the start it would have ended sooner."""
    changes = ("evaluation.target=1.0", f"stop.server_steps={STEPS}")
    past = RunSpec("m", configuration("mushrooms-fedbuff", 0, Change("short", changes)))
    at_target = RunSpec(
        "m",
        configuration(
            "mushrooms-fedbuff",
            0,
            Change("short", ("evaluation.target=1.0", "stop.server_steps=99", "stop.at_target=true")),
        ),
    )
    make([past], tmp_path)
    recorder, _ = make([at_target], tmp_path)
    assert len(recorder.notes) == 1
    assert summary(tmp_path, at_target)["server_steps"] < STEPS


def test_a_run_whose_configuration_is_not_understood_is_kept(tmp_path):
    """As after a setting was renamed."""
    planned = short()
    make([planned], tmp_path)
    config = tmp_path / planned.folder / "config.toml"
    config.write_text(config.read_text() + "\n[gone]\nold_setting = 1\n")
    recorder, failures = make([planned], tmp_path)
    assert not failures
    assert len(recorder.notes) == 1
    assert "old_setting" in (tmp_path / f"{planned.folder}.old-1/config.toml").read_text()


@pytest.mark.parametrize("damage", [b"", b'{"status": "fin', b"[]", b"\xff\xfe"])
def test_a_run_with_a_damaged_summary_is_made_again_and_kept(tmp_path, damage):
    planned = short()
    make([planned], tmp_path)
    (tmp_path / planned.folder / CHECKPOINT).unlink()
    (tmp_path / planned.folder / "summary.json").write_bytes(damage)
    assert unfinished([planned], tmp_path) == [planned]
    recorder, failures = make([planned], tmp_path)
    assert not failures
    assert recorder.notes == [f"{planned.folder}: Moved a damaged run to {planned.folder}.old-1."]
    assert summary(tmp_path, planned)["server_steps"] == STEPS
    assert (tmp_path / f"{planned.folder}.old-1/summary.json").read_bytes() == damage


def test_a_damaged_summary_is_written_again_from_the_last_checkpoint(tmp_path):
    planned = short()
    make([planned], tmp_path)
    before = summary(tmp_path, planned)
    (tmp_path / planned.folder / "summary.json").write_bytes(b'{"status": "fin')
    recorder, failures = make([planned], tmp_path)
    assert not failures
    assert not recorder.notes
    assert summary(tmp_path, planned)["model_sha256"] == before["model_sha256"]


def test_a_folder_that_is_no_runs_is_not_removed(tmp_path):
    planned = short()
    precious = tmp_path / planned.folder / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("years of work")
    _, failures = make([planned], tmp_path)
    assert "not a run directory" in failures[planned.folder]
    assert precious.exists()


def described(planned, description):
    return RunSpec(planned.method, planned.config.model_copy(update={"description": description}))


class Interrupted(BaseException):
    """As Ctrl-C is."""


def interrupt(planned: RunSpec, path: Path) -> None:
    """Begin a run, and break it off after its first checkpoints."""

    def progress(row):
        if row.version == 20:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(planned.config, path, [FunctionListener(progress)], track=(), checkpoint_every_s=0.0)


@pytest.mark.parametrize("description", [None, "other words"])
def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path, monkeypatch, description):
    """Whatever its recipe is described as by now."""
    planned = short()
    began = planned if description is None else described(planned, description)
    interrupt(began, tmp_path / planned.folder)
    assert (tmp_path / planned.folder / CHECKPOINT).exists()
    assert state_of(tmp_path / planned.folder, planned.config) == "interrupted"
    resumed = []

    def watched(**options):
        resumed.append(options["resume"])
        return simulate(**options)

    monkeypatch.setattr("qafel.search.runner.simulate", watched)
    make([planned], tmp_path)
    assert resumed == [True]
    fresh = run(planned.config, tmp_path / "fresh", track=())
    assert summary(tmp_path, planned)["model_sha256"] == fresh["model_sha256"]
    assert "resumed_from" not in summary(tmp_path, planned)


def test_a_run_that_goes_on_elsewhere_states_both_places(tmp_path, monkeypatch):
    planned = short()
    interrupt(planned, tmp_path / planned.folder)
    here = environment()
    monkeypatch.setattr("os.cpu_count", lambda: 96)
    make([planned], tmp_path)
    found = summary(tmp_path, planned)
    assert (found["hardware"]["cores"], found["versions"]) == (96, here["versions"])
    assert found["resumed_from"] == [here]


def test_a_damaged_checkpoint_means_to_begin_anew(tmp_path):
    planned = short()
    interrupt(planned, tmp_path / planned.folder)
    (tmp_path / planned.folder / CHECKPOINT).write_bytes(b"\0\0\0")
    assert perform(planned.config, tmp_path / planned.folder) == "finished"
    assert (tmp_path / f"{planned.folder}.old-1/metrics.jsonl").exists()


def test_lost_rows_mean_to_begin_anew(tmp_path):
    planned = short()
    interrupt(planned, tmp_path / planned.folder)
    (tmp_path / planned.folder / "metrics.jsonl").unlink()
    assert perform(planned.config, tmp_path / planned.folder) == "finished"
    assert (tmp_path / planned.folder / "metrics.jsonl").read_bytes().startswith(b'{"version": 0,')


def test_only_one_process_works_in_a_runs_folder(tmp_path):
    config, path = short().config, tmp_path / "runs" / "one"
    refused = []

    def meanwhile(row):
        with pytest.raises(OutputError, match="another process"):
            perform(config, path)
        refused.append(row.version)

    assert perform(config, path, meanwhile) == "finished"
    assert len(refused) == STEPS + 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"], "the lock is gone"


def unfit():
    """A run that cannot be made: mushrooms trains on full batches only."""
    change = Change("unfit", ("algorithm.batch_size=8", f"stop.server_steps={STEPS}"))
    return RunSpec("unfit", configuration("mushrooms-fedbuff", 0, change))


@pytest.mark.parametrize("options", [{}, {"executor": "processes", "workers": 2}])
def test_a_failed_run_is_reported_and_the_rest_is_done(tmp_path, options):
    fine = [short(seed=0), short(seed=1)]
    recorder, failures = make([fine[0], unfit(), fine[1]], tmp_path, **options)
    assert list(failures) == [unfit().folder]
    assert "batch_size" in failures[unfit().folder]
    assert recorder.ended_runs == {run.folder: "finished" for run in fine} | {unfit().folder: "failed"}


def test_a_run_that_diverges_is_a_result(tmp_path):
    change = Change("wild", ("algorithm.client_lr=1e30", f"stop.server_steps={STEPS}"))
    planned = RunSpec("wild", configuration("mushrooms-fedbuff", 0, change))
    recorder, failures = make([planned], tmp_path)
    assert not failures
    assert recorder.ended_runs == {planned.folder: "diverged"}
    assert not unfinished([planned], tmp_path)


def test_runs_at_once_give_the_same_models(tmp_path):
    runs = [short(seed=seed) for seed in range(3)]
    make(runs, tmp_path / "one")
    recorder, _ = make(runs, tmp_path / "two", executor="processes", workers=2)
    assert sorted(recorder.started_runs) == sorted(run.folder for run in runs)
    for planned in runs:
        hashes = [summary(tmp_path / place, planned)["model_sha256"] for place in ("one", "two")]
        assert hashes[0] == hashes[1]


def test_a_run_whose_process_dies_resumes_in_another_process(tmp_path):
    runs = [short(seed=seed, steps=400) for seed in range(2)]
    killed = []

    class Killing(Recorder):
        def progressed(self, run, row):
            super().progressed(run, row)
            if not killed:
                killed.append(run)
                for child in multiprocessing.active_children():
                    child.kill()

    recorder = Killing()
    assert make_runs(runs, tmp_path, recorder, workers=2) == {}
    assert recorder.ended_runs == {run.folder: "finished" for run in runs}


class Bomb:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (9,)


def answer(tell, task):
    tell("news")
    return task


def fail(tell, task):
    raise MemoryError("12 GB")


@pytest.mark.parametrize("count", [1, 2])
def test_a_runner_returns_values_errors_and_news(count):
    heard = []
    with Runner(count, lambda key, news: heard.append((key, news)), "the task") as runner:
        ends = {}
        for key, job in (("good", answer), ("bad", fail)):
            runner.start(key, job)
            name, ended = runner.next_ended()
            ends[name] = ended
    assert ends["good"].value == "the task"
    assert "MemoryError: 12 GB" in str(ends["bad"].error)
    assert heard == [("good", "news")]


def test_a_task_that_cannot_be_pickled_is_left_to_the_jobs():
    with Runner(2, lambda key, news: None, task=lambda: None) as runner:
        runner.start("job", answer)
        assert runner.next_ended() == ("job", Ended(None))


def test_a_job_counts_until_its_end_is_returned():
    """Two jobs may end before anyone asks; the second was lost if only workers at work were counted."""
    with Runner(2, lambda key, news: None) as runner:
        for _ in range(2):
            runner.start("first", answer)
            runner.start("second", answer)
            time.sleep(0.5)  # likely, both have ended by now
            runner.next_ended()
            assert (runner.busy, runner.room) == (1, 1)
            runner.next_ended()
        assert runner.busy == 0


def test_a_job_that_kills_two_workers_fails_and_the_next_one_runs():
    with Runner(2, lambda key, news: None) as runner:
        runner.start("fatal", Bomb())
        assert (runner.room, runner.busy) == (1, 1)
        key, ended = runner.next_ended()
        assert key == "fatal"
        assert "exit code 9" in str(ended.error)
        assert (runner.room, runner.busy) == (2, 0)
        runner.start("good", answer)
        assert runner.next_ended()[1].error is None


def test_a_run_that_another_sweep_finished_meanwhile_is_left_alone(tmp_path):
    planned = short()
    make([planned], tmp_path)
    before = (tmp_path / planned.folder / "summary.json").stat().st_mtime_ns
    assert perform(planned.config, tmp_path / planned.folder) == "finished"
    assert (tmp_path / planned.folder / "summary.json").stat().st_mtime_ns == before


def test_entries_share_a_run(tmp_path):
    assert len(unfinished([short(), short(), short(seed=1)], tmp_path)) == 2
