"""Every entry's runs can be configured, under names that tell them apart; runs that are missing decide no claim."""

from __future__ import annotations

import pytest

from qafel.errors import ConfigError
from qafel.search import RunSpec
from reproduction.bits import BITS
from reproduction.convex import LOCAL_STEPS
from reproduction.entries import ENTRIES, entry_named
from reproduction.entry import Change, Extent, Request, configuration
from reproduction.methods import PILOT_SEED
from reproduction.neural import DIRECT, FEDASYNC, FEDASYNC_DIRECT, FEDBUFF, QAFEL
from tests.reproduction.made_up import falling, made_up, measured

ISSUED = (
    "direct-vs-unquantized",
    "qafel-vs-direct-qsgd",
    "qafel-vs-direct-topk",
    "local-steps",
    "cifar10",
    "celeba",
    "shakespeare",
    "seeds",
    "bits",
    "related-work",
    "rate",
    "pareto",
    "methods",
    "targets",
    "pareto-cifar10",
    "downlink-cifar10",
    "downlink-mushrooms",
)


EXTENTS = {
    "full": Extent(),
    "quick": Extent((0,), quick=True),
    "all methods": Extent((0, 1), all_methods=True),
    "all methods, quick": Extent((0,), quick=True, all_methods=True),
}


def test_every_figure_and_table_has_an_entry():
    assert set(ENTRIES) == set(ISSUED)


@pytest.mark.parametrize("extent", EXTENTS.values(), ids=EXTENTS)
@pytest.mark.parametrize("name", ISSUED)
def test_every_entrys_runs_can_be_configured(name, extent):
    runs = ENTRIES[name].plan(extent)
    assert runs
    assert len({run.folder for run in runs}) == len(runs)
    assert {run.config.seed for run in runs} >= (set(extent.seeds) if name != "targets" else {PILOT_SEED})


def test_no_two_configurations_share_a_folder():
    """Across entries and scales: or they would replace each other's runs."""
    seen = {}
    for entry in ENTRIES.values():
        for extent in EXTENTS.values():
            for run in entry.plan(extent):
                assert seen.setdefault(run.folder, run.config) == run.config


def test_entries_share_their_runs():
    folders = {name: {run.folder for run in ENTRIES[name].plan(Extent())} for name in ISSUED}
    assert len(folders["direct-vs-unquantized"] & folders["qafel-vs-direct-qsgd"]) == 6
    assert folders["seeds"] < folders["shakespeare"]
    assert folders["pareto"] & folders["related-work"]


def seeds_of(runs):
    """How many seeds each method is run with."""
    return {method: sum(run.method == method for run in runs) for method in dict.fromkeys(run.method for run in runs)}


def test_all_methods_are_run_on_a_network_and_the_two_that_matter_most_with_more_seeds():
    runs = ENTRIES["methods"].plan(Extent())
    again = {f"{method}, FedBuff's steps": 3 for method in (FEDASYNC, FEDASYNC_DIRECT)}
    assert seeds_of(runs) == {FEDBUFF: 5, QAFEL: 5, DIRECT: 3, FEDASYNC: 3, FEDASYNC_DIRECT: 3} | again
    cifar10 = {run.folder for run in ENTRIES["cifar10"].plan(Extent())}
    assert {run.folder for run in runs if run.method in (FEDBUFF, QAFEL)} < cifar10, "they are run once"
    assert set(seeds_of(ENTRIES["methods"].plan(Extent(family="celeba-part"))).values()) == {3}
    small = ENTRIES["methods"].plan(Extent((0, 1), family="shakespeare-small"))
    assert (set(seeds_of(small).values()), {run.at["concurrency"] for run in small}) == ({2}, {10})


@pytest.mark.parametrize("name", ["cifar10", "methods", "local-steps"])
def test_who_asks_for_a_number_of_seeds_gets_no_others(name):
    entry = {name: ENTRIES[name]}
    assert {run.config.seed for run in Request(seeds=1).all_runs(entry)} == {0}
    assert {run.config.seed for run in Request().all_runs(entry)} == {0, 1, 2, 3, 4}


def test_no_run_of_a_network_goes_on_for_ever():
    """A method that stalls ends after three times FedBuff's uploads, here as in Table III."""
    for name in ("methods", "bits"):
        runs = ENTRIES[name].plan(Extent(family="cifar10"))
        stalling = [run for run in runs if run.method not in (FEDBUFF, QAFEL, "QAFeL (4, 4)")]
        assert {run.config.stop.uploads for run in stalling} == {120_000}
    for family in ("celeba-part", "shakespeare-small"):
        assert max(run.config.stop.uploads for run in ENTRIES["methods"].plan(Extent(family=family))) <= 60_000


def test_a_part_has_table_3s_diagonal_unless_all_is_asked_for():
    diagonal = ENTRIES["bits"].plan(Extent((0,), family="celeba-part"))
    assert [run.at["client"] for run in diagonal] == [run.at["server"] for run in diagonal] == [8, 4, 2, 32]
    assert len(ENTRIES["bits"].plan(Extent((0,), all_methods=True, family="celeba-part"))) == 10


def test_runs_can_be_ended_by_uploads_under_a_name_that_says_so():
    runs = ENTRIES["seeds"].plan(Extent(uploads=700))
    assert {(run.config.stop.uploads, run.config.evaluation.every) for run in runs} == {(700, 87)}
    assert runs[0].folder == "shakespeare-fedbuff-direct-c500-u700-seed0"
    request = Request(uploads=700)
    assert request.command("seeds") == "python -m reproduction seeds --uploads 700"
    assert {run.folder for run in request.all_runs({"seeds": ENTRIES["seeds"]})} == {run.folder for run in runs}


def test_the_papers_sweeps_are_complete():
    runs = ENTRIES["local-steps"].plan(Extent())
    assert [run.config.algorithm.local_steps for run in runs[::5]] == list(LOCAL_STEPS) == [1, 2, 4, 8, 16, 32]
    assert set(seeds_of(runs).values()) == {5}
    pairs = {(run.at["client"], run.at["server"]) for run in ENTRIES["bits"].plan(Extent((0,)))}
    assert pairs == {(client, server) for client in BITS for server in BITS} | {(32, 32)}
    for name in ("cifar10", "celeba", "shakespeare"):
        assert {run.at["concurrency"] for run in ENTRIES[name].plan(Extent((0,)))} == {100, 500, 1000}


def test_work_is_uploads_and_what_one_costs():
    def work(recipe, *settings):
        return RunSpec("", configuration(recipe, 0, Change("x", settings))).work

    assert work("mushrooms-fedbuff", "stop.server_steps=500") == 500 * 10
    assert work("mushrooms-fedbuff", "stop.server_steps=500", "stop.uploads=70") == 70
    assert work("cifar10-fedbuff-c100", "stop.uploads=70") > 10 * 70
    assert work("shakespeare-fedbuff-c100", "stop.uploads=70") > 10 * work("cifar10-fedbuff-c100", "stop.uploads=70")


def test_an_unknown_entry_or_family_is_one_sentence():
    with pytest.raises(ConfigError, match="did you mean 'local-steps'"):
        entry_named("local-step")
    with pytest.raises(ConfigError, match="nothing"):
        ENTRIES["cifar10"].plan(Extent(family="nothing"))
    with pytest.raises(ConfigError, match="another task than celeba"):
        ENTRIES["celeba"].plan(Extent(family="cifar10"))


def test_runs_that_are_missing_compare_nothing_and_pass_nothing():
    """For every entry: one made-up run of another method fulfils no claim by its being alone."""
    for name, entry in ENTRIES.items():
        if name == "seeds":
            continue
        at = {"concurrency": 100.0, "client": 1, "server": 1}
        found = measured(made_up("another method", falling(1e-3), at=at, recipe="cifar10-fedbuff-c100", clients=5000))
        for claim in entry.claims:
            assert claim.verdict(found).result == "not comparable", (name, claim.text)
