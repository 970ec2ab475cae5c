"""The command line: thin; parse, call, print. A user's mistake is one sentence on stderr and exit code 2."""

from qafel.cli.app import main

__all__ = ["main"]
