"""Every setting of a run, frozen and validated.

tasks      [task]: the problem, and a check that its data is there
start      [start]: the model that a run starts from
sections   recipes, `extends` and `--set`; the other sections; `Config`, which holds all sections
"""

from qafel.config.sections import Config, Evaluation, Limits, Network, Timing, load_recipe, recipes

__all__ = ["Config", "Evaluation", "Limits", "Network", "Timing", "load_recipe", "recipes"]
