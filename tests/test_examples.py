"""Every example runs and prints what is recorded beside it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_prints_what_is_recorded(example):
    finished = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == example.with_suffix(".txt").read_text(encoding="utf-8")
