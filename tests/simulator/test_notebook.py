"""A result as a notebook and a script have it: words, HTML, a plot, a table; a bar while it is made."""

import base64
import inspect
import io
import re
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from rich.console import Console

import qafel
from qafel import Evaluation, Limits, Quadratic, Timing, method, simulate
from qafel.errors import ConfigError, OutputError
from qafel.runs import bars


def run(name="qafel", **options):
    quantizer = {} if name == "fedbuff" else {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
    algorithm = method(name, client_lr=0.1, server_lr=0.5, **quantizer)
    limits, evaluation = Limits(server_steps=20), Evaluation(every=2)
    return simulate(Quadratic(6, 30), algorithm, Timing(), limits=limits, evaluation=evaluation, **options)


@pytest.fixture(scope="module")
def result():
    return run()


def picture_in(html):
    """The SVG of the one image in the HTML."""
    (found,) = re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,([^"]+)"', html)
    return ElementTree.fromstring(base64.b64decode(found))


def test_the_repr_is_a_few_short_lines(result):
    lines = repr(result).splitlines()
    assert lines[0] == "Result of quadratic, qafel, seed 0"
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 80
    assert any("finished" in line for line in lines)
    assert any("f(x) − f*" in line and f"{result.summary['metric_final']:.6g}" in line for line in lines)


def test_html_has_the_summary_and_a_picture_and_no_script(result):
    html = result._repr_html_()
    assert f"{result.summary['uploads']:,}" in html
    assert result.summary["model_sha256"] in html
    assert picture_in(html).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in html
    assert len(html) < 200_000


def test_names_of_a_users_own_are_escaped_in_html():
    task = Quadratic(6, 30)
    task.name = "<script>alert(1)</script>"
    found = simulate(task, method("fedbuff"), Timing(), limits=Limits(server_steps=2))
    assert "<script" not in found._repr_html_()


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_plot_is_saved_in_the_format_of_the_suffix(result, suffix, start, tmp_path):
    saved = result.plot().save(tmp_path / f"plot{suffix}")
    assert saved.read_bytes().startswith(start)


def test_a_plot_has_the_metric_by_steps_and_by_bytes_and_a_curve_for_each_result(result):
    alone, both = result.plot().figure, result.plot(run("fedbuff")).figure
    assert [axes.get_xlabel() for axes in alone.axes] == ["server steps", "total bytes"]
    curves = [line for line in both.axes[0].get_lines() if len(line.get_xdata()) > 2]
    assert len(curves) == 2
    assert {text.get_text() for text in both.legends[0].get_texts()} == {"quadratic-qafel", "quadratic-fedbuff"}
    assert picture_in(result.plot()._repr_html_()) is not None
    with pytest.raises(OutputError, match=r"\.png"):
        result.plot().save("plot.gif")


def test_without_pandas_a_sentence_names_the_extra(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pip install 'qafel\[pandas\]'"):
        result.to_pandas()


def test_with_pandas_there_is_a_frame_with_a_row_for_each_evaluation(result):
    frame = result.to_pandas()
    assert list(frame["metric"]) == [row["metric"] for row in result.history.rows]
    assert list(frame.columns) == list(result.history.rows[0])


def test_every_parameter_of_simulate_is_documented():
    documented = set(re.findall(r"^ {4}(\w+) {2,}\S", simulate.__doc__, re.MULTILINE))
    assert documented == set(inspect.signature(simulate).parameters)


def test_progress_shows_a_bar_that_reaches_its_end_and_without_it_nothing_is_shown(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(bars, "errors", Console(file=written, width=120, force_terminal=True))
    plain = run()
    assert written.getvalue() == ""
    shown = run(progress=True)
    assert "20 steps f(x) − f*" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue())
    assert shown.summary["model_sha256"] == plain.summary["model_sha256"]


def test_in_a_notebook_the_bar_is_html_in_one_place(monkeypatch):
    places = []

    class Place:
        def __init__(self, html, display_id):
            assert display_id
            self.shown = [html]
            places.append(self)

        def update(self, html):
            self.shown.append(html)

    display = SimpleNamespace(HTML=str, display=Place)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(bars, "errors", Console(file=io.StringIO(), force_jupyter=True))
    run(progress=True)
    (place,) = places
    assert place.shown[0].startswith('<progress max="1" value="0.000">')
    assert 'value="1.000"' in place.shown[-1]
    assert "20 steps" in place.shown[-1]
    assert "finished" in place.shown[-1]


def test_the_public_names_are_listed_before_they_are_loaded():
    assert {*qafel.__all__, "TorchTask"} <= set(dir(qafel))
