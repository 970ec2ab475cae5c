"""The notebooks of examples/notebooks, run from the beginning; `python -m tests.notebooks` keeps what they print.

With a notebook and a folder as arguments it runs that one and writes it there.

What is kept is small and the same everywhere: no execution times, no paths of a machine. Pictures are not compared.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
UNCOMPARED = "uncompared"
SECONDS = 280


def run(notebook: Path, folder: Path) -> Any:
    """The notebook, run in the folder by a Python that finds this tree's package."""
    found = nbformat.read(notebook, as_version=4)
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    client = NotebookClient(
        found,
        timeout=SECONDS,
        startup_timeout=SECONDS,
        coalesce_streams=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, **environment, "COLUMNS": "100", "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    for cell in found.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = COLOUR.sub("", output["text"])
    return found


def printed(cell: Any) -> str:
    """What a cell printed and returned, as text; a picture is the word for it."""
    parts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        parts.append("picture" if "image/png" in data else output.get("text", data.get("text/plain", "")))
    return "\n".join(parts)


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    """The text without its numbers and spaces; the numbers."""
    numbers = [float(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(text)]
    return NUMBER.sub("#", text).split(), numbers


def main(wanted: list[Path], into: Path | None) -> None:
    """Run them; keep what they print, in their own place or in a folder."""
    for path in wanted:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(path, Path(folder)), path if into is None else into / path.name)
        print(path.name)


if __name__ == "__main__":
    main(*(([Path(sys.argv[1])], Path(sys.argv[2])) if sys.argv[1:] else (NOTEBOOKS, None)))
