"""`qafel tasks`: what there is to learn, and how a dataset is divided."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from qafel.cli.progress import console
from qafel.config import Config
from qafel.errors import ConfigError
from qafel.results.plots import save_figure
from qafel.task_config import TASKS

tasks = typer.Typer(help="List the tasks, or show how one's data is divided among clients.")


@tasks.callback(invoke_without_command=True)
def list_tasks(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
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
    if name in ("mushrooms", "quadratic", "logistic"):
        raise ConfigError(f"{name} is divided evenly: there is no partition to show")
    given = {"name": name, "data_seed": seed, "partition": partition, "clients": clients}
    settings = {key: value for key, value in given.items() if value is not None}
    task: Any = Config.from_dict({"task": settings}, "qafel tasks show").task.make()
    figures = importlib.import_module("qafel.tasks.partition_figure")
    title = f"{name}, {partition or 'default partition'}: {task.clients:,} clients"
    path = out or Path(f"{name}-partition.png")
    save_figure(figures.partition_figure(task.partition, task.train_samples.labels, title=title), path)
    sizes = task.partition.sizes
    console.print(
        f"{task.clients:,} clients, {int(sizes.sum()):,} samples; {int(sizes.min())} to {int(sizes.max()):,} each, "
        f"mean {sizes.mean():.1f}\npicture: {path}",
        highlight=False,
    )
