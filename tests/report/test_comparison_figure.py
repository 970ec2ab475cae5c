from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.drawing.styles import PALETTE
from qafel.errors import DataError, OutputError
from qafel.report.comparison import comparison_figure, save_figure
from qafel.runs.reading import Run

CIFAR = {"task": {"name": "cifar10"}}


def test_both_panels_draw_every_run_in_its_own_colour(make_run):
    runs = [Run.load(make_run("fedbuff", upload_bytes=468)), Run.load(make_run("qafel"))]
    figure = comparison_figure(runs)
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [line.get_color() for line in axes.lines] == list(PALETTE[:2])
        assert axes.get_yscale() == "log"
    assert figure.axes[1].get_xscale() == "log"
    assert np.array_equal(figure.axes[1].lines[1].get_xdata(), runs[1].traffic)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedbuff", "qafel"]


def test_a_diverging_run_leaves_through_the_top_with_a_mark_and_a_note(make_run):
    figure = comparison_figure([Run.load(make_run("good")), Run.load(make_run("bad", metric=[0.68, 1e3, math.inf]))])
    for axes in figure.axes:
        assert axes.get_ylim()[1] < 10
        assert axes.lines[-1].get_marker() == "^"
    assert "bad leaves the view" in figure.get_supxlabel()


def test_runs_of_another_metric_have_axes_of_their_own(make_run):
    accuracy = make_run("c", metric=[0.1, 0.6], metric_name="accuracy", metric_goal="max", config=CIFAR, target=0.5)
    figure = comparison_figure([Run.load(make_run("m")), Run.load(accuracy)])
    assert [axes.get_ylabel() for axes in figure.axes[::2]] == ["f(x) − f*", "accuracy"]
    assert [len(axes.lines) for axes in figure.axes] == [1, 1, 2, 2]
    assert figure.axes[2].lines[0].get_ydata() == [0.5, 0.5]


@pytest.mark.parametrize(("name", "magic"), [("f.png", b"\x89PNG"), ("f.pdf", b"%PDF"), ("deep/f.svg", b"<?xml")])
def test_the_suffix_chooses_the_format_and_equal_figures_are_equal_bytes(make_run, tmp_path, name, magic):
    run = Run.load(make_run())
    first = save_figure(comparison_figure([run]), tmp_path / name).read_bytes()
    assert first.startswith(magic)
    if not name.endswith(".svg"):
        assert save_figure(comparison_figure([run]), tmp_path / name).read_bytes() == first


@pytest.mark.parametrize("metric", [[0.5], [math.nan], [0.0, 0.0], [1.0, 1e300, math.inf], [-1.0, -2.0]])
def test_odd_histories_are_drawn_without_a_warning(make_run, tmp_path, metric):
    run = Run.load(make_run("$x_ 模型", metric=metric))
    save_figure(comparison_figure([run]), tmp_path / "f.png")


def test_no_run_and_no_place_are_clear_errors(make_run, tmp_path):
    with pytest.raises(DataError, match="no run"):
        comparison_figure([])
    figure = comparison_figure([Run.load(make_run())])
    with pytest.raises(OutputError, match="suffix"):
        save_figure(figure, tmp_path / "f.docx")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        save_figure(figure, tmp_path / "file" / "f.png")
