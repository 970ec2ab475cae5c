"""Table I: traits as the runs show them, and what mitigates error."""

from __future__ import annotations

import json

import pytest

from qafel.paper import ENTRIES
from qafel.paper.entry import Extent
from qafel.paper.outputs import write_outputs
from qafel.paper.related import DIRECT, FEDBUFF, HIDDEN, MCM, PLAIN_MCM, QAFEL
from tests.paper.made_up import GONE, by_seed, falling, made_up, measured

RELATED = ENTRIES["related-work"]


TRAITS, MITIGATES, HIDDEN_HELPS, MCM_MITIGATES = RELATED.claims


def test_the_related_works_section_is_cited_for_what_it_says():
    assert {claim.where for claim in ENTRIES["direct-vs-unquantized"].claims} == {"Section I-A"}
    assert HIDDEN_HELPS.where == "Section I-A"


SYNCHRONOUS = {"staleness_max": 0}


METHODS = {
    "FedAvg": SYNCHRONOUS,
    MCM: SYNCHRONOUS | {"upload_bytes": 100},
    PLAIN_MCM: SYNCHRONOUS,
    "FedAsync": {"per_step": 1},
    FEDBUFF: {},
    QAFEL: {"upload_bytes": 100},
    DIRECT: {"per_step": 1, "upload_bytes": 100},
    HIDDEN: {"per_step": 1, "upload_bytes": 100},
}


ENDS = {DIRECT: 2e-3}


def related(ends=ENDS, seeds=(0, 1), **methods):
    """Runs of all methods with the traits that Table I gives them, but for those given."""
    return measured(
        *(
            made_up(method, falling(ends.get(method, 1e-3)), seed, **options | methods.get(method, {}))
            for method, options in METHODS.items()
            for seed in seeds
        )
    )


def test_table_1s_traits_pass():
    assert [claim.verdict(related()).result for claim in RELATED.claims] == ["pass"] * 4


@pytest.mark.parametrize(
    ("method", "trait"),
    [
        ("FedAvg", {"staleness_max": 2}),
        (MCM, {"upload_bytes": 500}),
        ("FedAsync", {"per_step": 10}),
        (FEDBUFF, {"staleness_max": 0}),
        (FEDBUFF, {"upload_bytes": 100}),
        (QAFEL, {"per_step": 1}),
    ],
)
def test_a_trait_other_than_table_1s_fails(method, trait):
    verdict = TRAITS.verdict(related(**{method: trait}))
    assert (verdict.result, verdict.because) == ("fail", f"otherwise for {method}")


@pytest.mark.parametrize(("claim", "method"), [(MITIGATES, QAFEL), (MCM_MITIGATES, MCM)], ids=["QAFeL", "MCM"])
@pytest.mark.parametrize(("level", "expected"), [(0.9e-3, "pass"), (1.2e-3, "pass"), (1.4e-3, "fail")])
def test_error_is_mitigated_if_the_end_is_close_to_the_unquantized_one(claim, method, level, expected):
    assert claim.verdict(related({method: level})).result == expected


def test_mcms_reference_is_mcm_without_quantizers():
    planned = {run.method: run.config for run in RELATED.plan(Extent((0,)))}
    ours, plain = planned[MCM], planned[PLAIN_MCM]
    assert {plain.algorithm.client_quantizer, plain.algorithm.server_quantizer} == {"none"}
    quantizers = {"client_quantizer": "none", "server_quantizer": "none"}
    assert ours.algorithm.model_copy(update=quantizers) == plain.algorithm


def some():
    """Only three methods, each with seeds of its own."""
    pairs = [pair for pair in related().pairs if pair[0].method in (QAFEL, FEDBUFF, HIDDEN)]
    return measured(*(pair for pair in pairs if (pair[0].config.seed == 0) == (pair[0].method == QAFEL)))


@pytest.mark.parametrize(
    ("found", "results"), [(related(), {"pass"}), (some(), {"not comparable"})], ids=["full", "partial"]
)
def test_related_works_outputs_are_written_for_all_runs_and_for_some(found, results, tmp_path):
    write_outputs(RELATED, found, "qafel paper related-work", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert {claim["result"] for claim in json.loads((tmp_path / "claims.json").read_text())["claims"]} == results


@pytest.mark.parametrize(
    ("direct", "hidden", "expected"),
    [
        (falling(8e-3), falling(1e-3), "pass"),
        (GONE, falling(1e-3), "pass"),
        (falling(8e-3), GONE, "fail"),
        (GONE, GONE, "fail"),
    ],
)
def test_a_hidden_state_that_diverges_mitigates_nothing(direct, hidden, expected):
    found = measured(*by_seed(**{DIRECT: (falling(8e-3), direct), HIDDEN: (falling(1e-3), hidden)}))
    assert ENTRIES["related-work"].claims[2].verdict(found).result == expected
