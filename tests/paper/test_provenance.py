"""Results state what the runs recorded of where they were made, not where somebody writes them up."""

from __future__ import annotations

import json

import pytest

from qafel.paper import ENTRIES
from qafel.paper.measured import EntryRuns
from qafel.paper.outputs import beside_a_fuller_one, provenance, results_folder, write_outputs
from qafel.runs.summary import environment
from qafel.version import __version__
from tests.paper.made_up import falling, made_up, measured

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
    return environment() | {"versions": {k: v for k, v in environment()["versions"].items() if k != "torch"}}


def test_every_file_states_where_the_runs_were_made(tmp_path):
    found = measured(*(made_up(method, falling(1e-3), **ELSEWHERE) for method in METHODS))
    outcome = write_outputs(ENTRY, found, "qafel paper x", tmp_path)
    for name in ("table.md", "table.csv", "index.html"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert f"made with {THERE}." in text, name
        assert f"Results written with qafel {__version__}, Python" in text, name
    claims = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    versions = {"qafel": "0.0.7", "Python": "3.99.1", "numpy": "9.9", "numba": "8.8"}
    assert claims["made_with"] == [{"runs": 3, "versions": versions, "hardware": "96 cores, Abacus"}]
    assert claims["written_with"]["versions"]["qafel"] == __version__
    assert b"qafel 0.0.7" in (tmp_path / "figure.png").read_bytes()
    assert outcome.source.qafel() == "0.0.7"


def test_runs_of_before_say_what_was_not_recorded():
    source = provenance(runs({"qafel_version": __version__}), "")
    assert f"made with qafel {__version__} (machine and other versions not recorded)." in source.sentence()
    assert f"Results written with qafel {__version__}, Python" in source.sentence()
    assert source.of_other_versions() == ""


def test_one_place_is_stated_once_and_several_with_their_runs():
    once = provenance(runs(here(), here()), "").sentence()
    assert once.count("numpy") == 1
    assert "written with" not in once
    both = provenance(runs(ELSEWHERE, here(), here()), "").sentence()
    assert f"made 1 with {THERE}; 2 with qafel {__version__}" in both


def test_a_run_that_went_on_elsewhere_counts_for_both_places():
    source = provenance(runs(here() | {"resumed_from": [ELSEWHERE]}), "")
    assert list(source.made_with.values()) == [1, 1]


def test_runs_of_another_version_are_pointed_out():
    source = provenance(runs(ELSEWHERE, here(), ELSEWHERE), "")
    assert source.of_other_versions().startswith(f"Not made by the present qafel {__version__}: 2 by qafel 0.0.7")
    assert source.of_other_versions() in source.sentence()


def test_torch_is_stated_of_networks_only():
    assert "torch 7.7" in provenance(runs(ELSEWHERE, recipe="cifar10-fedbuff-c100"), "").sentence()
    assert "torch" not in provenance(runs(ELSEWHERE), "").sentence()


def test_settings_are_stated_even_where_they_are_the_defaults(tmp_path):
    found = measured(*(made_up(method, falling(1e-3)) for method in METHODS))
    write_outputs(ENTRY, found, "qafel paper x", tmp_path)
    common = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["settings"]["common"]
    expected = {
        "algorithm.buffer_size": "10",
        "algorithm.client_lr": "2.0",
        "timing.arrivals": "always-training",
        "timing.duration": "half-normal",
        "stop.server_steps": "10000",
    }
    assert expected.items() <= common.items()
    markdown, page = ((tmp_path / name).read_text(encoding="utf-8") for name in ("table.md", "index.html"))
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
    source = provenance(found, "")
    assert (source.each, source.seeds_each()) == (each, words)
    assert ("(1 to 3 for each point)" in source.sentence()) == (each == (1, 3))


def test_a_seed_for_each_curve_is_no_mean():
    found = measured(*(made_up(f"seed {seed}", falling(1e-3), seed) for seed in range(3)))
    assert provenance(found, "").seeds_each() == "3 seeds, one a curve"


def test_quick_and_other_families_have_folders_of_their_own(tmp_path):
    planned = [made_up("", falling(1e-3))[0]]
    assert results_folder(tmp_path, "x", planned, False, None) == tmp_path / "x"
    assert results_folder(tmp_path, "x", planned, True, None) == tmp_path / "x-quick"
    assert results_folder(tmp_path, "x", planned, True, "mushrooms") == tmp_path / "x-mushrooms-quick"
    assert results_folder(tmp_path, "x", planned, False, "cifar10") == tmp_path / "x", "it has no such run"


def test_a_part_does_not_replace_a_fuller_result(tmp_path):
    folder = tmp_path / "x"
    assert beside_a_fuller_one(folder, 1) == folder
    folder.mkdir()
    for content, expected in (('{"runs": 3}', "x-part"), ('{"runs": 2}', "x"), ("{", "x"), ("[]", "x")):
        (folder / "claims.json").write_text(content)
        assert beside_a_fuller_one(folder, 2) == tmp_path / expected, content
