"""The command line in a process of its own, as a user meets it."""

import os
import subprocess
import sys


def qafel(*arguments, cwd=None, expect=0):
    """Run a command; it ends with the code that is expected and never with a traceback."""
    finished = subprocess.run(
        [sys.executable, "-m", "qafel", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "160"},
        check=False,
    )
    assert finished.returncode == expect, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished
