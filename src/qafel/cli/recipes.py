"""`qafel recipes`: what there is to run."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from qafel import config
from qafel.cli.progress import console

_WIDE = 120  # columns of a terminal; a narrower one shows no quantizers, which the descriptions name too

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def recipes(json_output: Json = False) -> None:
    """List the recipes that ship with the package.

    Example: qafel recipes
    """
    loaded = [config.load_recipe(name) for name in config.recipes()]
    if json_output:
        print(json.dumps([recipe.model_dump() for recipe in loaded], indent=2))
        return
    wide = console.width >= _WIDE
    table = Table(box=None, header_style="bold")
    table.add_column("recipe", min_width=max(len(recipe.name) for recipe in loaded))  # to be copied, so never cut
    for heading in ("what it is", "clients send", "server sends") if wide else ("what it is",):
        table.add_column(heading)
    for recipe in loaded:
        quantizers = (recipe.algorithm.client_quantizer, recipe.algorithm.server_quantizer) if wide else ()
        table.add_row(recipe.name, recipe.description, *quantizers)
    console.print(table)
