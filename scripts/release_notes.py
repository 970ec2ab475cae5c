"""Print a version's section of the changelog as release notes: `python scripts/release_notes.py [VERSION]`.

The default version is that of src/qafel/version.py. Wrapped lines are joined.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def notes(changelog: str, version: str) -> str:
    """The section `## VERSION – DATE` without its heading. Raise `SystemExit` if it is missing or empty."""
    heading = re.compile(rf"^## {re.escape(version)} – \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    found = heading.search(changelog)
    if found is None or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section `## {version} – YYYY-MM-DD` with anything in it")
    return re.sub(r"\n {2,}(?=[^\s-])", " ", found[1].strip()) + "\n"


def own_version() -> str:
    text = (ROOT / "src/qafel/version.py").read_text(encoding="utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


if __name__ == "__main__":
    wanted = sys.argv[1].removeprefix("v") if len(sys.argv) > 1 else own_version()
    print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), wanted), end="")
