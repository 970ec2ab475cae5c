"""What the report says of its runs: figures, the best, settings and provenance, and what is no merit."""

import math
import re

import pytest

from qafel.report import render_report
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
    assert "0.100× the traffic of <strong>m-fedbuff</strong>" in page
    assert "0.200× the traffic of <strong>c-fedbuff</strong>" in page
    assert "each kind is compared by itself" in page
    assert [cells_of(page, label)[1] for label in ("c-qafel", "c-fedbuff")] == ["0.500", "0.600"]
    assert [cells_of(page, run.name)[7] for run in mixed] == ["0.100×", "1×", "0.200×", "1×"]
    assert "f(x) − f* / accuracy" not in page


def test_a_diverged_run_is_tagged_and_never_praised_though_its_last_metric_is_finite(make_run):
    good = [Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel"))]
    diverged = Run.load(make_run("bad", metric=[0.68, 1e-9], status="diverged"))
    page = own_html(render_report([diverged, *good]))
    assert 'bad <span class="tag">diverged</span>' in page
    assert page.count('<span class="tag">') == 1
    assert "Diverged, and not among the best below: bad." in page
    assert "Lowest final f(x) − f*: <strong>fedbuff</strong>" in page
    assert "Least traffic: <strong>qafel</strong>" in page
    assert "bad diverges after its last evaluation, at 10 uploads." in page


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
        ["20", "2.20 kB"], ["30", "330 B"], ["not reached", "not reached"], ["10", "836 B"],
    ]  # fmt: skip
    lead = "Fewest uploads to f(x) − f* ≤ 0.1: <strong>killed</strong> with 10. Fewest bytes: <strong>qafel</strong> "
    assert f"{lead}with 330 B, 0.150× the traffic of <strong>fedbuff</strong>." in page
    assert "Least traffic" not in page


def test_an_accuracy_reaches_its_target_from_below(make_run):
    runs = [Run.load(make_run(name, metric=[0.1, 0.6], target=0.6, **ACCURACY)) for name in ("a", "b")]
    page = own_html(render_report(runs))
    assert "Fewest uploads to accuracy ≥ 0.6: <strong>a</strong> with 10." in page


def test_without_a_common_target_the_lead_is_the_final_metric(make_run):
    page = own_html(render_report([Run.load(make_run("a", target=0.1)), Run.load(make_run("b"))]))
    assert "Fewest" not in page
    assert "Least traffic: <strong>a</strong>" in page
    at = columns_of(page).index("bytes to target") - 1
    assert cells_of(page, "b")[at - 1 : at + 1] == ["–", "–"]
    assert "to target" not in own_html(render_report([Run.load(make_run("c"))]))


def test_the_table_compares_traffic_with_fedbuff(make_run):
    page = own_html(render_report([Run.load(make_run("qafel")), Run.load(make_run("fedbuff", upload_bytes=760))]))
    assert "<td>0.100×</td>" in page
    assert "<td>1×</td>" in page
    assert "0.100× the traffic of <strong>fedbuff</strong>" in page


def test_a_run_that_broke_off_is_not_praised_for_little_traffic(make_run):
    killed = Run.load(make_run("killed", finished=False, metric=[0.68, 0.1]))
    diverged = Run.load(make_run("diverged", metric=[0.68, math.nan]))
    page = render_report(
        [Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel")), killed, diverged]
    )
    assert "Least traffic: <strong>qafel</strong>" in page


def test_of_killed_runs_alone_the_best_accuracy_is_the_highest(make_run):
    task = {"task": {"name": "cifar10"}}
    worse = Run.load(make_run("worse", finished=False, metric=[0.1, 0.3, 0.25], config=task))
    better = Run.load(make_run("better", finished=False, metric=[0.1, 0.6, 0.5], config=task))
    page = own_html(render_report([worse, better]))
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
