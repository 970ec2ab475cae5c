"""Everything a chart can hold is drawn in print, and equal charts are equal files."""

import numpy as np
import pytest

from qafel.drawing.chart import Axis, Bars, Panel, Series, panel_styles
from qafel.drawing.printed import draw, rendered, save_figure
from qafel.errors import OutputError
from tests.drawing.everything import EVIL, PANELS

X = np.arange(2.0)
CURVE = Panel("p", "one", Axis("x"), Axis("y"), (Series("模型", np.arange(3.0), np.arange(3.0)),))


def test_everything_is_drawn_under_one_legend():
    figure = draw(PANELS, "The title", "The footer")
    curves, points, marks, grouped, stacked, rows = figure.axes
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [style.label for style in panel_styles(PANELS)]
    assert figure.get_supxlabel() == "A note.\nThe footer"
    assert (curves.get_xscale(), curves.get_yscale(), curves.get_ylabel()) == ("log", "log", EVIL)
    # A band and a triangle; three curves and the target.
    assert (len(curves.collections), len(curves.lines)) == (2, 4)
    assert len(points.containers) == 2
    assert len(marks.collections) == 5
    assert marks.get_xticklabels()[1].get_text() == "two"
    assert [len(axes.patches) for axes in (grouped, stacked, rows)] == [8, 8, 3]
    assert rows.yaxis_inverted()


@pytest.mark.parametrize(("name", "magic"), [("f.png", b"\x89PNG"), ("f.pdf", b"%PDF"), ("deep/f.svg", b"<?xml")])
def test_the_suffix_chooses_the_format_and_equal_figures_are_equal_bytes(tmp_path, name, magic):
    first = save_figure(draw([CURVE]), tmp_path / name).read_bytes()
    assert first.startswith(magic)
    if not name.endswith(".svg"):
        assert save_figure(draw([CURVE]), tmp_path / name).read_bytes() == first


def test_a_file_says_where_it_comes_from():
    assert b"qafel report x" in rendered(draw([CURVE]), ".png", "qafel report x")


def test_an_unknown_format_and_a_place_that_cannot_be_written_are_clear_errors(tmp_path):
    figure = draw([CURVE])
    with pytest.raises(OutputError, match="suffix"):
        save_figure(figure, tmp_path / "f.docx")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        save_figure(figure, tmp_path / "file" / "f.png")


LONG = "a name of its own, cifar10-fedasync-direct-c1000-qsgd · seed 12 · from somewhere else, and some more words"
WORDY = Panel(
    "p",
    "A title of a panel that is longer than the panel is wide by a good bit",
    Axis("server steps of the run since the very beginning of it, in thousands"),
    Axis("accuracy on the test samples of all clients, weighted by samples"),
    (Series(LONG, np.arange(3.0), np.arange(3.0)), Series(f"{LONG} again", np.arange(3.0), np.arange(3.0))),
)
ROWS = Panel(
    "r",
    "rows",
    Axis("bytes", unit="B"),
    Axis("", names=("a very long name of a row, which takes more than half of all room that there is", "b")),
    bars=(Bars("up", np.array([0.0, 1.0]), np.array([5e6, 3e6]), text="words beyond the last bar, quite a few"),),
    arrangement="rows",
)


@pytest.mark.parametrize("panels", [[WORDY], [WORDY] * 2, [WORDY] * 3, [ROWS], [ROWS, WORDY]], ids=len)
def test_nothing_is_cut_at_the_figures_edge(panels):
    figure = draw(
        panels, "A title that is longer than the figure is wide, for it names all that is in it, and more", "f"
    )
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert drawn.x0 >= -0.01
    assert drawn.y0 >= -0.01
    assert drawn.x1 <= width + 0.01
    assert drawn.y1 <= height + 0.01


@pytest.mark.parametrize("unit", ["", "B", "count"])
def test_a_logarithmic_axis_has_at_least_two_labels(unit):
    every = [(1.1, 95.0), (2.0, 40.0), (3.2, 4.8), (0.911, 0.913), (1e-5, 3.0), (6.0, 90.0), (95.0, 105.0), (1.1, 6.0)]
    figure = draw(
        [
            Panel("p", "one", Axis("x"), Axis("y", log=True, limits=ends, unit=unit), (Series("a", X, np.array(ends)),))
            for ends in every
        ]
    )
    figure.draw_without_rendering()
    for axes, (low, high) in zip(figure.axes, every, strict=True):
        labels = [
            label.get_text()
            for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
            if low <= place <= high and label.get_text()
        ]
        assert len(labels) >= 2, (low, high)
        assert len(set(labels)) == len(labels), "different places, different words"


def test_what_lies_at_zero_is_not_drawn_on_a_logarithmic_x_axis():
    """It would be a flat line from the left edge to the first point."""
    x, y = np.array([0.0, 10.0, 100.0]), np.array([1.0, 0.5, 0.1])
    for log, drawn in ((True, [10.0, 100.0]), (False, [0.0, 10.0, 100.0])):
        panel = Panel("p", "one", Axis("bytes", log), Axis("y"), (Series("a", x, y, y / 2, 2 * y),))
        (axes,) = draw([panel]).axes
        assert axes.lines[0].get_xdata().tolist() == drawn
