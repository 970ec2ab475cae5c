"""A run from a configuration, as the command line makes it."""

from typing import NamedTuple

from qafel.config import load_recipe
from qafel.simulator import simulate


def run(config, out, listeners=(), *, task=None, **options):
    """Simulate what the configuration says; write the run directory; return its summary."""
    options = {"overwrite": not options.get("resume"), "check": False, **options}
    return simulate(**config.arguments(task), out=out, listeners=listeners, **options).summary


class Change(NamedTuple):
    """Settings that differ from a recipe's, and a tag for the run's name."""

    tag: str
    settings: tuple[str, ...]


def configuration(recipe, seed, *changes):
    """A recipe with this seed, as it is or with `changes` and a name that lists them."""
    settings = [setting for change in changes for setting in change.settings]
    name = [f'name="{"-".join((recipe, *(change.tag for change in changes)))}"'] if changes else []
    return load_recipe(recipe, [*settings, *name], seed)
