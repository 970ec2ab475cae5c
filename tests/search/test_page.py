"""The page of a search: complete, the same every time."""

from functools import partial

from qafel.config import load_recipe
from qafel.search import Choices, Range
from qafel.search import tune as tune_and_check
from qafel.search.page import render_page, write_results
from tests.browser import charts_in, own_html

START = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=100", 'description="<img src=x onerror=alert(1)>"'])
tune = partial(tune_and_check, check=0)
SEARCH = {
    "algorithm.client_lr": Range(0.02, 200, log=True),
    "algorithm.server_lr": Range(0.02, 5, log=True),
    "algorithm.server_quantizer": Choices(("qsgd:2", "qsgd:4")),
}


def test_a_page_without_trials_and_one_without_success_can_be_written(tmp_path):
    assert "none of 0 trials" in render_page(tune(START, target=0.1, seconds=0, out=tmp_path / "none"))
    lost = tune(START, {"algorithm.server_lr": Choices((1e38,))}, target=0.1, trials=2, out=tmp_path / "lost")
    assert "none of 1 trial (all settings were tried)" in render_page(lost)


def test_the_same_search_gives_the_same_page_but_for_the_time_it_took(tmp_path):
    tuning = tune(START, target=0.1, trials=4, out=tmp_path)
    assert render_page(tuning) == render_page(tune(START, target=0.1, trials=4, out=tmp_path))


def test_a_metric_at_the_end_is_drawn_too(tmp_path):
    charts = charts_in(render_page(tune(START, trials=3, out=tmp_path, objective="metric")))
    assert list(charts) == ["history", "map", "by-client-lr", "by-server-lr"]
    assert sum(len(trace["x"]) for trace in charts["by-client-lr"]) == 3


def test_every_trial_is_in_every_chart_and_text_cannot_become_markup(tmp_path):
    write_results(tune_and_check(START, SEARCH, target=0.1, trials=16, out=tmp_path))
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    charts = charts_in(page)
    slices = ["by-client-lr", "by-server-lr", "by-server-quantizer"]
    assert list(charts) == ["history", "map", *slices, "importance"]
    points = {key: sum(len(trace["x"]) for trace in traces) for key, traces in charts.items()}
    assert [points[key] for key in slices] == [16] * 3
    assert points["history"] == 32  # and the best so far
    assert points["map"] == 17  # and the ring
    assert len(charts["importance"]) == 3
    assert "<img" not in own_html(page)
