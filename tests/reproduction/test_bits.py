"""Table III's claims: sizes, uploads and bytes for pairs of bits."""

from __future__ import annotations

import numpy as np
import pytest

from qafel.errors import ConfigError
from reproduction.bits import PUBLISHED_KB, PUBLISHED_UPLOADS
from reproduction.entries import ENTRIES
from reproduction.entry import Extent
from reproduction.neural import FEDBUFF
from tests.reproduction.made_up import made_up, measured, rising, verdicts


def bits(uploads, task="celeba", seeds=(0, 1), clients=9343):
    """Runs whose accuracy meets 0.9 after so many uploads, for each pair of bits."""
    sizes = {8: 29_988, 4: 15_444, 2: 8_172, 32: 117_192}
    pairs = []
    for (client, server), needed in uploads.items():
        method = FEDBUFF if client == 32 else f"QAFeL ({client}, {server})"
        accuracy = np.linspace(0.5, 0.5 + 0.4 * 1000 / needed, 101)
        at = {"client": float(client), "server": float(server)}
        options = {"recipe": f"{task}-fedbuff-c100", "target": 0.9, "metric_goal": "max", "clients": clients}
        options |= {"upload_bytes": sizes[client], "broadcast_bytes": sizes[server]}
        pairs += [made_up(method, accuracy, seed, at, **options) for seed in seeds]
    return measured(*pairs)


PAIRS = [(client, server) for client in (8, 4, 2) for server in (8, 4, 2)]


GOOD = {pair: 300 if pair[0] > 2 else 600 for pair in PAIRS} | {(32, 32): 300}


def test_table_3s_claims_follow_the_uploads_of_each_pair():
    sizes, table, *rest = verdicts(ENTRIES["bits"], bits(GOOD, seeds=(0, 1, 2)))
    assert (sizes, table, rest) == ("by construction", "fail", ["pass"] * 7), "300 uploads are not the table's 27,600"
    bad = {pair: {8: 300, 4: 850, 2: 990}[pair[1]] if pair[0] == 2 else 900 for pair in PAIRS} | {(32, 32): 100}
    sizes, table, *rest = verdicts(ENTRIES["bits"], bits(bad, seeds=(0, 1, 2)))
    assert (sizes, rest) == ("by construction", ["fail"] * 7)
    assert verdicts(ENTRIES["bits"], bits(GOOD, "cifar10"))[:2] == ["not comparable"] * 2


def test_table_3_itself_does_not_fail_and_a_part_of_celeba_does_not_decide_it():
    claim = ENTRIES["bits"].claims[1]
    published = {pair: mean * 1000 for pair, (mean, _) in PUBLISHED_UPLOADS.items()}
    pairs = [
        made_up(planned.method, run.column("metric"), planned.config.seed, dict(planned.at), "celeba-fedbuff-c100",
                per_step=1000, target=0.9, metric_goal="max", clients=9343)
        for planned, run in bits({pair: uploads / 100 for pair, uploads in published.items()}, seeds=(0, 1, 2)).pairs
    ]  # fmt: skip
    itself = claim.verdict(measured(*pairs))
    assert itself.result == "undecided", "its own standard deviations are up to half the mean, of three seeds"
    assert "1 [0.6" in itself.because
    alone = claim.verdict(measured(*(pair for pair in pairs if pair[0].config.seed == 0)))
    assert (alone.result, "3 seeds" in alone.because) == ("not comparable", True)
    assert "895 here" in claim.verdict(bits(GOOD, clients=895)).because


def test_bits_are_compared_on_the_seeds_that_both_have():
    """FedBuff's third seed, which is slow, has no partner."""
    slow = bits({(32, 32): 1000}, seeds=(2,)).pairs
    worse = GOOD | {(4, 4): 600}
    claim = next(claim for claim in ENTRIES["bits"].claims if "4 bits both ways" in claim.text)
    assert claim.verdict(measured(*bits(worse).pairs, *slow)).result == "fail"


def test_the_diagonal_alone_decides_what_it_can():
    """On a part, where three pairs were run."""
    some = {pair: needed for pair, needed in GOOD.items() if pair[0] == pair[1]}
    results = dict(
        zip((claim.text for claim in ENTRIES["bits"].claims), verdicts(ENTRIES["bits"], bits(some)), strict=True)
    )
    decided = [text for text, result in results.items() if result == "pass"]
    assert [text.split(" ")[0] for text in decided] == ["4", "…", "QAFeL"]
    assert list(results.values()).count("not comparable") == 5


def test_pairs_of_bits_that_the_seeds_cannot_tell_apart_are_undecided():
    mixed = bits(GOOD, seeds=(0,)).pairs + bits(GOOD | {(2, 8): 310, (8, 2): 590}, seeds=(1,)).pairs
    claim = next(claim for claim in ENTRIES["bits"].claims if "matters more" in claim.text)
    assert claim.verdict(measured(*mixed)).result == "undecided"


def test_pairs_that_never_met_the_target_leave_open_what_is_claimed_of_all():
    slow = GOOD | {pair: 1500 for pair in PAIRS if pair[0] == 2}
    verdicts_of = {
        " ".join(claim.text.split(" ")[:2]): claim.verdict(bits(slow)) for claim in ENTRIES["bits"].claims[2:]
    }
    assert {text: verdict.result for text, verdict in verdicts_of.items()} == {
        "4 bits": "pass", "… and": "pass", "Fewer bits": "undecided", "From 4": "pass", "… resulting": "fail",
        "The client's": "pass", "QAFeL generally": "undecided",
    }  # fmt: skip
    assert "6 pairs of bits" in verdicts_of["QAFeL generally"].because
    assert "(2, 8), (2, 4), (2, 2)" in verdicts_of["QAFeL generally"].because
    assert "2 client bits" in verdicts_of["Fewer bits"].because


def test_on_celeba_the_setting_is_the_published_one():
    for family in ("celeba", "celeba-part"):
        runs = ENTRIES["bits"].plan(Extent((0,), family=family))
        settings = {(run.config.algorithm.server_lr, run.config.algorithm.staleness_exponent) for run in runs}
        assert (settings, {run.config.timing.rate for run in runs}) == ({(1000.0, 0.0)}, {100.0})


def test_on_cifar10_bits_alone_differ_and_runs_are_shared():
    runs = ENTRIES["bits"].plan(Extent((0,), family="cifar10"))
    left_out = {"name", "description", "stop"}
    quantizers = {"method", "client_quantizer", "server_quantizer"}
    settings = [run.config.model_dump(exclude=left_out | {"algorithm"}) for run in runs]
    algorithms = [run.config.algorithm.model_dump(exclude=quantizers) for run in runs]
    assert len(runs) == 10
    assert all(found == settings[0] for found in settings)
    assert all(found == algorithms[0] for found in algorithms)
    others = {run.folder for run in ENTRIES["cifar10"].plan(Extent((0,)))}
    assert [run.method for run in runs if run.folder in others] == ["QAFeL (4, 4)", "FedBuff"]
    ends = {run.method: run.config.stop.uploads for run in runs if run.folder not in others}
    assert set(ends.values()) == {120_000}


def test_a_stated_end_replaces_the_entrys_own():
    runs = ENTRIES["bits"].plan(Extent((0,), family="cifar10", uploads=500))
    assert {run.config.stop.uploads for run in runs} == {500}
    assert all(run.folder.count("-u") == 1 for run in runs)


def test_bits_are_not_varied_on_shakespeare():
    with pytest.raises(ConfigError, match="celeba or cifar10"):
        ENTRIES["bits"].plan(Extent((0,), family="shakespeare"))


def uploads_of(kilobytes, seed=0, down=None):
    """A CelebA run per width, with payloads of this size up, and down unless it says otherwise."""
    return [
        made_up(
            f"{bits} bits",
            rising(0.9),
            seed,
            {"client": float(bits), "server": float(bits)},
            "celeba-fedbuff-c100",
            upload_bytes=round(1000 * size) + 64,
            broadcast_bytes=round(1000 * (size if down is None else down[bits])) + 64,
        )
        for bits, size in kilobytes.items()
    ]


def test_four_sizes_take_four_widths_and_every_run():
    claim = ENTRIES["bits"].claims[0]
    assert claim.verdict(measured(*uploads_of(PUBLISHED_KB))).result == "by construction"
    for bits in PUBLISHED_KB:
        others = {width: size for width, size in PUBLISHED_KB.items() if width != bits}
        verdict = claim.verdict(measured(*uploads_of(others)))
        assert (verdict.result, f"client {bits}" in verdict.because) == ("not comparable", True)
    wrong = uploads_of(PUBLISHED_KB | {4: 16.0})
    verdict = claim.verdict(measured(*wrong, *uploads_of(PUBLISHED_KB, seed=1)))
    assert verdict.result == "fail"
    assert "15.380 to 16.000 kB at 4 bits" in verdict.because
    assert claim.verdict(measured(*uploads_of(PUBLISHED_KB, down=PUBLISHED_KB | {2: 9.0}))).result == "fail"


def put(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")


def test_bits_are_run_on_celeba_where_it_is_there_and_on_cifar10_else(tmp_path, monkeypatch):
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path))
    assert {run.config.task.name for run in ENTRIES["bits"].plan(Extent())} == {"cifar10"}
    published = ("identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba/000001.jpg")
    for name in published:
        assert {run.config.task.name for run in ENTRIES["bits"].plan(Extent())} == {"cifar10"}, f"before {name}"
        put(tmp_path / "celeba" / name)
    runs = ENTRIES["bits"].plan(Extent())
    assert {run.config.task.name for run in runs} == {"celeba"}
    assert {run.config.algorithm.staleness_exponent for run in runs} == {0.0}
    assert {run.config.timing.rate for run in runs} == {100.0}
