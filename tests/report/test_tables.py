"""The report's tables and lead: figures, winners, settings and provenance."""

import math
import re
from dataclasses import replace

import pytest

from qafel.report import render_report
from qafel.runs.live import LiveState, write_live
from qafel.runs.reading import Run
from tests.browser import own_html

ACCURACY = {"metric_name": "accuracy", "metric_goal": "max", "config": {"task": {"name": "cifar10"}}}


def cells_of(page: str, label: str) -> list[str]:
    """A run's figures in the headline tables."""
    row = re.search(rf'<tr><th scope="row"><span class="dot"[^>]*></span>{label}(?: <span.*?)?</th>(.*?)</tr>', page)
    assert row is not None
    return re.findall("<td>(.*?)</td>", row[1])


def columns_of(page: str) -> list[str]:
    head = re.search(r'<table class="figures"><thead><tr>(.*?)</tr>', page)
    assert head is not None
    return re.findall('<th scope="col">(.*?)</th>', head[1])


@pytest.fixture
def mixed(make_run) -> list[Run]:
    return [
        Run.load(make_run("m-qafel")),
        Run.load(make_run("m-fedbuff", upload_bytes=760)),
        Run.load(make_run("c-qafel", metric=[0.1, 0.5, 0.4], metric_best=None, upload_bytes=20_000, **ACCURACY)),
        Run.load(make_run("c-fedbuff", metric=[0.1, 0.6, 0.55], metric_best=None, upload_bytes=100_000, **ACCURACY)),
    ]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_runs_of_different_tasks_are_not_compared(mixed, order):
    page = own_html(render_report([mixed[index] for index in order]))
    assert "Lowest final f(x) − f*: <strong>m-" in page
    assert "Highest final accuracy: <strong>c-fedbuff</strong> with 0.550." in page
    assert "0.100× the total bytes of <strong>m-fedbuff</strong>" in page
    assert "0.200× the total bytes of <strong>c-fedbuff</strong>" in page
    assert "Each kind" in page
    assert [cells_of(page, label)[1] for label in ("c-qafel", "c-fedbuff")] == ["0.500", "0.600"]
    assert [cells_of(page, run.name)[4] for run in mixed] == ["0.100×", "1×", "0.200×", "1×"]
    assert "f(x) − f* / accuracy" not in page


def test_a_diverged_run_is_tagged_and_never_praised_though_its_last_metric_is_finite(make_run):
    good = [Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel"))]
    diverged = Run.load(make_run("bad", metric=[0.68, 1e-9], status="diverged"))
    page = own_html(render_report([diverged, *good]))
    assert 'bad <span class="tag">diverged</span>' in page
    assert page.count('<span class="tag">') == 1
    assert "Lowest final f(x) − f*: <strong>fedbuff</strong>" in page
    assert "Fewest total bytes: <strong>qafel</strong>" in page
    assert "bad diverges" in page


def test_a_report_of_diverged_runs_alone_praises_none(make_run):
    runs = [Run.load(make_run(name, metric=[0.68, 0.7], status="diverged", target=1.0)) for name in "ab"]
    assert '<p class="lead"></p>' in render_report(runs)


def test_uploads_and_bytes_to_the_target_come_from_the_history(make_run):
    runs = [
        Run.load(make_run("fedbuff", metric=[0.9, 0.3, 0.1, 0.2], upload_bytes=100, target=0.1)),
        Run.load(make_run("qafel", metric=[0.9, 0.5, 0.3, 0.05], upload_bytes=10, target=0.1)),
        Run.load(make_run("never", metric=[0.9, 0.5], target=0.1)),
        Run.load(make_run("killed", metric=[0.9, 0.0], finished=False, config={"evaluation": {"target": 0.1}})),
    ]
    page = own_html(render_report(runs))
    at = columns_of(page).index("uploads to target") - 1
    assert [cells_of(page, run.name)[at : at + 2] for run in runs] == [
        ["20", "10.2 kB"], ["30", "1.53 kB"], ["not reached", "not reached"], ["10", "3.88 kB"],
    ]  # fmt: skip
    least = "Fewest total bytes: <strong>qafel</strong> "
    lead = f"Fewest uploads to f(x) − f* ≤ 0.1: <strong>killed</strong> with 10. {least}"
    assert f"{lead}with 1.53 kB, 0.150× the total bytes of <strong>fedbuff</strong>." in page
    assert page.count("Fewest total bytes") == 1


def test_an_accuracy_reaches_its_target_from_below(make_run):
    runs = [Run.load(make_run(name, metric=[0.1, 0.6], target=0.6, **ACCURACY)) for name in ("a", "b")]
    page = own_html(render_report(runs))
    assert "Fewest uploads to accuracy ≥ 0.6: <strong>a</strong> and <strong>b</strong> alike, with 10." in page


def test_without_a_common_target_the_lead_is_the_final_metric(make_run):
    page = own_html(render_report([Run.load(make_run("a", target=0.1)), Run.load(make_run("b"))]))
    assert "Fewest uploads" not in page
    assert "Fewest total bytes: <strong>a</strong> and <strong>b</strong> alike" in page
    at = columns_of(page).index("total bytes to target") - 1
    assert cells_of(page, "b")[at - 1 : at + 1] == ["–", "–"]
    assert "to target" not in own_html(render_report([Run.load(make_run("c"))]))


def test_the_table_compares_bytes_with_fedbuff(make_run):
    page = own_html(render_report([Run.load(make_run("qafel")), Run.load(make_run("fedbuff", upload_bytes=760))]))
    assert "<td>0.100×</td>" in page
    assert "<td>1×</td>" in page
    assert "0.100× the total bytes of <strong>fedbuff</strong>" in page


def test_a_run_that_broke_off_is_not_praised_for_few_bytes(make_run):
    killed = Run.load(make_run("killed", finished=False, metric=[0.68, 0.1]))
    diverged = Run.load(make_run("diverged", metric=[0.68, math.nan]))
    page = render_report(
        [Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel")), killed, diverged]
    )
    assert "Fewest total bytes: <strong>qafel</strong>" in page


def test_of_killed_runs_alone_the_best_accuracy_is_the_highest(make_run):
    metrics = {"worse": [0.1, 0.3, 0.25], "better": [0.1, 0.6, 0.5]}
    paths = [make_run(name, finished=False, metric=metric) for name, metric in metrics.items()]
    for path in paths:
        write_live(path, LiveState(status="stopped", at=1.0, version=2, metric_name="accuracy", metric_goal="max"))
    page = own_html(render_report([Run.load(path) for path in paths]))
    assert "Highest final accuracy: <strong>better</strong> with 0.500." in page
    assert "<td>0.500</td><td>0.600</td>" in page


def test_only_settings_that_differ_are_in_the_differences(make_run):
    one = Run.load(make_run("a", config={"algorithm": {"name": "x", "buffer_size": 10}}))
    two = Run.load(make_run("b", config={"algorithm": {"name": "x", "buffer_size": 20}, "extra": True}))
    page = render_report([one, two])
    section = page[page.index("Settings that differ") : page.index("All settings")]
    assert re.findall(r'<th scope="row">(.*?)</th>', section) == ["algorithm.buffer_size", "extra"]
    assert "task.name" in page[page.index("All settings") :]


def test_provenance_names_seed_versions_and_digest(make_run):
    page = render_report([Run.load(make_run())])
    section = page[page.index("<h2>Provenance") : page.index("<footer>")]
    assert "ab" * 32 in section
    assert "versions.qafel" in section
    assert ">seed<" in section


def seeds(make_run, name: str, finals: list[float], **about) -> list[Run]:
    """Runs that differ only by seed, and end so."""
    config = about.pop("config", {})
    return [
        Run.load(
            make_run(
                name,
                **{"folder": f"{name}{seed}", "seed": seed, "metric": [0.9, final]} | about,
                config=config | {"seed": seed},
            )
        )
        for seed, final in enumerate(finals)
    ]


def lead_of(runs: list[Run]) -> str:
    found = re.search(r'<p class="lead">(.*?)</p>', render_report(runs))
    assert found is not None
    return re.sub("</?strong>", "", found[1])


def test_runs_that_differ_only_by_seed_are_one_row_of_mean_and_deviation(make_run):
    page = own_html(render_report([*seeds(make_run, "a", [0.1, 0.2, 0.3]), *seeds(make_run, "b", [0.4])]))
    assert columns_of(page)[1] == "seeds"
    assert cells_of(page, "a")[:2] == ["3", "0.200 ± 0.100"]
    assert cells_of(page, "b")[:2] == ["1", "0.400"]
    assert "single seed" in page
    assert "seeds" not in columns_of(own_html(render_report(seeds(make_run, "c", [0.4]))))


def test_a_winner_is_named_only_where_the_ranges_over_seeds_are_apart(make_run):
    good, better, bad = (
        seeds(make_run, name, finals, upload_bytes=size)
        for name, finals, size in (("good", [0.1, 0.3], 10), ("better", [0.05, 0.2], 20), ("bad", [0.5, 0.6], 30))
    )
    apart = lead_of([*good, *bad])
    assert "Lowest final f(x) − f*: good with 0.200." in apart
    assert "Fewest total bytes: good with 510 B, 0.333× the total bytes of bad." in lead_of([*bad, *good])
    assert "final f(x) − f*: no winner, the ranges over seeds of better and good overlap." in lead_of(
        [*good, *better, *bad]
    )


def test_the_higher_accuracy_wins_and_overlapping_ones_do_not(make_run):
    low, high, wide = (
        seeds(make_run, name, finals, **ACCURACY)
        for name, finals in (("low", [0.1, 0.2]), ("high", [0.6, 0.7]), ("wide", [0.15, 0.65]))
    )
    assert "Highest final accuracy: high with 0.650." in lead_of([*low, *high])
    assert "no winner, the ranges over seeds of high and wide overlap" in lead_of([*low, *high, *wide])


def test_a_target_that_some_seeds_missed_is_said_so_and_forbids_a_winner(make_run):
    all_reach, some = seeds(make_run, "all", [0.1, 0.1], target=0.2), seeds(make_run, "some", [0.1, 0.5], target=0.2)
    page = own_html(render_report([*all_reach, *some]))
    at = columns_of(page).index("uploads to target") - 1
    assert [cells_of(page, name)[at] for name in ("all", "some")] == ["10 ± 0", "reached by 1 of 2"]
    assert "Fewest uploads to f(x) − f* ≤ 0.2: no winner" in lead_of([*all_reach, *some])


def test_a_seed_that_diverged_is_tagged_and_its_method_never_praised(make_run):
    sound = seeds(make_run, "sound", [0.5, 0.6])
    wild = seeds(make_run, "wild", [0.1, 0.1])
    wild[1] = replace(wild[1], summary={**wild[1].summary, "status": "diverged"})
    page = own_html(render_report([*sound, *wild]))
    assert '<span class="tag">1 of 2 diverged</span>' in page
    assert "wild (1 of 2 seeds)" in page
    assert "Lowest final f(x) − f*: sound with 0.550." in lead_of([*sound, *wild])


def test_settings_are_of_methods_and_provenance_of_runs(make_run):
    page = render_report([*seeds(make_run, "a", [0.1, 0.2]), *seeds(make_run, "b", [0.4, 0.5])])
    differing = page[page.index("Settings that differ") : page.index("All settings")]
    assert re.findall(r'<th scope="row">(.*?)</th>', differing) == ["algorithm.name"]
    assert re.findall(r'<th scope="col">(.*?)</th>', page[page.index("<h2>Provenance") :])[1:] == [
        "a · seed 0", "a · seed 1", "b · seed 0", "b · seed 1",
    ]  # fmt: skip
