"""The command line: parse, call, print. A user's mistake is one sentence on stderr and exit code 2.

console    terminal output: shared options, results, errors, live progress
new        a project from a template
run        one run, and many runs
report     a comparison of runs, and the demo
status     runs while they are running, in the terminal or the browser
lists      recipes, tasks and quantizers
choose     recommended quantizers, K and step sizes
deploy, client         a run over real machines
bench      benchmarks
"""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from qafel.errors import PartFailed, QafelError, UserError
from qafel.version import __version__

__all__ = ["advanced", "app", "broker_option", "main", "output", "start_logs"]

advanced = partial(typer.Option, rich_help_panel="Advanced")
broker_option = partial(typer.Option, rich_help_panel="Broker")
output = partial(typer.Option, rich_help_panel="Output")

COMMANDS = {
    "Simulate and compare": {
        "demo": "report:demo",
        "new": "new:new",
        "run": "run:run",
        "sweep": "run:sweep",
        "report": "report:report",
        "watch": "status:watch",
    },
    "Choose": {
        "recipes": "lists:recipes",
        "tasks": "lists:tasks",
        "quantizers": "lists:quantizers",
        "plan": "choose:plan",
        "tune": "choose:tune",
        "bench": "bench:bench",
    },
    "Deploy": {
        "broker": "deploy:broker",
        "server": "deploy:server",
        "client": "client:client",
        "status": "status:status",
    },
}
"""Panels of the overview, and the module and name of each command."""

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Typer's UsageError. Typer exports only subclasses of it."""

_TRACEBACK = "QAFEL_TRACEBACK"
"""If this environment variable is set, every error shows its traceback."""


class _Commands(TyperGroup):
    """Imports a command when it is called: `qafel client` starts on small devices."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = {name: None for panel in COMMANDS.values() for name in panel}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.commands.get(cmd_name, ...) is None:
            panel, home = next((panel, homes[cmd_name]) for panel, homes in COMMANDS.items() if cmd_name in homes)
            module, _, name = home.partition(":")
            found = getattr(import_module(f"qafel.cli.{module}"), name)
            if not isinstance(found, typer.Typer):
                found, function = new_app(), found
                found.command()(function)
            command: Any = get_command(found)
            command.name, command.rich_help_panel = cmd_name, panel
            self.commands[cmd_name] = command
            gc.freeze()  # loaded modules stay: the garbage collector need not visit them again
        return self.commands.get(cmd_name)


def new_app(help: str = "", **settings: Any) -> typer.Typer:
    """An app, or a group of commands, with shared settings."""
    shared: dict[str, Any] = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False}
    return typer.Typer(help=help, add_completion=False, **shared, **settings)


app = new_app(
    "Quantized asynchronous federated learning with a shared hidden state.", cls=_Commands, no_args_is_help=True
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"qafel {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read options that come before a command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments`, by default those of the process, and exit."""
    command: Any = get_command(app)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like stderr: any file name can be printed
    try:
        sys.exit(command(arguments, prog_name="qafel", standalone_mode=False))
    except QafelError as error:
        if os.environ.get(_TRACEBACK):
            raise
        hint = f"; {_TRACEBACK}=1 shows the traceback" if isinstance(error, PartFailed) else ""
        _exit(f"{_with_options(str(error), command)}{hint}", 2 if isinstance(error, UserError) else 1)
    except _USAGE_ERROR as error:
        _exit(_usage(error), 2)
    except MemoryError as error:
        _exit(f"this needs more memory than there is: {error}", 2)
    except KeyboardInterrupt:
        _exit("interrupted", 130)


def _exit(sentence: str, code: int) -> NoReturn:
    if sentence:
        _print_error(sentence)
    sys.exit(code)


def _with_options(sentence: str, command: Any) -> str:
    """Replace each argument in backticks, such as `take_over`, by the command's option: --take-over."""
    known = _options(command)
    return re.sub(r"`([a-z_]+)`", lambda name: known.get(name[1], name[0]), sentence)


def _options(command: Any) -> dict[str, str]:
    """The options of all commands that are loaded, by their names in Python."""
    if command is None:
        return {}
    found = {text[2:].replace("-", "_"): text for one in command.params for text in one.opts if text.startswith("--")}
    for under in getattr(command, "commands", {}).values():
        found |= _options(under)
    return found


def _usage(error: Any) -> str:
    """Describe a usage error in a sentence; empty if Typer printed the help instead."""
    message = " ".join(str(error.format_message()).replace("Value error, ", "").split())
    hint = "" if error.ctx is None else f" See `{error.ctx.command_path} --help`."
    return message and f"{message[0].lower()}{message[1:]}{'' if message[-1] in '.?' else '.'}{hint}"


class _Text(logging.Formatter):
    """2026-11-18 09:30:01 and the message, in local time; warnings and errors start with their level."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        if record.levelno >= logging.WARNING:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """One object per line: time, level, logger, message, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start_logs(as_json: bool = False, quiet: bool = False, level: int = logging.WARNING) -> None:
    """Start to log: messages of commands, unless `quiet`, and messages of libraries from `level` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("qafel.cli").setLevel(logging.ERROR if quiet else logging.INFO)
    if as_json:
        sys.excepthook = lambda *error: logging.getLogger(__name__).critical("an unexpected error", exc_info=error)


def _print_error(sentence: str) -> None:
    """Print why a command ends, as JSON if the log is JSON."""
    if any(isinstance(handler.formatter, _Json) for handler in logging.getLogger().handlers):
        logging.getLogger(__name__).error(sentence)
    else:
        print(f"qafel: {sentence}", file=sys.stderr)
