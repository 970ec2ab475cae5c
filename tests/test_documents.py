"""What the documents say can be followed: their links lead somewhere, and README's program runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_into_the_repository_leads_somewhere(document):
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_readmes_ten_lines_end_in_a_plot(tmp_path):
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    assert len(program[1].strip().splitlines()) <= 10
    finished = subprocess.run(
        [sys.executable, "-c", program[1]], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "uploads       10,000, 140 bytes each" in finished.stdout
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
