"""`qafel bench quantizers`: every figure of every row, in a file a script can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qafel.cli import app
from qafel.errors import OutputError, SpecError

COLUMNS = {"quantizer", "size", "threads", "encode_s", "decode_s", "add_decoded_s", "memcpy_s", "bytes", "nmse"}


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", "quantizers", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_benchmark_writes_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    shown = bench("qsgd:4", "top_k:0.1", "--size", "1000", "--threads", "1", "--json", str(file))
    rows = json.loads(file.read_text())
    assert [row["quantizer"] for row in rows] == ["qsgd:4", "top_k:0.1"]
    assert all(set(row) == COLUMNS and row["encode_s"] > 0 for row in rows)
    assert all(row["quantizer"] in shown for row in rows)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        bench("none", "--size", "10", "--threads", "1", "--json", str(tmp_path))


def test_a_spec_that_does_not_parse_is_named_before_anything_is_measured() -> None:
    with pytest.raises(SpecError, match="did you mean"):
        bench("qsdg:4")


def test_trellis_is_held_against_the_encoder_of_rotated(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    shown = bench("trellis:1", "rotated:4", "--size", "2000", "--threads", "1", "--json", str(file))
    trellis, rotated = json.loads(file.read_text())
    assert set(trellis) == COLUMNS | {"encode_mean_s", "rotated_4_encode_s"}
    assert set(rotated) == COLUMNS
    assert f"{trellis['decode_s'] / trellis['rotated_4_encode_s']:.2f}" in shown
