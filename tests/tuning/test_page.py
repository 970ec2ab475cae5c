"""The page of a search, in a real browser: every chart is drawn and nothing is complained about."""

import re
from functools import partial

from qafel.config import load_recipe
from qafel.tuning import Choices, Range
from qafel.tuning import tune as tune_and_check
from qafel.tuning.page import render_page, write_page
from tests.report import test_report_browser as browser

START = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=100", 'description="<img src=x onerror=alert(1)>"'])
tune = partial(tune_and_check, check=0)
SEARCH = {
    "algorithm.client_lr": Range(0.02, 200, log=True),
    "algorithm.server_lr": Range(0.01, 1e30, log=True),
    "algorithm.server_quantizer": Choices(("qsgd:2", "qsgd:4")),
}


def test_a_page_without_trials_and_one_without_success_can_be_written(tmp_path):
    assert "none of 0 trials" in render_page(tune(START, target=0.1, seconds=0, out=tmp_path / "none"))
    lost = tune(START, {"algorithm.server_lr": Choices((1e38,))}, target=0.1, trials=2, out=tmp_path / "lost")
    assert "none of 1 trial (there is nothing else to try) came that far" in render_page(lost)


def test_the_same_search_gives_the_same_page_but_for_the_time_it_took(tmp_path):
    tuning = tune(START, target=0.1, trials=4, out=tmp_path)
    assert render_page(tuning) == render_page(tune(START, target=0.1, trials=4, out=tmp_path))


class TestInTheBrowser:
    pytestmark = browser.pytestmark

    def test_every_chart_is_drawn_and_the_console_is_silent(self, tmp_path):
        tuning = tune_and_check(START, SEARCH, target=0.1, trials=16, out=tmp_path)
        dom, console = browser.open_in_browser(write_page(tuning), tmp_path / "profile")
        assert console == []
        assert '<div id="problem" role="alert"></div>' in dom
        plots = browser.plots_in(dom)
        slices = ["by-client-lr", "by-server-lr", "by-server-quantizer"]
        assert list(plots) == ["history", "map", *slices, "importance"]
        assert f'data-drawn="{len(plots)}"' in dom
        points = {key: len(re.findall(r'<path class="point"', plot)) for key, plot in plots.items()}
        assert [points[key] for key in ("history", *slices)] == [16] * 4
        assert points["map"] == 17
        assert len(re.findall(r'<path class="js-line"', plots["history"])) == 1
        assert len(re.findall(r'<g class="trace bars"', plots["importance"])) == 1
        assert "<img" not in dom

    def test_an_accuracy_at_the_end_is_drawn_too(self, tmp_path):
        tuning = tune(START, trials=3, out=tmp_path, objective="metric")
        dom, console = browser.open_in_browser(write_page(tuning), tmp_path / "profile")
        assert console == []
        assert 'data-drawn="4"' in dom
