from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from qafel.errors import DataError, OutputError
from qafel.report import render_report, write_report
from qafel.report.charts import charts_of
from qafel.report.groups import groups_of
from qafel.runs.reading import Run

EVIL = '<img src=x onerror="document.title=1"></script>&\'"'


def charts_in(page: str) -> dict[str, list[dict]]:
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    return {chart["key"]: chart["traces"] for chart in json.loads(data[1])}


def own_html(page: str) -> str:
    """The page without plotly.js."""
    return page[: page.index("plotly.js v")]


def test_every_chart_has_a_trace_per_run(make_run):
    page = render_report([Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel"))])
    charts = charts_in(page)
    assert list(charts) == ["uploads", "bytes", "virtual-time", "lag", "staleness", "traffic", "received"]
    assert {key: len(traces) for key, traces in charts.items()} == dict.fromkeys(charts, 2) | {"traffic": 4}
    assert charts["staleness"][0]["y"] == pytest.approx([1 / 9, 2 / 9, 3 / 9, 2 / 9, 1 / 9], rel=1e-5)


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


def test_the_lag_is_relative_to_the_model(make_run):
    run = Run.load(make_run())
    (lag,) = (chart for chart in charts_of(groups_of([run])[0]) if chart.key == "lag")
    assert lag.layout["yaxis"]["title"]["text"] == "‖x − x̂‖ / ‖x‖"


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


def test_text_from_files_cannot_become_markup(make_run):
    path = make_run("evil", config={EVIL: {EVIL: EVIL}}, name=EVIL, metric_name=EVIL, seed=EVIL, algorithm=EVIL)
    page = own_html(render_report([Run.load(path), Run.load(path)], title=EVIL))
    assert "<img" not in page
    assert page.count("</script>") == 1
    for traces in charts_in(page).values():
        assert all("<img" not in trace["name"] for trace in traces)


def test_the_same_runs_give_the_same_bytes_and_nothing_is_linked(make_run):
    runs = [Run.load(make_run())]
    page = render_report(runs)
    assert page == render_report(runs)
    assert not re.search(r'(src|href)="(?!data:)', own_html(page))


def test_ten_thousand_rows_stay_below_six_megabytes(make_run):
    noise = np.random.default_rng(1).normal(size=10_000)
    metric = np.geomspace(0.68, 1e-4, 10_000) * np.exp(0.1 * noise)
    runs = [Run.load(make_run("long", metric=metric))] * 20
    page = render_report(runs)
    assert len(page.encode()) < 6e6
    drawn = charts_in(page)["uploads"][0]["y"]
    assert min(drawn) == pytest.approx(metric.min(), rel=1e-5)


def test_an_unfinished_run_is_reported_as_such(make_run):
    page = render_report([Run.load(make_run("killed", finished=False, metric=[0.68, 0.1]))])
    assert "Not finished, shown up to the last evaluation: killed." in page


@pytest.mark.parametrize("metric", [[0.5], [math.nan], [0.0, 0.0], [1.0, 1e308, math.inf], [-1.0, -2.0]])
def test_odd_histories_still_make_a_page(make_run, metric):
    charts_in(render_report([Run.load(make_run(metric=metric))]))


def test_charts_without_data_are_left_out(make_run):
    path = make_run(staleness_histogram=[], received_bytes_total=None)
    (path / "metrics.jsonl").write_text('{"metric": 1.0, "uploads": 0}\n{"metric": 0.5, "uploads": 10}\n')
    assert list(charts_in(render_report([Run.load(path)]))) == ["uploads", "traffic"]


def test_a_wide_bin_of_staleness_stands_in_its_middle(make_run):
    bars = charts_in(render_report([Run.load(make_run(staleness_histogram=[1] * 48))]))["staleness"]
    assert bars[0]["x"][:2] == [0.5, 2.5]
    assert bars[0]["customdata"][:2] == ["τ = 0–1", "τ = 2–3"]


def test_what_was_left_out_is_named(make_run):
    page = own_html(render_report([Run.load(make_run())], left_out=["<new> (nothing evaluated yet)"]))
    assert "Left out: &lt;new&gt; (nothing evaluated yet)." in page


def test_no_run_and_no_place_are_clear_errors(make_run, tmp_path):
    with pytest.raises(DataError, match="no run"):
        write_report([], tmp_path / "r.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_report([Run.load(make_run())], tmp_path / "file" / "r.html")
