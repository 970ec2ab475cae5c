"""The command line: thin; parse, call, print. A user's mistake is one sentence on stderr and exit code 2.

console    the terminal: shared options, results, errors, live progress
run, sweep, report                   one run, many runs, runs compared; the demo
lists      the recipes, tasks and quantizers that there are
plan, tune, paper                    what to choose; the paper's entries
deploy, status                       a run over real machines
bench      benchmarks
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from qafel.cli import bench, deploy, lists, paper, plan, report, run, status, sweep, tune
from qafel.errors import PartFailed, QafelError, UserError
from qafel.version import __version__

__all__ = ["main"]

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Typer's UsageError, of which it exports only this kind."""

_TRACEBACK = "QAFEL_TRACEBACK"
"""The environment's name for: show whole tracebacks, of errors that are raised on purpose too."""

app = typer.Typer(
    help="Quantized asynchronous federated learning with a shared hidden state.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
benchmarks = typer.Typer(help="Benchmarks that report ratios within one run.", no_args_is_help=True)
benchmarks.command("quantizers")(bench.bench_quantizers)
benchmarks.command("simulator")(bench.bench_simulator)
benchmarks.command("training")(bench.bench_training)
benchmarks.command("deployment")(bench.bench_deployment)
app.add_typer(benchmarks, name="bench")
app.add_typer(lists.tasks, name="tasks")
app.add_typer(deploy.broker, name="broker")
# Modules, not the functions in them: a function of the same name would hide its module in this package.
of_runs = (report.demo, run.run, sweep.sweep, report.report, paper.paper)
of_choices = (lists.recipes, lists.quantizers, plan.plan, tune.tune)
for command in (*of_runs, *of_choices, deploy.server, deploy.client, status.status):
    app.command()(command)


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
    """Quantized asynchronous federated learning with a shared hidden state."""


def main() -> None:
    """Run the command line; errors that are raised on purpose become one sentence on stderr."""
    gc.freeze()  # what is loaded stays: the collector need not look at it again and again
    try:
        sys.exit(app(standalone_mode=False))
    except QafelError as error:
        if os.environ.get(_TRACEBACK):
            raise
        hint = f"; {_TRACEBACK}=1 shows the traceback" if isinstance(error, PartFailed) else ""
        _refuse(f"{error}{hint}", 2 if isinstance(error, UserError) else 1)
    except _USAGE_ERROR as error:
        _refuse(_usage(error), 2)
    except MemoryError as error:
        _refuse(f"this needs more memory than there is: {error}", 2)
    except KeyboardInterrupt:
        _refuse("interrupted", 130)


def _refuse(sentence: str, code: int) -> NoReturn:
    if sentence:
        print(f"qafel: {sentence}", file=sys.stderr)
    sys.exit(code)


def _usage(error: Any) -> str:
    """What is wrong with the words of a command, in a sentence; nothing if its help was shown for want of any."""
    message = " ".join(str(error.format_message()).replace("Value error, ", "").split())
    asked = "" if error.ctx is None else f" See `{error.ctx.command_path} --help`."
    return message and f"{message[0].lower()}{message[1:]}{'' if message[-1] in '.?' else '.'}{asked}"
