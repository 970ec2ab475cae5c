"""The notebooks run, and open with the outputs of the present code."""

import math
import subprocess
import sys

import nbformat
import pytest

from .notebooks import NOTEBOOKS, ROOT, UNCOMPARED, printed, words_and_numbers

pytest.importorskip("torch", reason="the extra torch is not installed")
LARGEST = 400_000
names = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_three():
    assert {path.stem for path in NOTEBOOKS} == {"compare_methods", "custom_model", "choose_bits"}


@names
def test_a_notebook_opens_with_outputs_that_are_small_and_of_no_machine(notebook):
    text = notebook.read_text(encoding="utf-8")
    code = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert sum(bool(cell.outputs) for cell in code) >= len(code) // 2
    assert any(printed(cell) == "picture" for cell in code)
    assert len(text) < LARGEST
    assert not any(word in text for word in ("/root/", "/home/", "/tmp/", str(ROOT), "Traceback"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_a_notebook_runs_and_prints_what_is_kept(notebook, tmp_path):
    command = [sys.executable, "-m", "tests.notebooks", notebook, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    kept = nbformat.read(notebook, as_version=4).cells
    for before, now in zip(kept, nbformat.read(tmp_path / notebook.name, as_version=4).cells, strict=True):
        if UNCOMPARED in now.metadata.get("tags", []):
            continue
        words, numbers = words_and_numbers(printed(now))
        kept_words, kept_numbers = words_and_numbers(printed(before))
        assert words == kept_words, now.source
        close = [math.isclose(*both, rel_tol=0.05, abs_tol=1e-3) for both in zip(numbers, kept_numbers, strict=True)]
        assert all(close), f"{now.source}\n{printed(now)}\nwhere is kept\n{printed(before)}"
