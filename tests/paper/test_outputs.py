"""An entry's files, from tiny real runs: every one states where it comes from."""

from __future__ import annotations

import csv
import json
import re

import pytest

from qafel.paper import ENTRIES
from qafel.paper.display import Heading, Table
from qafel.paper.entry import Change, Extent, configuration
from qafel.paper.outputs import read_back, write_outputs
from qafel.sweeps import sweep
from qafel.sweeps.run import Planned
from tests.browser import needs_browser, open_in_browser, plots_in
from tests.paper.made_up import falling, made_up, measured
from tests.sweeps.test_sweep import Recorder

TINY = Change("tiny", ("stop.uploads=400", 'evaluation.unit="uploads"', "evaluation.every=100"))
COMMAND = "qafel paper qafel-vs-direct-qsgd --seeds 2"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The QSGD figure from runs of forty steps."""
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    planned = []
    for run in entry.plan(Extent((0, 1))):
        recipe = run.config.name.removesuffix("-every100")
        planned.append(Planned(run.method, configuration(recipe, run.config.seed, TINY)))
    folder = tmp_path_factory.mktemp("paper")
    assert not sweep(planned, folder / "runs", Recorder(), executor="inline")
    found = read_back(planned, folder / "runs", quick=False)
    return write_outputs(entry, found, COMMAND, folder / entry.name)


def test_all_files_are_there_and_state_the_command(tiny):
    names = sorted(path.name for path in tiny.folder.iterdir())
    assert names == ["claims.json", "figure.pdf", "figure.png", "index.html", "table.csv", "table.md"]
    for name in ("claims.json", "index.html", "table.csv", "table.md"):
        text = (tiny.folder / name).read_text()
        for word in (COMMAND, "numpy", "cores", "server_quantizer", "direct, server 3 bits"):
            assert word in text, (name, word)
    assert COMMAND.encode() in (tiny.folder / "figure.png").read_bytes()
    assert (tiny.folder / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_the_csv_has_a_row_per_method_and_all_digits(tiny):
    lines = (tiny.folder / "table.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    assert [row["method"] for row in rows] == ["FedBuff, unquantized", "QAFeL, server 3 bits", "direct, server 3 bits"]
    assert all(float(row["f(x) − f* in the end, min"]) <= float(row["f(x) − f* in the end"]) for row in rows)
    assert rows[0]["f(x) − f* in the end, seeds"] == "2"
    assert float(rows[0]["sent up"]) == 400 * 516


def test_the_markdown_can_be_pasted(tiny):
    text = (tiny.folder / "table.md").read_text()
    assert text.startswith("## QAFeL against direct quantization: QSGD\n")
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(tables) == 2
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.parametrize(
    ("qafel", "direct", "expected"),
    [
        (falling(1e-3), falling(8e-3), ["pass", "pass"]),
        (falling(8e-3), falling(1e-3), ["fail", "fail"]),
        (falling(1e-3), falling(1e-3), ["pass", "fail"]),
    ],
)
def test_claims_are_decided_by_the_runs(tmp_path, qafel, direct, expected):
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    metrics = {"FedBuff, unquantized": falling(1e-3), "QAFeL, server 3 bits": qafel, "direct, server 3 bits": direct}
    write_outputs(entry, measured(*(made_up(*pair) for pair in metrics.items())), COMMAND, tmp_path)
    claims = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["claims"]
    assert [claim["result"] for claim in claims] == expected
    assert all(re.search(r"\d", claim["because"]) for claim in claims)
    marks = {"pass": "✓ pass", "fail": "✗ fail"}
    page, markdown = ((tmp_path / name).read_text(encoding="utf-8") for name in ("index.html", "table.md"))
    assert re.findall(r'<tr><th scope="row">(. \w+)</th>', page)[:2] == [marks[result] for result in expected]
    assert re.findall(r"\| \*\*(\w+)\*\* \|", markdown) == expected


def test_a_bar_in_a_cell_does_not_end_it():
    table = Table((Heading("a"), Heading("b")), (("x|y", 1.0),))
    assert table.markdown().splitlines()[-1] == "| x\\|y | 1 |"


def test_text_in_the_page_cannot_become_markup(tmp_path):
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    methods = ("FedBuff, unquantized", "QAFeL, server 3 bits", "direct, server 3 bits")
    found = measured(*(made_up(method, falling(1e-3), seed) for method in methods for seed in (0, 1)))
    write_outputs(entry, found, "qafel paper <script>alert(1)</script>", tmp_path)
    assert "<script>alert(1)" not in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("fine", [True, False])
def test_a_run_that_diverges_at_once_leaves_the_figure_standing(tmp_path, fine):
    entry = ENTRIES["qafel-vs-direct-qsgd"]
    gone = {"metric": [0.68], "status": "diverged"}
    found = measured(
        made_up("FedBuff, unquantized", **({"metric": falling(1e-3)} if fine else gone)),
        made_up("QAFeL, server 3 bits", **gone),
        made_up("direct, server 3 bits", [0.68, float("nan")], status="diverged"),
    )
    write_outputs(entry, found, COMMAND, tmp_path)
    assert (tmp_path / "figure.png").exists()


@needs_browser
def test_the_page_draws_every_curve_and_the_console_is_silent(tiny, tmp_path):
    dom, console = open_in_browser(tiny.folder / "index.html", tmp_path / "profile")
    assert console == []
    assert 'data-drawn="2"' in dom
    assert '<div id="problem" role="alert"></div>' in dom
    plots = plots_in(dom)
    assert {key: len(re.findall(r'<path class="js-line"', plot)) >= 3 for key, plot in plots.items()} == {
        "steps": True,
        "bytes": True,
    }
