"""Run the code blocks of a document, in their order, in one folder.

    python tests/documents.py docs/sweeps.md      runs a document in the current folder

The language of a fence decides how its block is tested:

    python    run; all blocks of a document share one namespace
    sh        run by bash, which stops at the first command that fails; later blocks run in a folder after `cd`
    console   each line after `$ ` is run and must print the lines that follow it
    toml      read as a recipe
    text      program output or a folder listing: not run

If the title is a file name, python and toml blocks are written to that file for later blocks. Neighbouring sh blocks
titled `Terminal 1`, `Terminal 2`, … run at the same time and share a broker port. A comment on the line before a fence
excludes its block: `<!-- not run by the tests: why -->`, or `<!-- run by tests/test_x.py -->` to name another test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qafel.config import Config
from qafel.deployment.broker import free_port

FENCE = re.compile(r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\s*$')
MARK = re.compile(r"^ *<!-- (not run by the tests: \S.*|run by (?P<test>tests/\S+\.py)) -->$")
LANGUAGES = ("python", "sh", "console", "toml", "text")
SECONDS = 200


@dataclass(frozen=True)
class Block:
    """A code block and the number of its first line in the document."""

    language: str
    title: str
    text: str
    line: int
    mark: re.Match[str] | None = None
    """The comment before the block that says why it is not run here."""

    @property
    def is_run(self) -> bool:
        return self.language != "text" and self.mark is None

    @property
    def is_file(self) -> bool:
        return re.fullmatch(r"[\w/]+\.\w+", self.title) is not None

    @property
    def is_terminal(self) -> bool:
        return self.title.startswith("Terminal ")


def blocks_of(document: str) -> Iterator[Block]:
    """Yield the code blocks of a Markdown text. An indented block has no language."""
    lines = document.splitlines()
    number = 0
    while number < len(lines):
        begin = number
        number += 1
        if fence := FENCE.match(lines[begin]):
            while lines[number].strip() != "```":
                number += 1
            text = "\n".join(line.removeprefix(fence["indent"]) for line in lines[begin + 1 : number])
            number += 1
            mark = MARK.match(lines[begin - 1]) if begin else None
            yield Block(fence["language"], fence["title"] or "", text, begin + 1, mark)
        elif _is_indented_code(lines, begin):
            yield Block("", "", lines[begin], begin + 1)


def _is_indented_code(lines: list[str], number: int) -> bool:
    """Whether an indented block begins here; a paragraph of a list is not one."""
    if not lines[number].startswith("    ") or (number and lines[number - 1].strip()):
        return False
    before = next((line for line in reversed(lines[:number]) if line.strip() and not line.startswith("    ")), "")
    return re.match(r" *([-*]|\d+\.) ", before) is None


def run(document: Path) -> None:
    """Run the document's blocks in the current folder. Raise at the first that fails."""
    names: dict[str, Any] = {"__name__": "document"}
    terminals: list[Block] = []
    for block in blocks_of(document.read_text(encoding="utf-8")):
        if not (block.is_terminal and block.is_run):
            _run_at_once(terminals)
            terminals = []
        if not block.is_run:
            continue
        print(f"{document.name}:{block.line}", flush=True)
        if block.is_file:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text + "\n", encoding="utf-8")
        elif block.is_terminal:
            terminals.append(block)
        elif block.language == "python":
            exec(compile("\n" * block.line + block.text, document.name, "exec"), names)
        elif block.language == "sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], check=True, timeout=SECONDS)
            for folder in re.findall(r"^cd ([\w/]+)$", block.text, flags=re.MULTILINE):
                os.chdir(folder)
        elif block.language == "console":
            _compare(block)
        elif block.language == "toml":
            Config.from_toml(block.text, f"line {block.line}")
    _run_at_once(terminals)


def _run_at_once(terminals: list[Block]) -> None:
    port = free_port() if terminals else 0
    started = []
    try:
        for block in terminals:
            text = block.text.replace("--local-broker", f"--local-broker --port {port}")
            text = re.sub(r"qafel (client|status)", rf"qafel \1 --broker nats://127.0.0.1:{port}", text)
            started.append(subprocess.Popen(["bash", "-euo", "pipefail", "-c", text]))
        for block, process in zip(terminals, started, strict=True):
            if process.wait(SECONDS):
                raise AssertionError(f"{block.title} ended with {process.returncode}:\n{block.text}")
    finally:
        for process in started:
            process.kill()


def _compare(block: Block) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *expected = part.replace("\\\n", "").splitlines()
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in expected], (
            f"{command} prints\n{done.stdout}\nand the document says\n" + "\n".join(expected)
        )


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    run(Path(sys.argv[1]))
