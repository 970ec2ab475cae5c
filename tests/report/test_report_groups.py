"""What may be compared, what is said of it first, and what is no merit."""

from __future__ import annotations

import re

import pytest

from qafel.report import render_report
from qafel.report.charts import charts_of
from qafel.report.groups import groups_of, metric_view
from qafel.runs.reading import Run
from tests.report.test_report_page import charts_in, own_html

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
    assert [cells_of(page, run.name)[6] for run in mixed] == ["0.100×", "1×", "0.200×", "1×"]
    assert "f(x) − f* / accuracy" not in page


def test_every_kind_has_charts_of_its_own_under_one_legend(mixed):
    runs = [mixed[2], mixed[0], mixed[3], mixed[1]]
    charts = charts_in(render_report(runs))
    keys = ("uploads", "bytes", "virtual-time", "lag", "staleness", "traffic", "received")
    expected = {f"{key}{suffix}": chosen for suffix, chosen in (("", [0, 2]), ("-1", [1, 3])) for key in keys}
    assert {key: sorted({trace["meta"]["run"] for trace in traces}) for key, traces in charts.items()} == expected
    assert [metric_view(group).name for group in groups_of(runs)] == ["accuracy", "f(x) − f*"]


def test_runs_of_one_kind_are_said_to_be_nothing_else(make_run):
    killed = Run.load(make_run("killed", finished=False, config={"task": {"name": "one of my own"}}))
    done = Run.load(make_run("done", metric_name="loss", config={"task": {"name": "one of my own"}}))
    (group,) = groups_of([killed, done])
    assert (group.metric, group.goal) == ("loss", "min")
    assert "compared by itself" not in render_report([killed, done])


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


@pytest.mark.parametrize("metric", [[0.9, 0.5], [0.9, 1e-3]])
def test_the_target_is_a_line_within_the_limits_of_the_metric_charts(make_run, metric):
    (group,) = groups_of([Run.load(make_run(metric=metric, target=1e-4))])
    view = metric_view(group)
    assert view.low < 1e-4 < view.high
    drawn = {chart.key: chart.layout.get("shapes") for chart in charts_of(group)}
    for key in ("uploads", "bytes", "virtual-time"):
        (line,) = drawn[key]
        assert (line["y0"], line["y1"], line["line"]["dash"], line["label"]["text"]) == (
            (1e-4, 1e-4, "dash", "target 0.0001")
        )
    assert drawn["lag"] is None


def test_seconds_and_virtual_time_on_one_axis_are_told_apart(make_run):
    deployed = Run.load(make_run("deployed", virtual_time_unit="s", received_bytes_total=None))
    simulated = Run.load(make_run("simulated"))

    def charts(*runs: Run):
        return {chart.key: chart for chart in charts_of(groups_of(runs)[0])}

    both = charts(deployed, simulated)
    assert "Deployed, so in seconds: deployed." in both["virtual-time"].notes[-1]
    assert both["received"].notes == ("Not counted: deployed.",)
    alone = charts(deployed)
    assert alone["virtual-time"].layout["xaxis"]["title"]["text"] == "seconds"
    assert alone["virtual-time"].notes == ()
    assert "received" not in alone
    assert charts(simulated)["virtual-time"].notes == ()
