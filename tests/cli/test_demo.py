"""The demo runs, and its table bears runs that diverged."""

from qafel.cli.demo import REFERENCE
from qafel.cli.demo import _table as demo_table
from tests.command import qafel


def test_the_demos_table_has_a_place_for_runs_that_diverged():
    facts = {"uploads": 10, "upload_bytes_total": 100, "broadcast_bytes_total": 10}
    summaries = [{"name": REFERENCE, "metric_final": 0.5, **facts}, {"name": "wild", "metric_final": None, **facts}]
    for rows in (summaries, [{**summaries[0], "metric_final": None}, summaries[1]]):
        table = demo_table(["FedBuff", "wild"], rows)
        assert list(table.columns[1].cells)[-1] == list(table.columns[2].cells)[-1] == "–"


def test_the_demo_shows_a_table_a_picture_and_a_report(tmp_path):
    shown = qafel("demo", "--steps", 100, "--out", tmp_path / "demo").stdout
    for word in ("QAFeL, server top 1 %", "direct, server top 50 %", "traffic ×", "report.html"):
        assert word in shown
    assert (tmp_path / "demo/comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "demo/report.html").read_text()[:500].lower()
