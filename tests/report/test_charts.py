"""Runs as charts on the page and in print: curves, limits, colours and notes."""

import math

import numpy as np
import pytest

from qafel.drawing.chart import PALETTE
from qafel.drawing.printed import save_figure
from qafel.errors import DataError
from qafel.report.charts import comparison_figure, report_panels
from qafel.report.groups import groups_of, metric_view
from qafel.runs.reading import Run

CIFAR = {"task": {"name": "cifar10"}}


def panels_of(*runs: Run):
    return {panel.key: panel for panel in report_panels(groups_of(runs)[0])}


def test_every_chart_has_a_curve_or_bars_per_run(make_run):
    panels = panels_of(Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel")))
    assert list(panels) == ["uploads", "bytes", "virtual-time", "lag", "staleness", "parts"]
    drawn = {key: len(panel.series) + len(panel.bars) for key, panel in panels.items()}
    assert drawn == dict.fromkeys(panels, 2) | {"parts": 6}
    assert panels["staleness"].bars[0].length == pytest.approx([1 / 9, 2 / 9, 3 / 9, 2 / 9, 1 / 9])


def test_the_lag_is_relative_to_the_model(make_run):
    assert panels_of(Run.load(make_run()))["lag"].y.label == "‖x − x̂‖ / ‖x‖"


def test_charts_without_data_are_left_out(make_run):
    path = make_run(staleness_histogram=[], received_bytes_total=None)
    (path / "metrics.jsonl").write_text('{"metric": 1.0, "uploads": 0}\n{"metric": 0.5, "uploads": 10}\n')
    assert list(panels_of(Run.load(path))) == ["uploads", "parts"]


def test_a_wide_bin_of_staleness_stands_in_its_middle(make_run):
    (bars,) = panels_of(Run.load(make_run(staleness_histogram=[1] * 48)))["staleness"].bars
    assert bars.at.tolist()[:2] == [0.5, 2.5]


@pytest.mark.parametrize("metric", [[0.9, 0.5], [0.9, 1e-3]])
def test_the_target_is_a_line_within_the_limits_of_the_metric_charts(make_run, metric):
    (group,) = groups_of([Run.load(make_run(metric=metric, target=1e-4))])
    axis = metric_view(group).axis
    low, high = axis.log_limits or axis.limits
    assert low < 1e-4 < high
    targets = {panel.key: panel.targets for panel in report_panels(group)}
    assert all(targets[key] == (1e-4,) for key in ("uploads", "bytes", "virtual-time"))
    assert targets["lag"] == ()


def test_seconds_and_virtual_time_on_one_axis_are_told_apart(make_run):
    deployed = Run.load(make_run("deployed", virtual_time_unit="s", received_bytes_total=None))
    simulated = Run.load(make_run("simulated"))

    both = panels_of(deployed, simulated)
    assert "deployed" in both["virtual-time"].note
    assert "not counted: deployed" in both["parts"].note
    alone = panels_of(deployed)
    assert alone["virtual-time"].x.label == "seconds"
    assert alone["virtual-time"].note == ""
    assert panels_of(simulated)["virtual-time"].note == ""


def test_both_panels_of_the_figure_draw_every_run_in_its_own_colour(make_run):
    runs = [Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel"))]
    figure = comparison_figure(runs)
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [line.get_color() for line in axes.lines] == list(PALETTE[:2])
        assert axes.get_yscale() == "log"
    assert figure.axes[1].get_xscale() == "log"
    assert runs[1].bytes_so_far[0] == 0, "which has no place on a logarithmic axis"
    assert np.array_equal(figure.axes[1].lines[1].get_xdata(), runs[1].bytes_so_far[1:])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedbuff", "qafel"]


def test_a_diverging_run_leaves_through_the_top_with_a_mark_and_a_note(make_run):
    figure = comparison_figure([Run.load(make_run("good")), Run.load(make_run("bad", metric=[0.68, 1e3, math.inf]))])
    for axes in figure.axes:
        assert axes.get_ylim()[1] < 10
        (mark,) = axes.collections
        assert mark.get_offsets()[0][1] == axes.get_ylim()[1]
    assert "▲ bad" in figure.get_supxlabel()


def test_runs_of_another_metric_have_axes_of_their_own(make_run):
    accuracy = make_run("c", metric=[0.1, 0.6], metric_name="accuracy", metric_goal="max", config=CIFAR, target=0.5)
    figure = comparison_figure([Run.load(make_run("m")), Run.load(accuracy)])
    assert [axes.get_ylabel() for axes in figure.axes[::2]] == ["f(x) − f*", "accuracy"]
    assert [len(axes.lines) for axes in figure.axes] == [1, 1, 2, 2]
    assert figure.axes[2].lines[-1].get_ydata() == [0.5, 0.5]


@pytest.mark.parametrize("metric", [[0.5], [math.nan], [0.0, 0.0], [1.0, 1e300, math.inf], [-1.0, -2.0]])
def test_odd_histories_are_drawn_without_a_warning(make_run, tmp_path, metric):
    run = Run.load(make_run("$x_ 模型", metric=metric))
    figure = comparison_figure([run])
    figure.set_dpi(50)
    save_figure(figure, tmp_path / "f.png")


def test_a_figure_of_no_run_is_a_clear_error():
    with pytest.raises(DataError, match="no run"):
        comparison_figure([])


def test_runs_that_differ_only_by_seed_are_one_curve_with_a_band(make_run):
    runs = [
        Run.load(make_run("a", folder=f"a{seed}", seed=seed, metric=[0.9, final], config={"seed": seed}))
        for seed, final in enumerate((0.2, 0.4))
    ]
    panels = panels_of(*runs, Run.load(make_run("b", metric=[0.9, 0.5])))
    mean, single = panels["uploads"].series
    assert [values.tolist() for values in (mean.x, mean.y, mean.low, mean.high)] == [
        [0, 10], [0.9, pytest.approx(0.3)], [0.9, 0.2], [0.9, 0.4],
    ]  # fmt: skip
    assert single.low is None
    assert [len(bars.at) for bars in panels["parts"].bars] == [1] * 6, "two rows, each of three parts"
    assert panels["staleness"].bars[0].length == pytest.approx([1 / 9, 2 / 9, 3 / 9, 2 / 9, 1 / 9])
    figure = comparison_figure(runs)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]
    assert all(len(axes.collections) == 1 for axes in figure.axes), "the band"
