"""`qafel recipes`, `qafel tasks` and `qafel quantizers`: what there is to run, to learn and to send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from qafel import config
from qafel.cli.console import JsonOption, console, figures_table
from qafel.config import Config
from qafel.config.tasks import TASKS
from qafel.drawing.printed import save_figure
from qafel.errors import ConfigError, UserError
from qafel.quantizers import measured, parse
from qafel.quantizers.measure import SHOWN, gaussian, heavy_tailed
from qafel.rng import Stream
from qafel.tasks.datasets.partition import partition_figure

_WIDE = 120  # columns of a terminal; a narrower one shows no quantizers, which the descriptions name too
tasks = typer.Typer(help="List the tasks, or show how one's data is divided among clients.")


def recipes(json_output: JsonOption = False) -> None:
    """List the recipes that ship with the package.

    Example: qafel recipes
    """
    loaded = [config.load_recipe(name) for name in config.recipes()]
    if json_output:
        print(json.dumps([recipe.model_dump() for recipe in loaded], indent=2))
        return
    known = {recipe.task.name: recipe.task for recipe in loaded}
    missing = {name: task.missing() for name, task in known.items()}
    wide = console.width >= _WIDE
    table = Table(box=None, header_style="bold")
    table.add_column("recipe", min_width=max(len(recipe.name) for recipe in loaded))  # to be copied, so never cut
    for heading in ("what it is", "clients send", "server sends") if wide else ("what it is",):
        table.add_column(heading)
    for recipe in loaded:
        quantizers = (recipe.algorithm.client_quantizer, recipe.algorithm.server_quantizer) if wide else ()
        style = "dim" if missing[recipe.task.name] else None
        table.add_row(recipe.name, recipe.description, *quantizers, style=style)
    console.print(table)
    for reason in filter(None, missing.values()):
        console.print(f"not ready here (dim): {reason}", style="dim", highlight=False, markup=False)


@tasks.callback(invoke_without_command=True)
def list_tasks(context: typer.Context, json_output: JsonOption = False) -> None:
    """List the tasks: problems to learn.

    Example: qafel tasks
    """
    if context.invoked_subcommand is not None:
        return
    if json_output:
        print(json.dumps({name: section.__doc__ for name, section in TASKS.items()}, indent=2))
        return
    table = Table("task", "what it is", box=None, header_style="bold")
    for name, section in TASKS.items():
        table.add_row(name, section.__doc__)
    console.print(table)


@tasks.command()
def show(
    name: Annotated[str, typer.Argument(help="A task whose data is divided: cifar10, celeba or shakespeare.")],
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet:0.1, power:0.1, shards:2, user, …")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="The number of clients.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the division.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture; NAME-partition.png by default.")] = None,
) -> None:
    """Draw how a task's data is divided among clients.

    Example: qafel tasks show cifar10 --partition dirichlet:0.1
    """
    if name in TASKS and "partition" not in TASKS[name].model_fields:
        raise ConfigError(f"{name} is divided evenly: there is no partition to show")
    given = {"name": name, "data_seed": seed, "partition": partition, "clients": clients}
    settings = {key: value for key, value in given.items() if value is not None}
    task: Any = Config.from_dict({"task": settings}, "qafel tasks show").task.make()
    title = f"{name}, {partition or 'default partition'}: {task.clients:,} clients"
    path = out or Path(f"{name}-partition.png")
    save_figure(partition_figure(task.partition, task.train_samples.labels, title=title), path)
    sizes = task.partition.sizes
    console.print(
        f"{task.clients:,} clients, {int(sizes.sum()):,} samples; {int(sizes.min())} to {int(sizes.max()):,} each, "
        f"mean {sizes.mean():.1f}\npicture: {path}",
        highlight=False,
    )


def quantizers(
    specs: Annotated[list[str] | None, typer.Argument(help="Specs to show instead of the usual ones.")] = None,
    size: Annotated[int, typer.Option("--size", "-d", help="Coordinates of the vector.", min=1)] = 29282,
    json_output: JsonOption = False,
) -> None:
    """List the quantizers with δ, ω, bytes, and the error on Gaussian and heavy-tailed (Student t, 3) data.

    Example: qafel quantizers --size 29282
    """
    if size > 10_000_000:
        raise UserError(
            f"--size {size} is too much for a table: at most 10000000; `qafel bench quantizers` goes further"
        )
    rows = [quantizer_row(spec, size) for spec in specs or SHOWN]
    if json_output:
        print(json.dumps(rows, indent=2))
        return
    console.print(_quantizer_table(rows, size))
    console.print(
        "mean = x: unbiased, fit for clients. ω, δ: worst case over all vectors; no δ > 0: unfit for the server. "
        "NMSE, t(3): error measured on Gaussian and on Student-t(3) data. bound: 2^(−2R), the least at R bits.",
        style="dim",
    )


def quantizer_row(spec: str, size: int) -> dict[str, Any]:
    """One row of the table: theory, bytes, and the error on `size` coordinates of two kinds of data."""
    quantizer = parse(spec)
    stream = Stream.named(0, "quantizer table")
    normal = measured(quantizer, [gaussian(size)], 3, stream)
    heavy = measured(quantizer, [heavy_tailed(size)], 3, stream)
    return {
        "quantizer": quantizer.spec,
        "size": size,
        "unbiased": quantizer.unbiased(size),
        "omega": quantizer.omega(size),
        "delta": quantizer.delta(size),
        "bits_per_coordinate": normal.bits_per_coordinate,
        "bytes": round(normal.payload_bytes),
        "nmse_gaussian": normal.nmse,
        "nmse_heavy_tailed": heavy.nmse,
        "rate_distortion_bound": 2.0 ** (-2 * normal.bits_per_coordinate),
    }


def _quantizer_table(rows: list[dict[str, Any]], size: int) -> Table:
    headings = ("quantizer", "mean", "ω", "δ", "bits", "bytes", "NMSE", "t(3)", "bound")
    table = figures_table(f"{size:,} coordinates", *headings, words=2)
    for row in rows:
        table.add_row(
            row["quantizer"],
            "= x" if row["unbiased"] else "",
            f"{row['omega']:.2g}",
            f"{row['delta']:.2g}" if row["delta"] > 0 else "[red]–[/red]",
            f"{row['bits_per_coordinate']:.2f}",
            f"{row['bytes']:,}",
            f"{row['nmse_gaussian']:.2g}",
            f"{row['nmse_heavy_tailed']:.2g}",
            f"{row['rate_distortion_bound']:.0e}",
        )
    return table
