"""The command line as a user meets it: in a process of its own, or, faster, in this one."""

import contextlib
import gc
import io
import os
import subprocess
import sys
from functools import partial
from unittest import mock

from qafel.cli import main


def run_module(module, *arguments, cwd=None, expect=0):
    """Run a module as a command; it ends with the code that is expected and never with a traceback."""
    finished = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "COLUMNS": "160"},
        check=False,
    )
    assert finished.returncode == expect, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished


qafel = partial(run_module, "qafel")


def qafel_here(*arguments, expect=0):
    """Run a command in this process, which saves a second of imports; returns what it wrote to stdout and stderr."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(gc, "freeze"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main([*map(str, arguments)])
        except SystemExit as ended:
            code = ended.code or 0
    assert code == expect, errors.getvalue()
    return out.getvalue(), errors.getvalue()
