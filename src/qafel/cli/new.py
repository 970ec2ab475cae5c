"""`qafel new`: a project that runs, from a template."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer

from qafel.errors import ConfigError, OutputError

_SUFFIX = ".txt"
"""Of files in a template, so that tools do not take them for code of this package."""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project and of its folder.")],
    template: Annotated[
        Literal["torch", "lora", "numpy"],
        typer.Option(help="A PyTorch network, LoRA adapters of a language model, or a model in NumPy only."),
    ] = "torch",
) -> None:
    """Create a project that runs: task, recipe, deployed client, test and README.

    Example: qafel new rings --template torch
    """
    folder = Path(name)
    if not re.fullmatch(r"[A-Za-z][\w-]*", folder.name):
        raise ConfigError(f"a project's name has letters, digits, - and _, and starts with a letter; got {name!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} exists already: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    templates = files("qafel").joinpath("templates")
    for home in (templates.joinpath("shared"), templates.joinpath(template)):
        for file in home.iterdir():
            path = folder / file.name.removesuffix(_SUFFIX).replace("NAME", folder.name)
            path.write_text(file.read_text(encoding="utf-8").replace("@NAME@", folder.name), encoding="utf-8")
    typer.echo(f"{folder} is ready:\n  cd {folder}\n  qafel run {folder.name}.toml")
