"""`qafel recipes`, `qafel tasks` and `qafel quantizers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from qafel import config, drawing
from qafel.algorithm import METHODS
from qafel.cli import new_app
from qafel.cli.console import JsonOption, console, figures_table, print_json
from qafel.config import Config
from qafel.config.tasks import TASKS
from qafel.errors import ConfigError, UserError
from qafel.quantizers import is_measured, make_quantizer, measure_error
from qafel.quantizers.measure import SHOWN, gaussian, heavy_tailed
from qafel.rng import Stream
from qafel.tasks.datasets.partition import partition_figure
from qafel.text import counted, did_you_mean, human_bytes

tasks = new_app("List the tasks, or show how the data of one is divided among clients.")


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="List only recipes that contain all these words; or `show NAME`."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """List the recipes that ship with the package, or show all settings of one.

    `--set` of other commands changes any setting. `show` also takes a TOML file.

    Example: qafel recipes cifar10 qafel
    """
    if words and words[0] == "show":
        if len(words) != 2:
            raise UserError("`qafel recipes show` takes one recipe, such as mushrooms-qafel-4bit")
        _show_recipe(config.load_recipe(words[1]), json_output)
        return
    loaded = [config.load_recipe(name) for name in config.recipes()]
    chosen = [recipe for recipe in loaded if _has_words(recipe, words or ())]
    if not chosen:
        known = [*TASKS, *METHODS, *config.recipes()]
        missed = next((word for word in words or () if not any(_has_words(recipe, [word]) for recipe in loaded)), "")
        raise UserError(
            f"no recipe contains {' and '.join(map(repr, words or ()))}"
            f"{did_you_mean(missed, known) if missed else ''}; `qafel recipes` lists all"
        )
    if json_output:
        print_json([recipe.model_dump() for recipe in chosen])
        return
    missing = {recipe.task.name: recipe.task.missing() is not None for recipe in chosen}
    for task in sorted(missing, key=missing.__getitem__):  # tasks that are ready come first
        _print_group([recipe for recipe in chosen if recipe.task.name == task])
    console.print("all settings of one: qafel recipes show NAME; run it: qafel run NAME", style="dim", highlight=False)


def _has_words(recipe: Config, words: Sequence[str]) -> bool:
    text = f"{recipe.name} {recipe.task.name} {recipe.algorithm.method} {recipe.description}".casefold()
    return all(word.casefold() in text for word in words)


def _print_group(group: Sequence[Config]) -> None:
    """Print the recipes of one task, and what is missing to run them."""
    task = group[0].task
    console.print(Text.assemble((task.name, "bold"), f"  {TASKS[task.name].__doc__}"))
    if (reason := task.missing()) is not None:
        console.print(f"not ready here: {reason}", style="yellow", highlight=False, markup=False)
    table = Table(box=None, show_header=False, padding=(0, 1), style="dim" if reason else "")
    table.add_column(no_wrap=True, overflow="fold")  # users copy names
    table.add_column()
    for recipe in group:
        first, _, rest = recipe.description.partition(", ")
        in_heading = first.replace("-", "").casefold() == task.name
        table.add_row(recipe.name, rest if in_heading else recipe.description)
    console.print(table)
    console.print()


def _show_recipe(recipe: Config, json_output: bool) -> None:
    if json_output:
        print_json(recipe.model_dump())
        return
    reason = recipe.task.missing()
    words = f"{recipe.description}\n{f'not ready here: {reason}' if reason else f'run it: qafel run {recipe.name}'}"
    print(*(f"# {line}" for line in words.splitlines()), sep="\n")
    print(recipe.to_toml(), end="")


@tasks.callback(invoke_without_command=True)
def list_tasks(context: typer.Context, json_output: JsonOption = False) -> None:
    """List the tasks.

    Example: qafel tasks
    """
    if context.invoked_subcommand is not None:
        return
    if json_output:
        print_json({name: section.__doc__ for name, section in TASKS.items()})
        return
    table = Table("task", "description", box=None, header_style="bold")
    for name, section in TASKS.items():
        table.add_row(name, section.__doc__)
    console.print(table)


@tasks.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="TASK", help="A task with a partition: cifar10, celeba or shakespeare.")
    ],
    partition: Annotated[
        str | None, typer.Option(help="Partition: iid, dirichlet:0.1, power:0.1, shards:2, user, …")
    ] = None,
    clients: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of clients.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the partition.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Picture to write. Default: NAME-partition.png.")] = None,
) -> None:
    """Draw how a task's data is divided among clients.

    Example: qafel tasks show cifar10 --partition dirichlet:0.1
    """
    if name in TASKS and "partition" not in TASKS[name].model_fields:
        raise ConfigError(f"{name} is divided evenly: it does not have a partition to show")
    given = {"name": name, "data_seed": seed, "partition": partition, "clients": clients}
    settings = {key: value for key, value in given.items() if value is not None}
    task: Any = Config.from_dict({"task": settings}, "qafel tasks show").task.make()
    title = f"{name}, {partition or 'default partition'}: {counted(task.clients, 'client')}"
    path = out or Path(f"{name}-partition.png")
    figure = partition_figure(task.partition, task.train_samples.labels, title=title)
    drawing.printed.save_figure(figure, path)
    sizes = task.partition.sizes
    console.print(
        f"{counted(task.clients, 'client')}, {counted(int(sizes.sum()), 'sample')}; "
        f"{int(sizes.min())} to {int(sizes.max()):,} each, mean {sizes.mean():.1f}\npicture: {path}",
        highlight=False,
    )


def quantizers(
    specs: Annotated[
        list[str] | None, typer.Argument(metavar="SPEC", help="Quantizers. Default: a list of common ones.")
    ] = None,
    size: Annotated[int, typer.Option("--size", "-d", metavar="N", help="Length of the vector.", min=1)] = 29282,
    json_output: JsonOption = False,
) -> None:
    """List quantizers with their bytes, their constants δ and ω, and their error on random data.

    Example: qafel quantizers --size 29282
    """
    if size > 10_000_000:
        raise UserError(f"--size is at most 10,000,000, got {size:,}; `qafel bench quantizers` takes larger vectors")
    rows = [quantizer_row(spec, size) for spec in specs or SHOWN]
    if json_output:
        print_json(rows)
        return
    console.print(_quantizer_table(rows, size))
    console.print(
        "mean = x: unbiased, suits clients. ω, δ: worst case over all vectors; without δ > 0, unfit for the server. "
        f"{'≈: measured, not a worst case. ' if any(row['measured'] for row in rows) else ''}"
        "NMSE, t(3): error on Gaussian and Student-t(3) data. bound: 2^(−2R), the minimum at R bits.",
        style="dim",
    )


def quantizer_row(spec: str, size: int) -> dict[str, Any]:
    """One row of the table: theory, bytes, and the error on two kinds of data."""
    quantizer = make_quantizer(spec)
    stream = Stream.named(0, "quantizer table")
    normal = measure_error(quantizer, [gaussian(size)], 3, stream)
    heavy = measure_error(quantizer, [heavy_tailed(size)], 3, stream)
    return {
        "quantizer": quantizer.spec,
        "size": size,
        "unbiased": quantizer.unbiased(size),
        "omega": quantizer.omega(size),
        "delta": quantizer.delta(size),
        "measured": is_measured(quantizer),
        "bits_per_coordinate": normal.bits_per_coordinate,
        "bytes": round(normal.payload_bytes),
        "nmse_gaussian": normal.nmse,
        "nmse_heavy_tailed": heavy.nmse,
        "rate_distortion_bound": 2.0 ** (-2 * normal.bits_per_coordinate),
    }


def _quantizer_table(rows: list[dict[str, Any]], size: int) -> Table:
    headings = ("quantizer", "mean", "ω", "δ", "bits", "bytes", "NMSE", "t(3)", "bound")
    table = figures_table(f"{size:,} coordinates", *headings, words=2)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"  # long specs wrap
    for row in rows:
        near = "≈" if row["measured"] else ""
        table.add_row(
            row["quantizer"],
            "= x" if row["unbiased"] else "",
            near + _two_digits(row["omega"]),
            near + _two_digits(row["delta"]) if row["delta"] > 0 else "[red]–[/red]",
            f"{row['bits_per_coordinate']:.2f}",
            f"{row['bytes']:,}" if row["bytes"] < 1_000_000 else human_bytes(row["bytes"]),
            _two_digits(row["nmse_gaussian"]),
            _two_digits(row["nmse_heavy_tailed"]),
            f"{row['rate_distortion_bound']:.0e}",
        )
    return table


def _two_digits(value: float) -> str:
    """At most six characters: 0.037, 8.9e-4, 110, 2.2e6."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{float(f'{value:.2g}'):g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
