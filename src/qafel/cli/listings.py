"""What there is: recipes and tasks."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from qafel import config
from qafel.cli.progress import console
from qafel.task_config import TASKS

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def recipes(json_output: Json = False) -> None:
    """List the recipes that ship with the package.

    Example: qafel recipes
    """
    loaded = [config.load_recipe(name) for name in config.recipes()]
    if json_output:
        print(json.dumps([recipe.model_dump() for recipe in loaded], indent=2))
        return
    table = Table("recipe", "what it is", "clients send", "server sends", box=None, header_style="bold")
    for recipe in loaded:
        table.add_row(
            recipe.name, recipe.description, recipe.algorithm.client_quantizer, recipe.algorithm.server_quantizer
        )
    console.print(table)


def tasks(json_output: Json = False) -> None:
    """List the tasks: problems to learn.

    Example: qafel tasks
    """
    if json_output:
        print(json.dumps({name: section.__doc__ for name, section in TASKS.items()}, indent=2))
        return
    table = Table("task", "what it is", box=None, header_style="bold")
    for name, section in TASKS.items():
        table.add_row(name, section.__doc__)
    console.print(table)
