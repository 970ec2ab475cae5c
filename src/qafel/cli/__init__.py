"""The command line: thin; parse, call, print. A user's mistake is one sentence on stderr and exit code 2.

console    the terminal: shared options, results, errors, live progress
logs       the lines of what runs for long, each with its time
run, sweep, report, watch            one run, many runs, runs compared, runs live; the demo
lists      the recipes, tasks and quantizers that there are
plan, tune, paper                    what to choose; the paper's entries
deploy, client, status               a run over real machines
bench      benchmarks
commands   all of them in one app
"""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from qafel.cli.logs import tell_error
from qafel.errors import PartFailed, QafelError, UserError
from qafel.lazy import lazily
from qafel.version import __version__

__all__ = ["main"]

__getattr__, __dir__ = lazily(__name__, {"app": "qafel.cli.commands:app"})

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Typer's UsageError, of which it exports only this kind."""

_TRACEBACK = "QAFEL_TRACEBACK"
"""The environment's name for: show whole tracebacks, of errors that are raised on purpose too."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"qafel {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Quantized asynchronous federated learning with a shared hidden state."""


def new_app() -> typer.Typer:
    """An app without commands yet."""
    app = typer.Typer(
        help="Quantized asynchronous federated learning with a shared hidden state.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_root)
    return app


def _wanted() -> typer.Typer:
    """The app of all commands; or of `qafel client` alone, which starts on small devices."""
    if sys.argv[1:2] != ["client"]:
        from qafel.cli.commands import app  # noqa: PLC0415

        return app
    from qafel.cli.client import client  # noqa: PLC0415

    alone = new_app()
    alone.command()(client)
    return alone


def main() -> None:
    """Run the command line; errors that are raised on purpose become one sentence on stderr."""
    app = new_app()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: any name of a file can be printed
    try:
        app = _wanted()
        gc.freeze()  # what is loaded stays: the collector need not look at it again and again
        sys.exit(app(standalone_mode=False))
    except QafelError as error:
        if os.environ.get(_TRACEBACK):
            raise
        hint = f"; {_TRACEBACK}=1 shows the traceback" if isinstance(error, PartFailed) else ""
        _refuse(f"{_with_options(str(error), app)}{hint}", 2 if isinstance(error, UserError) else 1)
    except _USAGE_ERROR as error:
        _refuse(_usage(error), 2)
    except MemoryError as error:
        _refuse(f"this needs more memory than there is: {error}", 2)
    except KeyboardInterrupt:
        _refuse("interrupted", 130)


def _refuse(sentence: str, code: int) -> NoReturn:
    if sentence:
        tell_error(sentence)
    sys.exit(code)


def _with_options(sentence: str, app: typer.Typer) -> str:
    """The sentence with each argument that it names in backticks, such as `take_over`, as the option: --take-over."""
    known = _options(get_command(app))

    def option(name: re.Match[str]) -> str:
        return known.get(name[1], name[0])

    return re.sub(r"`([a-z_]+)`", option, sentence)


def _options(command: Any) -> dict[str, str]:
    """All options of a command and of those under it, by their names in Python."""
    found = {text[2:].replace("-", "_"): text for one in command.params for text in one.opts if text.startswith("--")}
    for under in getattr(command, "commands", {}).values():
        found |= _options(under)
    return found


def _usage(error: Any) -> str:
    """What is wrong with the words of a command, in a sentence; nothing if its help was shown for want of any."""
    message = " ".join(str(error.format_message()).replace("Value error, ", "").split())
    asked = "" if error.ctx is None else f" See `{error.ctx.command_path} --help`."
    return message and f"{message[0].lower()}{message[1:]}{'' if message[-1] in '.?' else '.'}{asked}"
