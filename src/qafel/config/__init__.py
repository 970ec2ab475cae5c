"""Every setting of a run, frozen and validated. In the order in which a run gets its settings:

recipes    the recipes that ship and the user's own, `extends`, `--set` overrides: TOML text to a table
tasks      [task]: what is learnt, and the check that its data is there
sections   [algorithm], [timing], [evaluation], [stop], and `Config`, which holds all of them
"""

from qafel.config.recipes import recipes
from qafel.config.sections import Config, EvaluationConfig, StopConfig, TimingConfig, load_recipe

__all__ = ["Config", "EvaluationConfig", "StopConfig", "TimingConfig", "load_recipe", "recipes"]
