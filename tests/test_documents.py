"""What the documents say can be followed: their links lead somewhere, and their code runs or says it is not run."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .documents import LANGUAGES, blocks_of

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
TUTORIALS = ROOT / "docs" / "tutorials"
PROGRAMS = [
    pytest.param(path, marks=pytest.mark.slow if path.is_relative_to(TUTORIALS) else ())  # they train for longer
    for path in DOCUMENTS
    if path != ROOT / "README.md"  # its program has a test of its own below
    and any(block.is_run for block in blocks_of(path.read_text(encoding="utf-8")))
]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_into_the_repository_leads_somewhere(document):
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_block_names_its_language_and_a_test_that_runs_it_exists(document):
    blocks = list(blocks_of(document.read_text(encoding="utf-8")))
    assert [f"line {block.line}: {block.language!r}" for block in blocks if block.language not in LANGUAGES] == []
    named = [block.mark["test"] for block in blocks if block.mark and block.mark["test"]]
    assert [test for test in named if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize("document", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_blocks_of_a_document_run(document, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    finished = subprocess.run(
        [sys.executable, "-m", "tests.documents", document],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "COLUMNS": "100",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_document_that_the_code_names_exists():
    sources = [path for folder in ("src", "scripts", "reproduction", "tests") for path in (ROOT / folder).rglob("*.py")]
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in sources
        for name in re.findall(r"\bdocs/[\w/.-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert named
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []


def test_the_picture_of_the_rooms_has_all_of_them_in_the_order_in_which_they_may_import():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = tools["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    layer_of = {room: place for place, layer in enumerate(layers) for room in layer.split(" | ")}
    picture = (ROOT / "docs/images/architecture.svg").read_text(encoding="utf-8")
    boxes = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*font-weight="bold"[^>]*>([^<]+)</text>', picture)
    drawn = [name for _, _, name in sorted(boxes, key=lambda box: (float(box[1]), float(box[0])))]
    rooms = [room for name in drawn for room in name.split(", ")]
    assert sorted(rooms) == sorted(layer_of)
    assert [layer_of[room] for room in rooms] == sorted(layer_of.values())


def test_a_block_is_run_unless_it_says_otherwise():
    said = (
        "<!-- not run by the tests: an hour -->\n```sh\nls\n```\n```sh\nls\n```\n\n    ls\n\n- b\n\n    c\n"
        "```text\nls\n```\n"
    )
    found = list(blocks_of(said))
    assert [(block.language, block.is_run) for block in found] == [
        ("sh", False),
        ("sh", True),
        ("", True),
        ("text", False),
    ]
    (named,) = blocks_of("<!-- run by tests/test_documents.py -->\n```sh\nls\n```\n")
    assert not named.is_run
    (unexplained,) = blocks_of("<!-- not run by the tests -->\n```sh\nls\n```\n")
    assert unexplained.is_run
    (inside,) = blocks_of("```sh\n# not run by the tests: an hour\nls\n```\n")
    assert inside.is_run


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("```console\n$ echo a\nb\n```\n", "echo a prints"),
        ("```sh\nfalse\n```\n", "'false'"),
        ("```python\nname = 1\n```\n\n```python\nassert name == 2\n```\n", "AssertionError"),
        ('```sh title="Terminal 1"\ntrue\n```\n\n```sh title="Terminal 2"\nfalse\n```\n', "Terminal 2 ended with 1"),
        ("```toml\nextends = 'mushrooms-qafel-4bit'\nnmae = 'a'\n```\n", "nmae"),
    ],
)
def test_a_document_that_does_not_do_what_it_says_fails(document, said, tmp_path):
    (tmp_path / "page.md").write_text(document)
    command = [sys.executable, "-m", "tests.documents", tmp_path / "page.md"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 1
    assert said in finished.stderr


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
