"""Rows are written once, and whatever becomes of their log, a checkpoint gives its own state or a `DataError`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qafel import Mushrooms, method, simulate
from qafel.algorithm import Checkpoint, Rows
from qafel.errors import DataError, OutputError
from qafel.runs import checkpoints
from qafel.runs.checkpoints import RowLog, read_checkpoint, write_checkpoint
from qafel.runs.directory import CHECKPOINT
from tests.command import qafel_here

SIZE, CLIENTS = 1000, 300
ROW_BYTES = 4 * SIZE


def vector(value: float) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


def filled() -> Rows:
    return Rows({client: vector(client) for client in range(CLIENTS)})


def logs(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.glob("rows-*.qafel"))}


def write(folder: Path, rows: Rows, log: RowLog | None = None, name: str = "checkpoint") -> None:
    write_checkpoint(folder / name, Checkpoint({"x": np.ones(2)}, {"a": 1}, {"part.rows": rows.copy()}), log)


def read(folder: Path, log: RowLog | None = None, name: str = "checkpoint") -> Rows:
    arrays, values, rows = read_checkpoint(folder / name, log)
    assert (list(arrays), values, list(rows)) == (["x"], {"a": 1}, ["part.rows"])
    return rows["part.rows"]


def same(one: Rows, other: Rows) -> bool:
    return list(one) == list(other) and all(bytes(one[key]) == bytes(other[key]) for key in one)


def test_a_checkpoint_appends_the_rows_that_changed_and_no_others(tmp_path: Path) -> None:
    rows, log = filled(), RowLog(tmp_path)
    write(tmp_path, rows, log)
    (name,) = logs(tmp_path)
    whole = logs(tmp_path)[name]
    assert whole < CLIENTS * ROW_BYTES + 100
    for changed in (0, 1, 7):
        before = logs(tmp_path)[name]
        for client in range(changed):
            rows[client] = vector(-client)
        write(tmp_path, rows, log)
        assert logs(tmp_path)[name] == before + changed * ROW_BYTES
        assert same(read(tmp_path), rows)


def test_a_resumed_run_appends_to_the_log_that_it_read(tmp_path: Path) -> None:
    write(tmp_path, filled())
    log = RowLog(tmp_path)
    rows, before = read(tmp_path, log), logs(tmp_path)
    rows[3] = vector(99)
    del rows[4]
    write(tmp_path, rows, log)
    assert logs(tmp_path) == {name: size + ROW_BYTES for name, size in before.items()}
    assert same(read(tmp_path), rows)


def test_a_log_stays_below_twice_the_rows(tmp_path: Path) -> None:
    rows, log = filled(), RowLog(tmp_path)
    for step in range(12):
        for client in range(CLIENTS):
            rows[client] = vector(step + client)
        write(tmp_path, rows, log)
        assert same(read(tmp_path), rows)
        assert sum(logs(tmp_path).values()) <= 2 * CLIENTS * ROW_BYTES + (1 << 16)
    assert len(logs(tmp_path)) == 1


def test_rows_of_several_tables_that_are_one_object_are_written_once(tmp_path: Path) -> None:
    row = vector(1)
    tables = {"a.rows": Rows(dict.fromkeys(range(50), row)), "b.rows": Rows({7: row}), "c.rows": Rows()}
    write_checkpoint(tmp_path / "checkpoint", Checkpoint({}, {}, tables))
    assert sum(logs(tmp_path).values()) < 2 * ROW_BYTES
    found = read_checkpoint(tmp_path / "checkpoint").rows
    assert all(same(found[name], tables[name]) for name in tables)
    assert found["a.rows"][0] is found["a.rows"][49]


def test_payloads_and_empty_tables_need_no_more_than_their_bytes(tmp_path: Path) -> None:
    write(tmp_path, Rows(dtype=np.uint8))
    assert logs(tmp_path) == {}
    assert not read(tmp_path)
    rows = Rows({1: b"abc", 2: b"", 3: b"abc"})
    write(tmp_path, rows)
    assert same(read(tmp_path), rows)
    assert isinstance(read(tmp_path)[2], bytes)


@pytest.mark.parametrize("compacts", [False, True])
def test_a_kill_between_log_and_checkpoint_leaves_the_previous_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacts: bool
) -> None:
    rows, log = filled(), RowLog(tmp_path)
    write(tmp_path, rows, log)
    before = rows.copy()
    for client in range(CLIENTS if compacts else 5):
        rows[client] = vector(-1)

    def fail(*_: object) -> None:
        raise OutputError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_checked", fail)
        for _ in range(2 if compacts else 1):
            with pytest.raises(OutputError):
                write(tmp_path, rows, log)
            rows = Rows({client: vector(-2) for client in rows}) if compacts else rows
    assert same(read(tmp_path), before), "killed here"
    write(tmp_path, rows, log)
    assert same(read(tmp_path), rows), "or tried again"
    resumed = RowLog(tmp_path)
    again = read(tmp_path, resumed)
    again[0] = vector(7)
    write(tmp_path, again, resumed)
    assert same(read(tmp_path), again)


def test_the_checkpoints_that_are_kept_stay_readable(tmp_path: Path) -> None:
    rows, log, states = filled(), RowLog(tmp_path, kept=2), []
    for step in range(8):
        for client in range(0, CLIENTS, 1 + step % 2):
            rows[client] = vector(1000 * step + client)
        write(tmp_path, rows, log, f"checkpoint-{step}")
        states.append(rows.copy())
        for back in range(min(2, step + 1)):
            assert same(read(tmp_path, name=f"checkpoint-{step - back}"), states[step - back])
    assert len(logs(tmp_path)) <= 2


def test_a_damaged_shortened_or_missing_log_is_refused(tmp_path: Path) -> None:
    write(tmp_path, filled())
    (path,) = tmp_path.glob("rows-*.qafel")
    whole = path.read_bytes()
    for at in (20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DataError, match="damaged"):
            read(tmp_path)
        path.write_bytes(whole[:at])
        with pytest.raises(DataError, match="truncated"):
            read(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        read(tmp_path)
    path.write_bytes(whole + b"a tail that a kill left")
    assert same(read(tmp_path), filled())


@pytest.mark.parametrize("name", ["ca2fl", "error-feedback", "ringleader"])
def test_a_run_resumed_from_its_rows_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    task = Mushrooms(clients=8)
    buffer = {} if name == "ringleader" else {"buffer_size": 4}
    algorithm = method(name, **buffer, client_quantizer="top_k:0.3" if name == "error-feedback" else "qsgd:4")
    checkpointed = {"checkpoint_every_s": 0.0, "evaluate_every": 50}
    for steps in (7, 13, 30):
        found = simulate(task, algorithm, server_steps=steps, out=tmp_path / "run", resume=steps > 7, **checkpointed)
    whole = simulate(task, algorithm, server_steps=30, evaluate_every=50)
    assert found.summary["model_sha256"] == whole.summary["model_sha256"]
    assert found.summary["hidden_state_sha256"] == whole.summary["hidden_state_sha256"]
    assert len(logs((tmp_path / "run" / CHECKPOINT).parent)) == 1


def test_a_damaged_log_stops_a_resumed_run_in_one_sentence(tmp_path: Path) -> None:
    settings = ["--set", "algorithm.method=ca2fl", "--set", "stop.server_steps=5", "--quiet", "--out", tmp_path / "run"]
    qafel_here("run", "mushrooms-fedbuff", *settings)
    for path in (tmp_path / "run" / "checkpoint").glob("rows-*.qafel"):
        path.write_bytes(path.read_bytes()[:-1])
    more = [*settings[:3], "stop.server_steps=9", *settings[4:], "--resume"]
    assert "truncated" in qafel_here("run", "mushrooms-fedbuff", *more, expect=2)[1]
