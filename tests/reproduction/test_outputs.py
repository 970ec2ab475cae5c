"""An entry's files, from tiny real runs: each states where its runs were made, not where somebody writes them up."""

from __future__ import annotations

import csv
import json
import re

import pytest

from qafel import __version__
from qafel.search import RunSpec, make_runs
from reproduction.comparison import EntryRuns
from reproduction.entries import ENTRIES
from reproduction.entry import Change, Extent, Request, configuration
from reproduction.outputs import Provenance, beside_larger, read_runs, results_folder
from reproduction.store import Store
from tests.browser import needs_browser, open_in_browser, plots_in
from tests.reproduction.made_up import falling, made_up, measured, result_of, write_outputs
from tests.search.test_runner import Recorder

TINY = Change("tiny", ("stop.uploads=400", 'evaluation.unit="uploads"', "evaluation.every=100"))


COMMAND = "python -m reproduction qafel-vs-direct-qsgd --seeds 2"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The QSGD figure from runs of forty steps."""
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    planned = []
    for run in entry.plan(Extent((0, 1))):
        recipe = run.config.name.removesuffix("-every100")
        planned.append(RunSpec(run.method, configuration(recipe, run.config.seed, TINY)))
    folder = tmp_path_factory.mktemp("paper")
    assert not make_runs(planned, folder / "runs", Recorder(), executor="inline")
    found = read_runs(planned, Store(folder / "runs"), Request())
    return write_outputs(entry, found, COMMAND, folder / entry.name)


def test_all_files_are_there_and_state_the_command(tiny):
    names = sorted(path.name for path in tiny.folder.iterdir())
    assert names == ["claims.json", "figure.pdf", "figure.png", "index.html", "table.csv", "table.md"]
    for name in ("claims.json", "index.html", "table.csv", "table.md"):
        text = (tiny.folder / name).read_text()
        for word in (COMMAND, "numpy", "cores", "server_quantizer", "direct, server 3 bits"):
            assert word in text, (name, word)
    assert COMMAND.encode() in (tiny.folder / "figure.png").read_bytes()
    assert (tiny.folder / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_the_csv_has_a_row_per_method_and_all_digits(tiny):
    lines = (tiny.folder / "table.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    assert [row["method"] for row in rows] == ["FedBuff, unquantized", "QAFeL, server 3 bits", "direct, server 3 bits"]
    assert all(float(row["final f(x) − f*, min"]) <= float(row["final f(x) − f*"]) for row in rows)
    assert rows[0]["final f(x) − f*, seeds"] == "2"
    assert float(rows[0]["uploaded"]) == 400 * 516


def test_the_markdown_can_be_pasted(tiny):
    text = (tiny.folder / "table.md").read_text()
    assert text.startswith("## QAFeL against direct quantization: QSGD\n")
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(tables) == 2
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.parametrize(
    ("qafel", "direct", "expected"),
    [
        (falling(1e-3), falling(8e-3), ["pass", "pass"]),
        (falling(8e-3), falling(1e-3), ["fail", "fail"]),
        (falling(1e-3), falling(1e-3), ["pass", "fail"]),
    ],
)
def test_claims_are_decided_by_the_runs(qafel, direct, expected):
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    metrics = {"FedBuff, unquantized": falling(1e-3), "QAFeL, server 3 bits": qafel, "direct, server 3 bits": direct}
    pairs = [made_up(*pair, seed) for pair in metrics.items() for seed in (0, 1)]
    outcome = result_of(entry, measured(*pairs), COMMAND)
    claims = outcome.claims()["claims"]
    assert [claim["result"] for claim in claims] == expected
    assert all(re.search(r"\d", claim["because"]) for claim in claims)
    marks = {"pass": "✓ pass", "fail": "✗ fail"}
    found = re.findall(r'<tr><th scope="row">(. \w+)</th>', outcome.page())
    assert found[:2] == [marks[result] for result in expected]
    assert re.findall(r"\| \*\*(\w+)\*\* \|", outcome.markdown("", "", "")) == expected


def test_text_in_the_page_cannot_become_markup():
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    methods = ("FedBuff, unquantized", "QAFeL, server 3 bits", "direct, server 3 bits")
    found = measured(*(made_up(method, falling(1e-3), seed) for method in methods for seed in (0, 1)))
    assert "<script>alert(1)" not in result_of(entry, found, "<script>alert(1)</script>").page()


@pytest.mark.parametrize("fine", [True, False])
def test_a_run_that_diverges_at_once_leaves_the_figure_standing(tmp_path, fine):
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    gone = {"metric": [0.68], "status": "diverged"}
    found = measured(
        made_up("FedBuff, unquantized", **({"metric": falling(1e-3)} if fine else gone)),
        made_up("QAFeL, server 3 bits", **gone),
        made_up("direct, server 3 bits", [0.68, float("nan")], status="diverged"),
    )
    write_outputs(entry, found, COMMAND, tmp_path)
    assert (tmp_path / "figure.png").exists()


@needs_browser
def test_the_page_draws_every_curve_and_the_console_is_silent(tiny, tmp_path):
    dom, console = open_in_browser(tiny.folder / "index.html", tmp_path / "profile")
    assert console == []
    assert 'data-drawn="2"' in dom
    assert '<div id="problem" role="alert"></div>' in dom
    plots = plots_in(dom)
    assert {key: len(re.findall(r'<path class="js-line"', plot)) >= 3 for key, plot in plots.items()} == {
        "steps": True,
        "bytes": True,
    }


ENTRY = ENTRIES["qafel-vs-direct-qsgd"]


METHODS = ("FedBuff, unquantized", "QAFeL, server 3 bits", "direct, server 3 bits")


ELSEWHERE = {
    "qafel_version": "0.0.7",
    "versions": {"Python": "3.99.1", "numpy": "9.9", "numba": "8.8", "torch": "7.7"},
    "hardware": {"cores": 96, "processor": "Abacus"},
}


THERE = "qafel 0.0.7, Python 3.99.1, numpy 9.9, numba 8.8 on 96 cores, Abacus"


def runs(*summaries, recipe="mushrooms-fedbuff") -> EntryRuns:
    """A run of FedBuff for each summary, with seeds 0, 1, …"""
    return measured(
        *(made_up(METHODS[0], falling(1e-3), seed, recipe=recipe, **found) for seed, found in enumerate(summaries))
    )


def here():
    return {**ELSEWHERE, "qafel_version": __version__}


def test_every_file_states_where_the_runs_were_made(tmp_path):
    found = measured(*(made_up(method, falling(1e-3), **ELSEWHERE) for method in METHODS))
    outcome = write_outputs(ENTRY, found, "python -m reproduction x", tmp_path)
    for name in ("table.md", "table.csv", "index.html"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert f"Made with {THERE}." in text, name
    claims = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    versions = {"qafel": "0.0.7", "Python": "3.99.1", "numpy": "9.9", "numba": "8.8"}
    assert claims["made_with"] == [{"runs": 3, "versions": versions, "hardware": "96 cores, Abacus"}]
    assert b"qafel 0.0.7" in (tmp_path / "figure.png").read_bytes()
    assert outcome.source.qafel_versions() == "0.0.7"


def test_runs_of_before_say_what_was_not_recorded():
    source = Provenance("", runs({"qafel_version": __version__}))
    assert f"Made with qafel {__version__} (machine and other versions not recorded)." in source.sentence()
    assert source.of_other_versions() == ""


def test_one_place_is_stated_once_and_several_with_their_runs():
    once = Provenance("", runs(here(), here())).sentence()
    assert once.count("numpy") == 1
    both = Provenance("", runs(ELSEWHERE, here(), here())).sentence()
    assert f"Made 1 with {THERE}; 2 with qafel {__version__}" in both


def test_a_run_that_went_on_elsewhere_counts_for_both_places():
    source = Provenance("", runs(here() | {"resumed_from": [ELSEWHERE]}))
    assert list(source.made_with.values()) == [1, 1]


def test_runs_of_another_version_are_pointed_out():
    source = Provenance("", runs(ELSEWHERE, here(), ELSEWHERE))
    assert source.of_other_versions().startswith(f"Runs of another version than {__version__}: 2 by qafel 0.0.7")
    assert source.of_other_versions() in source.sentence()


def test_torch_is_stated_of_networks_only():
    assert "torch 7.7" in Provenance("", runs(ELSEWHERE, recipe="cifar10-fedbuff-c100")).sentence()
    assert "torch" not in Provenance("", runs(ELSEWHERE)).sentence()


def test_settings_are_stated_even_where_they_are_the_defaults():
    outcome = result_of(ENTRY, measured(*(made_up(method, falling(1e-3)) for method in METHODS)), COMMAND)
    common = outcome.claims()["settings"]["common"]
    expected = {
        "algorithm.buffer_size": "10",
        "algorithm.client_lr": "2.0",
        "timing.arrivals": "always-training",
        "timing.duration": "half-normal",
        "stop.server_steps": "10000",
    }
    assert expected.items() <= common.items()
    markdown, page = outcome.markdown("", "", ""), outcome.page()
    for key, value in expected.items():
        assert f" {key.partition('.')[2]} = {value}" in markdown
        assert f'<th scope="row">{key}</th><td class="text">{value}</td>' in page
    assert markdown.count("[algorithm]") == 1


@pytest.mark.parametrize(
    ("seeds", "each", "words"),
    [
        ((1, 1), (1, 1), "1 seed"),
        ((3, 3), (3, 3), "3 seeds: mean and range"),
        ((3, 1), (1, 3), "1 to 3 seeds: mean and range"),
    ],
)
def test_seeds_are_counted_at_each_point(seeds, each, words):
    found = measured(
        *(
            made_up(METHODS[0], falling(1e-3), seed, {"concurrency": place})
            for place, count in enumerate(seeds)
            for seed in range(count)
        )
    )
    source = Provenance("", found)
    assert (source.seeds_per_point, source.seeds_in_figure()) == (each, words)
    assert ("(1 to 3 per point)" in source.sentence()) == (each == (1, 3))


def test_a_seed_for_each_curve_is_no_mean():
    found = measured(*(made_up(f"seed {seed}", falling(1e-3), seed) for seed in range(3)))
    assert Provenance("", found).seeds_in_figure() == "3 seeds, one per curve"


def test_quick_and_other_families_have_folders_of_their_own(tmp_path):
    planned = [made_up("", falling(1e-3))[0]]
    assert results_folder(tmp_path, "x", planned, Request()) == tmp_path / "x"
    assert results_folder(tmp_path, "x", planned, Request(quick=True)) == tmp_path / "x-quick"
    assert (
        results_folder(tmp_path, "x", planned, Request(quick=True, family="mushrooms"))
        == tmp_path / "x-mushrooms-quick"
    )
    assert results_folder(tmp_path, "x", planned, Request(family="cifar10")) == tmp_path / "x", "it has no such run"
    assert results_folder(tmp_path, "x", planned, Request(uploads=300)) == tmp_path / "x-u300"


def test_a_part_does_not_replace_a_fuller_result(tmp_path):
    folder = tmp_path / "x"
    assert beside_larger(folder, 1) == folder
    folder.mkdir()
    for content, expected in (('{"runs": 3}', "x-part"), ('{"runs": 2}', "x"), ("{", "x"), ("[]", "x")):
        (folder / "claims.json").write_text(content)
        assert beside_larger(folder, 2) == tmp_path / expected, content
