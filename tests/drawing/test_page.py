"""A page draws everything a chart can hold, asks for nothing, and lets no text become markup."""

import re

import numpy as np
import pytest

from qafel.drawing.chart import Axis, Panel, Series, panel_styles
from qafel.drawing.page import Html, cards, layout_of, legend, page, table, traces_of
from tests.browser import charts_in, needs_browser, own_html, plots_in
from tests.drawing.everything import EVIL, PANELS

LOG_PANELS = tuple(
    Panel(
        f"p{letter}",
        "one",
        Axis("x", log=True, limits=ends, unit="B"),
        Axis("y", log=True, limits=ends, unit="count"),
        (Series("points", np.array(ends), np.array(ends)),),
    )
    for letter, ends in zip("abcde", [(2e6, 4e7), (1.1, 95.0), (3.2, 4.8), (6.0, 90.0), (1e-5, 3.0)], strict=True)
)
EVERY = (*PANELS, *LOG_PANELS)
PAGE = page(EVIL, [legend(panel_styles(EVERY)), cards(EVERY), table((EVIL, "b"), [(EVIL, EVIL)])], EVERY)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, shared_browser):
    """The page after a browser has drawn it, and the lines of the browser's console."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(PAGE, encoding="utf-8")
    shared_browser.complaints.clear()
    shared_browser.open_drawn(folder / "page.html", height=2600)
    return shared_browser.value("document.documentElement.outerHTML"), list(shared_browser.complaints)


def test_text_cannot_become_markup_but_html_stays():
    own = own_html(PAGE)
    assert "<img" not in own
    assert own.count("</script>") == 1
    assert "<b>1</b>" in table((), [("a", Html("<b>1</b>"))])
    for panel in PANELS:
        drawn = str(traces_of(panel, {style.label: style for style in panel_styles(PANELS)})) + str(layout_of(panel))
        assert "<img" not in drawn


def test_only_the_two_scripts_of_the_page_may_run():
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', PAGE)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-")
    assert policy[1].count("sha256-") == 2


def test_an_axis_can_be_switched_unless_it_is_fixed_or_has_nothing_positive():
    switches = re.findall(r'data-chart="(\w+)" data-axis="(\w)" aria-pressed="(\w+)"', cards(PANELS))
    shown = {(chart, axis): pressed == "true" for chart, axis, pressed in switches}
    assert shown == {(panel.key, name): getattr(panel, name).log for panel in PANELS[:2] for name in ("x", "y")}
    for panel in PANELS[:2]:
        for axis in (layout_of(panel)["xaxis"], layout_of(panel)["yaxis"]):
            assert sorted(axis["ranges"]) == ["linear", "log"]
            assert axis["range"] == axis["ranges"][axis["type"]]


def test_long_curves_are_thinned_and_what_is_not_finite_is_a_gap():
    band, curve, _, evil, _ = charts_in(PAGE)["curves"]
    assert len(curve["x"]) <= 1210
    assert len(band["x"]) == 2 * len(curve["x"])
    assert evil["y"][-1] is None


@needs_browser
def test_a_browser_draws_everything_and_its_console_is_silent(drawn):
    dom, console = drawn
    assert console == []
    assert f'data-drawn="{len(EVERY)}"' in dom
    plots = plots_in(dom)
    assert ">target 0.01<" in plots["curves"]
    assert all(f">{name}" in plots["rows"] for name in ("first<", "&lt;img"))
    what = ('path class="js-line', 'path class="point', 'g class="trace bars')
    count = {panel.key: [len(re.findall(f'<{word}"', plots[panel.key])) for word in what] for panel in PANELS}
    assert count == {
        "curves": [3, 2, 0], "points": [4, 12, 0], "marks": [0, 10, 0],
        "grouped": [0, 0, 2], "stacked": [0, 0, 2], "rows": [0, 0, 3],
    }  # fmt: skip


@needs_browser
def test_a_logarithmic_axis_has_at_least_two_labels(drawn):
    dom, _ = drawn
    plots = plots_in(dom)
    for key, plot in ((panel.key, plots[panel.key]) for panel in LOG_PANELS):
        for name in ("x", "y"):
            ticks = re.findall(rf'<g class="{name}tick"><text.*?>(.*?)</text>', plot)
            assert len(ticks) >= 2, (key, name, ticks)
            assert name == "y" or all(tick.endswith("B") for tick in ticks), (key, ticks)


def test_what_lies_at_zero_is_not_drawn_on_a_logarithmic_x_axis():
    x, y = np.array([0.0, 10.0, 100.0]), np.array([1.0, 0.5, 0.1])
    for log, drawn in ((True, [10.0, 100.0]), (False, [0.0, 10.0, 100.0])):
        panel = Panel("p", "one", Axis("bytes", log), Axis("y"), (Series("a", x, y, y / 2, 2 * y),))
        band, curve = traces_of(panel, {"a": panel_styles([panel])[0]})
        assert curve["x"] == drawn
        assert sorted(set(band["x"])) == drawn
