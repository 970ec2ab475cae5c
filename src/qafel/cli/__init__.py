"""All commands under one name."""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import typer

from qafel.cli.bench import bench_deployment, bench_quantizers, bench_simulator
from qafel.cli.broker import broker, status
from qafel.cli.demo import demo
from qafel.cli.deploy import client, server
from qafel.cli.lists import quantizers, recipes, tasks
from qafel.cli.paper import paper
from qafel.cli.plan import plan
from qafel.cli.report import report
from qafel.cli.run import run
from qafel.cli.tune import tune
from qafel.errors import QafelError, UserError
from qafel.version import __version__

app = typer.Typer(
    help="Quantized asynchronous federated learning with a shared hidden state.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


bench = typer.Typer(help="Benchmarks that report ratios within one run.", no_args_is_help=True)


app.add_typer(bench, name="bench")


app.add_typer(tasks, name="tasks")


app.add_typer(broker, name="broker")


for command in (demo, run, report, paper, recipes, quantizers, plan, tune, server, client, status):
    app.command()(command)


bench.command("quantizers")(bench_quantizers)


bench.command("simulator")(bench_simulator)


bench.command("deployment")(bench_deployment)


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
        app()
    except QafelError as error:
        print(f"qafel: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        print("qafel: interrupted", file=sys.stderr)
        sys.exit(130)


# The command line: thin; parse, call, print. A user's mistake is one sentence on stderr and exit code 2.


__all__ = ["main"]
