"""One odd run folder harms no other: its fault is on its own card or line, and nothing hangs or breaks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from qafel.cli.report import _load
from qafel.cli.status import _plain, _screen
from qafel.config import load_recipe
from qafel.deployment.status import RunStatus
from qafel.errors import DataError
from qafel.report import render_report
from qafel.runs.directory import CHECKPOINT, state_of
from qafel.runs.live import LiveState
from qafel.simulator.run import sound_checkpoint
from qafel.watch import Board, page
from qafel.watch.sources import Folders, Reported, Watched
from tests.browser import charts_in
from tests.command import qafel_here
from tests.odd_runs import FILES, KINDS, VALUES, change_value, in_time, keys_of, may_read_everything, replace_file
from tests.watch.states import live_state

pytestmark = pytest.mark.filterwarnings("error")
needs_permissions = pytest.mark.skipif(may_read_everything(), reason="the superuser may read everything")
kinds = [pytest.param(kind, marks=needs_permissions if kind == "without permission" else ()) for kind in KINDS]
SOUND_AS = {
    "summary.json": {"a link to nowhere"},
    "metrics.jsonl": {"empty", "newlines", "a link to nowhere"},
    "live.json": {"a link to nowhere"},
    "config.toml": {"empty", "newlines"},
}
"""What is the same as no file yet, or as an empty one."""


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    with in_time():
        yield


class Here:
    """A folder's runs, looked up in this thread, which a signal can break off."""

    note = ""

    def __init__(self, folder: Path) -> None:
        self._folders = Folders([folder])

    async def look(self) -> Sequence[Watched]:
        return self._folders.look_now()


def shown(folder: Path) -> tuple[dict[str, str], dict[tuple[str, str], object]]:
    """What a browser hears of the runs in a folder: cards and curves by name."""

    async def hear() -> list[str]:
        board = Board([Here(folder)], every_s=0.0)
        await board.page()
        stream = board.events()
        return [(await anext(stream)).decode() for _ in range(8)]

    told = [found.groups() for event in asyncio.run(hear()) if (found := re.search(r"event: (\w+)\ndata: (.*)", event))]
    figures, charts = (json.loads(dict(told)[name]) for name in ("figures", "charts"))
    assert "<img" not in figures
    cards = re.findall(r'<article class="card run .*?</article>', figures, re.DOTALL)
    curves = {(chart["key"], trace["name"]): (trace["x"], trace["y"]) for chart in charts for trace in chart["traces"]}
    return {re.findall(r"<h3>(.*?)</h3>", card)[0]: re.sub("#[0-9A-F]{6}", "", card) for card in cards}, curves


@pytest.fixture
def folder(make_run, tmp_path: Path) -> Path:
    make_run("healthy", folder="all/healthy")
    return tmp_path / "all"


def odd_cards(folder: Path) -> dict[str, str]:
    """The cards of all runs but the healthy one, which is shown as if it were alone."""
    alone, its_curves = shown(folder / "healthy")
    cards, curves = shown(folder)
    assert cards.pop("healthy") == alone["healthy"]
    rows = ("parts",)  # in which runs are numbered
    assert {key: curve for key, curve in its_curves.items() if key[0] not in rows and curves[key] != curve} == {}
    return cards


def problem_in(card: str) -> str:
    found = re.search(r'<p class="problem">(.*?)</p>', card)
    return found[1] if found else ""


def make_odd(make_run, file: str, name: str = "odd") -> Path:
    """A run that has the file, to be changed."""
    path: Path = make_run(name, folder=f"all/{name}", finished=file != "live.json")
    if file == "live.json":
        (path / file).write_bytes(live_state(metric=0.5).to_bytes())
    return path


def test_an_unreadable_file_is_reported_on_its_own_card_and_line(make_run, folder, monkeypatch) -> None:
    monkeypatch.setattr(page, "_MOST", 1000)
    chosen = [kind for kind in KINDS if kind != "without permission" or not may_read_everything()]
    places = {f"odd{at}-{file}": (kind, file) for at, kind in enumerate(chosen) for file in FILES}
    for name, (kind, file) in places.items():
        replace_file(make_odd(make_run, file, name) / file, kind)
    cards, out = odd_cards(folder), folder.parent / "page.html"
    _, complaint = qafel_here("report", folder, "--out", out)
    for name, (kind, file) in places.items():
        card = next(card for card in cards.values() if name in card)
        reported = file in problem_in(card)
        assert reported == (kind not in SOUND_AS[file]), name
        left_out = name in complaint
        assert left_out == (file != "live.json" and (reported or file == "metrics.jsonl")), complaint
    assert "healthy" in out.read_text()


@pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("value", VALUES)
def test_an_odd_value_harms_no_other_run(make_run, folder: Path, value: str, share: int, monkeypatch) -> None:
    """Each key, or a share of the keys, has a run of its own, on one live page and in one report."""
    monkeypatch.setattr(page, "_MOST", 1000)
    places = [(file, key) for file in FILES for key in keys_of(make_odd(make_run, file, f"model-{file}"), file)]
    for file, key in places[[*VALUES].index(value) % share :: share]:
        change_value(make_odd(make_run, file, f"odd-{file}-{key}"), file, key, value)
    assert odd_cards(folder)
    runs, left_out = _load([folder])
    charts_in(render_report(runs, left_out=[str(path) for path, _ in left_out]))
    assert "healthy" in {run.name for run in runs}


def test_an_odd_name_of_a_folder_harms_no_other_run(make_run, folder: Path) -> None:
    names = (b"\xff\xfe", b"\x1b[2J", b"a\nb", b"<img src=x>", b"x" * 255, b"9" * 250)
    for name in names:
        odd = make_run("odd", folder="all/odd", name="", finished=False)
        (odd / "live.json").write_bytes(b"[]")
        odd.rename(os.fsdecode(os.path.join(os.fsencode(folder), name)))
    cards = odd_cards(folder)
    assert len(cards) == len(names)
    assert all("live.json" in problem_in(card) for card in cards.values())
    out = folder.parent / "page.html"
    qafel_here("report", folder, "--out", out)
    assert "healthy" in out.read_text(encoding="utf-8")


@needs_permissions
@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
def test_a_folder_that_may_not_be_entered_harms_no_other_run(make_run, folder: Path, mode: int) -> None:
    odd = make_run("odd", folder="all/odd")
    odd.chmod(mode)
    try:
        odd_cards(folder)
        assert len(_load([folder])[0]) == 1 + (mode == 0o100)
    finally:
        odd.chmod(0o700)


def test_a_fault_stays_on_the_card_until_it_is_repaired(make_run) -> None:
    path = make_run("odd", folder="all/odd", finished=False)
    config = (path / "config.toml").read_bytes()
    (path / "config.toml").write_bytes(b"[[[")
    followed = Folders([path.parent])
    assert ["config.toml" in followed.look_now()[0].problem for _ in range(3)] == [True] * 3
    (path / "config.toml").write_bytes(config)
    assert [followed.look_now()[0].problem for _ in range(2)] == ["", ""]


RECIPE = ["mushrooms-fedbuff", "--set", "stop.server_steps=2", "--quiet"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("made") / "run"
    qafel_here("run", *RECIPE, "--out", path)
    return path


@pytest.mark.parametrize("kind", kinds)
@pytest.mark.parametrize("file", ["config.toml", "summary.json", str(CHECKPOINT)])
def test_a_run_is_not_taken_for_finished_and_not_resumed_where_a_file_is_odd(tmp_path, finished, file, kind) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    replace_file(run / file, kind)
    config = load_recipe("mushrooms-fedbuff", ["stop.server_steps=2"])
    assert (state_of(run, config) == "finished") == (file == str(CHECKPOINT))
    if file == str(CHECKPOINT):
        with pytest.raises(DataError):
            sound_checkpoint(run)


@pytest.mark.parametrize("kind", kinds)
def test_a_run_does_not_start_from_what_is_not_a_model(tmp_path, kind) -> None:
    replace_file(tmp_path / "model.safetensors", kind)
    qafel_here("run", *RECIPE, "--start-from", tmp_path / "model.safetensors", "--out", tmp_path / "new", expect=2)


SWEEP = ["sweep", *RECIPE, "--seeds", 2, "--workers", 1]


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("made") / "sweep"
    qafel_here(*SWEEP, "--out", path)
    return path


@pytest.mark.parametrize("kind", ["a pipe", "binary", "deep TOML"])
@pytest.mark.parametrize("file", ["metrics.jsonl", "summary.json", "config.toml"])
def test_a_sweep_reports_an_odd_run_and_makes_the_others(tmp_path: Path, swept: Path, file: str, kind: str) -> None:
    out = shutil.copytree(swept, tmp_path / "sweep")
    replace_file(out / "mushrooms-fedbuff-seed0" / file, kind)
    shown, complaint = qafel_here(*SWEEP, "--out", out, expect=1 if file == "metrics.jsonl" else 0)
    assert ("metrics.jsonl" in complaint) == (file == "metrics.jsonl")
    assert "mushrooms-fedbuff" in shown


def states_with(value: str) -> dict[str, bytes]:
    """What a broker may hold in place of a run's state: each key with an odd value."""
    sound = json.loads(LiveState(status="running", version=12, at=1.0, metric=0.5, buffer_size=10).to_bytes())
    plain = {key: json.dumps(entry) for key, entry in sound.items()}
    return {
        key: "{{{}}}".format(
            ", ".join(f'"{name}": {entry}' for name, entry in (plain | {key: VALUES[value]}).items())
        ).encode()
        for key in sound
    }


def shown_in_80_columns(runs: list[RunStatus]) -> list[str]:
    console = Console(width=80)
    with console.capture() as written:
        console.print(_screen(runs))
    return written.get().splitlines()


@pytest.mark.parametrize("value", VALUES)
def test_an_odd_state_at_the_broker_harms_no_other_run(value: str) -> None:
    """Neither the lines of `qafel status` nor the live page: it is an odd line, or not genuine."""
    most = 2**64 - 1
    counts = {"server_steps": most, "uploads": most, "upload_bytes_total": most, "broadcast_bytes_total": most}
    large = LiveState(
        status="running",
        at=0.0,
        version=most,
        **counts,
        training={"1": most},
        updates_per_s=1e150,
        metric=-1e149,
        problem="!",
    )
    healthy = LiveState(status="running", at=0.0, version=12)
    found = [RunStatus("healthy-run", healthy, 0, 1.0), RunStatus("large", large, most, 1e150)]
    for key, data in states_with(value).items():
        with suppress(DataError):
            found.append(RunStatus(f"odd-{key}", LiveState.from_bytes(data), 0, 1.0))
    written = ["".join(shown_in_80_columns([one])) for one in found]
    table = shown_in_80_columns([*found, *found])
    assert max(map(len, table)) <= 80
    assert sum(line.startswith("healthy-run ") for line in table) == 2, "no cell of another run takes its place"
    assert "\x1b" not in "".join([*written, *table])
    json.dumps(_plain(found), allow_nan=False)
    told = Reported("nats://here")
    for one in found:
        told.report(one.run, one.state, one.silent_s)
    for one in asyncio.run(told.look()):
        page.Painter().picture([one]).whole_page().encode()
