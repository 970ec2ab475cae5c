from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from qafel.errors import DataError
from qafel.report import best_of
from qafel.runs import reading
from qafel.runs.live import LIVE_FILE, LiveState, write_live
from qafel.runs.reading import Run, read_rows, run_directories


def test_a_run_comes_back_as_it_was_written(make_run):
    run = Run.load(make_run("qafel", metric=[0.68, 0.1, 0.01]))
    assert run.name == "qafel"
    assert run.finished
    assert run.config["algorithm"]["buffer_size"] == 10
    assert run.history["metric"].tolist() == [0.68, 0.1, 0.01]
    assert run.history["uploads"].tolist() == [0, 10, 20]
    assert run.bytes_so_far.tolist() == [0, 51 * 76, 102 * 76]
    assert run.total_bytes == 102 * 76
    assert run.staleness_histogram.tolist() == [1, 2, 3, 2, 1]


def test_lists_are_no_columns_and_unknown_figures_are_nan(make_run):
    run = Run.load(make_run())
    assert "staleness_histogram" not in run.history
    assert math.isnan(run.number("no_such_key"))
    assert math.isnan(run.number("name"))
    assert len(run.column("no_such_column")) == len(run.history["metric"])


def test_half_a_last_row_is_dropped(make_run):
    path = make_run(metric=[0.68, 0.1])
    with (path / "metrics.jsonl").open("ab") as file:
        file.write('{"version": 2, "metric": 0.0, "note": "−'.encode()[:-1])
    assert Run.load(path).history["metric"].tolist() == [0.68, 0.1]


def test_an_unfinished_run_loads_with_its_last_row_for_a_summary(make_run):
    run = Run.load(make_run("qafel", metric=[0.68, 0.1], finished=False, folder="killed"))
    assert not run.finished
    assert run.name == "killed"
    assert run.number("metric_final") == 0.1
    assert run.number("server_steps") == 1
    assert run.number("uploads") == 10
    assert run.staleness_histogram.tolist() == [2, 4, 6, 4, 2]


def test_the_staleness_of_an_unfinished_run_is_that_of_all_its_rows(make_run):
    path = make_run(finished=False, metric=[0.6, 0.5, 0.4])
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line, histogram in zip(lines, ([], [10], [0, 6, 0, 4]), strict=True):
        line["staleness_histogram"] = histogram
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = Run.load(path)
    assert run.staleness_histogram.tolist() == [10, 6, 0, 4]
    assert (run.number("staleness_mean"), run.number("staleness_max")) == (18 / 20, 3)


def test_an_unfinished_run_of_a_custom_task_has_its_metric_and_goal(make_run):
    config = {"task": {"name": "mine"}, "evaluation": {"target": 0.6}}
    path = make_run(metric=[0.1, 0.6, 0.5], finished=False, config=config)
    assert Run.load(path).goal == "min", "unknown"
    write_live(path, LiveState(status="stopped", at=1.0, version=2, metric_name="F1", metric_goal="max"))
    run = Run.load(path)
    assert (run.summary["metric_name"], run.goal) == ("F1", "max")
    assert run.at_target(run.column("uploads")) == 10
    assert best_of(run, run.goal) == 0.6
    (path / LIVE_FILE).write_text("damaged")
    assert Run.load(path).number("metric_final") == 0.5


def test_a_run_that_ends_while_it_is_read_is_whole_or_unfinished(make_run, monkeypatch):
    path = make_run(metric=[0.68, 0.1, 0.01], target=0.05)
    rows, summary = ((path / name).read_bytes() for name in ("metrics.jsonl", "summary.json"))
    (path / "summary.json").unlink()
    (path / "metrics.jsonl").write_bytes(b"".join(rows.splitlines(keepends=True)[:2]))

    def ends(file):
        found = read_rows(file)
        file.write_bytes(rows)
        (path / "summary.json").write_bytes(summary)
        return found

    monkeypatch.setattr(reading, "read_rows", ends)
    found = Run.load(path)
    assert (found.finished, found.number("uploads")) == (False, 10)
    monkeypatch.undo()
    assert Run.load(path).at_target(Run.load(path).column("uploads")) == 20


def test_a_config_whose_task_is_no_table_still_loads(make_run):
    run = Run.load(make_run(finished=False, config={"task": "cifar10"}))
    assert "metric_goal" not in run.summary


def test_nan_infinity_null_and_missing_values_are_not_finite(make_run):
    path = make_run(metric=[0.68])
    with (path / "metrics.jsonl").open("a") as file:
        file.write(
            '{"metric": NaN}\n{"metric": Infinity}\n{"metric": null}\n{"uploads": 40}\n{"metric": 1%s}\n' % ("0" * 400)
        )
    metric = Run.load(path).history["metric"]
    assert metric[0] == 0.68
    assert [math.isfinite(value) for value in metric[1:]] == [False] * 5


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl"])
def test_a_missing_file_is_named(make_run, name):
    path = make_run()
    (path / name).unlink()
    with pytest.raises(DataError, match=name):
        Run.load(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"a = = 1"),
        ("config.toml", b"\xff\xfe"),
        ("summary.json", b'{"name": '),
        ("summary.json", b"[]"),
        ("metrics.jsonl", b"oops\n{}\n"),
        ("metrics.jsonl", b"3\n"),
        ("metrics.jsonl", b""),
        ("metrics.jsonl", b'{"version": 1'),
        ("metrics.jsonl", b'{"version": 1}\n'),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(make_run, name, content):
    path = make_run()
    (path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        Run.load(path)


def test_what_is_no_run_directory_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="not a run directory"):
        Run.load(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"config\.toml"):
        Run.load(tmp_path)


def test_a_folder_of_runs_is_answered_with_their_names(make_run):
    parent = make_run("qafel").parent
    make_run("fedbuff")
    with pytest.raises(DataError, match="fedbuff, qafel"):
        Run.load(parent)


def test_a_folder_of_runs_holds_them_in_the_order_of_their_numbers(make_run, tmp_path):
    made = [make_run("a", folder=f"all/{name}") for name in ("a-seed10", "a-seed2", "b-seed0")]
    (tmp_path / "all" / "notes").mkdir()
    assert [path.name for path in run_directories(tmp_path / "all")] == ["a-seed2", "a-seed10", "b-seed0"]
    assert run_directories(made[0]) == [made[0]]
    assert run_directories(tmp_path / "nowhere") == [tmp_path / "nowhere"]
