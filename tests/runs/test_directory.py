"""A run directory: exclusive writes, its state, and the formats that are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from qafel.algorithm import Checkpoint
from qafel.config import Config, Evaluation, load_recipe
from qafel.errors import DataError, OutputError
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint
from qafel.runs.directory import (
    CHECKPOINT,
    FORMAT,
    RunDirectory,
    same_run,
    settings_of,
    state_of,
)
from qafel.runs.progress import Progress
from qafel.runs.reading import Run
from tests.running import run
from tests.runs.test_progress import server_after

SHORT = ["stop.server_steps=20", "evaluation.every=10"]


def short(*more: str) -> Config:
    return load_recipe("mushrooms-fedbuff", [*SHORT, *more])


def row():
    progress = Progress(Evaluation(), "min")
    server, traffic = server_after(2)
    return progress.row(progress.take(server, traffic, 0.0), {"metric": 1.0})


def test_a_directory_opened_again_knows_how_long_its_metrics_are(tmp_path):
    with RunDirectory(tmp_path / "run") as directory:
        directory.begin("")
        directory.on_row(row())
        kept = directory.metrics_bytes()
        directory.on_row(row())
    with RunDirectory(tmp_path / "run") as directory:
        directory.begin("", keep_metrics_bytes=kept)
        assert directory.metrics_bytes() == kept


def test_every_whole_row_is_kept_and_half_a_row_is_cut_off(tmp_path):
    with RunDirectory(tmp_path / "run") as directory:
        directory.begin("")
        directory.on_row(row())
        whole = directory.metrics_bytes()
    with (tmp_path / "run/metrics.jsonl").open("ab") as file:
        file.write(b'{"version": 3, "up')
    with RunDirectory(tmp_path / "run") as directory:
        directory.begin("", keep_metrics_bytes=None)
        assert directory.metrics_bytes() == whole


def test_one_process_at_a_time_writes_a_run(tmp_path):
    with RunDirectory(tmp_path / "run"), pytest.raises(OutputError, match="another process"):
        run(short(), tmp_path / "run")
    assert run(short(), tmp_path / "run")["status"] == "finished"
    assert not list(tmp_path.glob(".*lock*"))


def test_a_folder_in_a_parent_that_cannot_be_written_is_locked_from_inside(tmp_path, monkeypatch):
    """As a mounted volume: only the folder itself belongs to the run."""
    out = tmp_path / "volume"
    out.mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with RunDirectory(out) as directory:
        directory.begin("")
        assert [path.name for path in tmp_path.iterdir()] == ["volume"]
        with pytest.raises(OutputError, match="another process"), RunDirectory(out):
            pass
    assert not (out / ".lock").exists()


@pytest.mark.parametrize("name", ["loop", "n" * 300])
def test_a_path_that_leads_nowhere_is_an_output_error(tmp_path, name):
    (tmp_path / "loop").symlink_to("loop")
    assert state_of(tmp_path / name, short()) == "absent"
    with pytest.raises(OutputError, match="cannot write"):
        run(short(), tmp_path / name)
    assert RunDirectory(Path("/")).path == Path("/"), "it has no name"


def test_rows_that_find_no_space_are_an_output_error_and_the_lock_is_gone(tmp_path):
    directory = RunDirectory(tmp_path / "run").__enter__()
    directory._metrics = Path("/dev/full").open("wb")  # noqa: SIM115  (the directory closes it)
    directory.on_row(row())
    with pytest.raises(OutputError, match=r"cannot write .*metrics.jsonl: No space left on device"):
        directory.on_end(None)
    with pytest.raises(OutputError, match=r"cannot write .*metrics.jsonl: No space left on device"):
        directory.__exit__()
    assert not list(tmp_path.iterdir())


def test_a_new_run_does_not_stand_beside_the_model_of_the_one_before(tmp_path):
    run(short(), tmp_path)
    with RunDirectory(tmp_path) as directory:
        directory.begin("")
    assert {path.name for path in tmp_path.glob("*.*")} >= {"config.toml", "metrics.jsonl"}
    assert not (tmp_path / "model.safetensors").exists()


def test_how_far_a_directory_is_with_a_configuration(tmp_path):
    out = tmp_path / "run"
    assert state_of(out, short()) == "absent"
    run(short(), out, checkpoint_every_s=0)
    assert state_of(out, short()) == "finished"
    assert state_of(out, short("name=another")) == "finished", "names do not matter"
    assert state_of(out, short("algorithm.client_lr=3.0")) == "other"
    (out / "summary.json").write_bytes(b"{")
    assert state_of(out, short()) == "interrupted"
    (out / "summary.json").unlink()
    assert state_of(out, short()) == "interrupted"
    (out / CHECKPOINT).unlink()
    assert state_of(out, short()) == "absent"
    (out / "summary.json").write_bytes(b"{")
    assert state_of(out, short()) == "damaged", "half a summary is no result"


def test_names_and_descriptions_do_not_make_another_run():
    assert same_run(settings_of(short()), settings_of(short("name=x", "description=y")))
    assert not same_run(settings_of(short()), settings_of(short("seed=1")))


def test_a_run_is_moved_aside_and_never_lost(tmp_path):
    out = tmp_path / "run"
    run(short(), out)
    with RunDirectory(out) as directory:
        assert directory.move_aside() == tmp_path / "run.old-1"
        assert directory.move_aside() is None
    assert (tmp_path / "run.old-1/summary.json").exists()
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    for other in (out, out / "thesis.txt"):
        with RunDirectory(other) as directory, pytest.raises(OutputError, match="not a run directory"):
            directory.move_aside()


@pytest.mark.parametrize("killed_at", [".config.toml.part", "metrics.jsonl"])
def test_a_process_killed_while_it_begins_leaves_a_folder_that_the_next_one_uses(tmp_path, monkeypatch, killed_at):
    method = "replace" if killed_at.endswith(".part") else "open"
    original = getattr(Path, method)

    def killing(self, *arguments, **options):
        if self.name == killed_at:
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    path = tmp_path / "run"
    with RunDirectory(path) as directory, monkeypatch.context() as patched:
        patched.setattr(Path, method, killing)
        with pytest.raises(KeyboardInterrupt):
            directory.begin("seed = 1\n")
    assert any(path.iterdir())
    with RunDirectory(path) as directory:
        assert directory.move_aside() is None
        directory.begin("seed = 2\n")
    assert "seed = 2" in (path / "config.toml").read_text()


def test_a_run_directory_of_a_newer_format_is_refused_in_a_sentence(tmp_path):
    out = tmp_path / "run"
    run(short(), out)
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace(f"format {FORMAT}", f"format {FORMAT + 1}"))
    assert state_of(out, short()) == "other"
    with pytest.raises(DataError, match="upgrade qafel"):
        Run.load(out)


CHECK = Checkpoint({"model": np.arange(5, dtype=np.float32)}, {"version": 3})


def test_a_checkpoint_of_another_version_is_refused_in_a_sentence(tmp_path):
    write_checkpoint(tmp_path / "new", CHECK)
    data = (tmp_path / "new").read_bytes()
    (tmp_path / "new").write_bytes(data.replace(b"checkpoint 3", b"checkpoint 7", 1))
    with pytest.raises(DataError, match="version 7"):
        read_checkpoint(tmp_path / "new")


def test_any_flipped_bit_of_a_checkpoint_is_noticed(tmp_path):
    write_checkpoint(tmp_path / "file", CHECK)
    assert read_checkpoint(tmp_path / "file").values == {"version": 3}
    data = (tmp_path / "file").read_bytes()
    for byte in range(len(data)):
        damaged = bytearray(data)
        damaged[byte] ^= 1
        (tmp_path / "file").write_bytes(damaged)
        with pytest.raises(DataError):
            read_checkpoint(tmp_path / "file")
