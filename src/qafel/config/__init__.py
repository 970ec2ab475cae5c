"""Every setting of a run, frozen and validated. In the order in which a run gets its settings:

tasks      [task]: what is learnt, and the check that its data is there
start      [start]: the model that a run begins from
sections   recipes, `extends` and `--set`; [algorithm], [timing], [evaluation], [stop]; `Config`, which holds all
"""

from qafel.config.sections import Config, Evaluation, Limits, Network, Timing, load_recipe, recipes

__all__ = ["Config", "Evaluation", "Limits", "Network", "Timing", "load_recipe", "recipes"]
