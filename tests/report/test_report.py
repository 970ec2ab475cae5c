"""The page that compares runs: complete, safe and deterministic. A real browser draws every curve without a request."""

import math
import re

import numpy as np
import pytest

from qafel.errors import DataError, OutputError
from qafel.report import render_report, write_report
from qafel.runs.reading import Run
from tests.browser import charts_in, may_skip, needs_browser, own_html, plots_in

EVIL = '<img src=x onerror="document.title=1"></script>&\'"'
ACCURACY = {"metric_name": "accuracy", "metric_goal": "max", "config": {"task": {"name": "cifar10"}}}


def test_every_kind_has_charts_of_its_own_under_one_legend(make_run):
    runs = [
        Run.load(make_run(name, **about)) for name, about in (("c", ACCURACY), ("m", {}), ("d", ACCURACY), ("n", {}))
    ]
    charts = charts_in(render_report(runs))
    keys = ("uploads", "bytes", "virtual-time", "lag", "staleness", "parts")
    expected = {f"{key}{suffix}": chosen for suffix, chosen in (("", [0, 2]), ("-1", [1, 3])) for key in keys}
    assert {key: sorted({trace["meta"]["style"] for trace in traces}) for key, traces in charts.items()} == expected


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
    assert re.search("Not finished.*killed", page)


@pytest.mark.parametrize("metric", [[0.5], [math.nan], [0.0, 0.0], [1.0, 1e308, math.inf], [-1.0, -2.0]])
def test_odd_histories_still_make_a_page(make_run, metric):
    charts_in(render_report([Run.load(make_run(metric=metric))]))


def test_what_was_left_out_is_named(make_run):
    page = own_html(render_report([Run.load(make_run())], left_out=["<new> (nothing evaluated yet)"]))
    assert "Left out: &lt;new&gt; (nothing evaluated yet)." in page


def test_no_run_and_no_place_are_clear_errors(make_run, tmp_path):
    with pytest.raises(DataError, match="no run"):
        write_report([], tmp_path / "r.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_report([Run.load(make_run())], tmp_path / "file" / "r.html")


@needs_browser
def test_every_chart_shows_every_curve_and_the_console_is_silent(make_run, tmp_path, browser):
    steps = np.arange(3_000)
    diverging = 0.68 * np.exp(np.where(steps < 500, -steps / 500, steps / 200 - 3.5))
    diverging[-2:] = 1e307, math.nan
    evil = '<img src="http://127.0.0.1:9/x" onerror="alert(1)"><a href="javascript:1">'
    runs = [
        Run.load(make_run("fedbuff", metric=np.geomspace(0.68, 1e-4, 3_000), upload_bytes=468)),
        Run.load(make_run("flat", metric=np.maximum(np.geomspace(0.68, 1e-4, 3_000), 1e-1))),
        Run.load(make_run("evil", metric=diverging, name=evil)),
    ]
    page = write_report(runs, tmp_path / "report.html", title=evil)
    browser.open_drawn(page)
    dom = browser.value("document.documentElement.outerHTML")
    assert browser.complaints == []
    assert 'data-drawn="6"' in dom
    assert '<div id="problem" role="alert"></div>' in dom
    plots = plots_in(dom)
    curves = {key: len(re.findall(r'<path class="js-line"', plot)) for key, plot in plots.items()}
    assert curves == dict.fromkeys(plots, 0) | {"uploads": 3, "bytes": 3, "virtual-time": 3, "lag": 3}
    bars = {key: len(re.findall(r'<g class="trace bars"', plot)) for key, plot in plots.items()}
    assert {key: count for key, count in bars.items() if count} == {"staleness": 3, "parts": 9}
    assert "<img" not in dom
    # As text, be it shortened, it does no harm; as an attribute it would.
    assert 'href="javascript' not in re.sub(r"&lt;a href=.*?&gt;", "", dom[: dom.index('id="charts"')])


@needs_browser
def test_the_legend_hides_a_run_everywhere_and_a_toggle_changes_the_scale(make_run, tmp_path, browser):
    about = {"metric_name": "balanced accuracy of all clients, weighted by their samples", "target": 0.01}
    runs = [Run.load(make_run("a", **about)), Run.load(make_run("b", upload_bytes=80, **about))]
    page = write_report(runs, tmp_path / "report.html")
    browser.open_drawn(page)
    browser.value("document.querySelector('.legend button[data-style=\"1\"]').click()")
    browser.value('document.querySelector(\'button[data-chart="uploads"][data-axis="y"]\').click()')
    browser.value("draw().then(() => true)")
    found = browser.value("""(() => {
      const box = document.querySelector('.scroll');
      return {
        scale: plot('uploads')._fullLayout.yaxis.type,
        steps: [1, 2, 30].map(end => axis({ type: 'log', range: [0, end] }).dtick || 'some'),
        fits: box.scrollWidth <= box.clientWidth,
        targets: document.querySelectorAll('#plot-uploads .shapelayer path').length,
      }; })()""")
    assert browser.complaints == []
    assert found == {"scale": "linear", "steps": ["some", 1, 4], "fits": True, "targets": 1}
    dom = browser.value("document.documentElement.outerHTML")
    plots = plots_in(dom)
    assert [len(re.findall(r'<path class="js-line"', plots[key])) for key in ("uploads", "bytes", "lag")] == [1, 1, 1]
    assert len(re.findall(r'<g class="trace bars"', plots["parts"])) == 3


@needs_browser
def test_on_a_phone_the_legend_leaves_room_and_stays_with_the_charts(make_run, tmp_path, browser):
    names = [f"mushrooms-qafel-with-{bits}-bits-up-and-down" for bits in range(21)]
    runs = [Run.load(make_run(name, metric=[0.68, 0.1])) for name in names]
    page = write_report(runs, tmp_path / "report.html")
    browser.open_drawn(page, width=390, height=844)
    found = browser.value("""(() => {
      const legend = document.querySelector('.legend'), last = document.querySelector('#plot-parts .xtitle');
      document.querySelector('#plot-lag').scrollIntoView();
      const among = legend.getBoundingClientRect();
      document.querySelector('footer').scrollIntoView();
      return {
        follows: Math.abs(among.top) < 1, share: among.height / innerHeight,
        gone: legend.getBoundingClientRect().bottom <= 0,
        overflow: document.documentElement.scrollWidth - innerWidth, width: innerWidth,
        title: last.textContent, room: innerWidth - last.getBoundingClientRect().right,
      }; })()""")
    assert browser.complaints == []
    assert found.pop("share") < 0.25
    assert found.pop("room") > 0
    assert found.pop("overflow") <= 0
    expected = {"follows": True, "gone": True, "width": 390, "title": "total bytes"}
    assert found == expected


def test_without_a_browser_ci_fails_and_a_developer_skips():
    assert may_skip(None, {})
    assert not may_skip(None, {"CI": "true"})
    assert not may_skip("/usr/bin/chromium", {})
