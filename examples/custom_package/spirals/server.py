"""Parts of the server: a staleness law and an accumulator."""

import numpy as np

from qafel import Kept


class HalfLife:
    """A staleness law: the weight halves every `steps` server steps."""

    def __init__(self, steps=5):
        self.steps = steps

    def __call__(self, staleness):
        return 0.5 ** (staleness / self.steps)


class TrimmedMean(Kept):
    """An accumulator: the mean of each coordinate without its `trim` largest and smallest values."""

    def __init__(self, trim=2):
        self.trim = trim

    def combine(self, uploads, updates, weights):
        kept = np.argsort(updates, axis=0)[self.trim : len(updates) - self.trim]
        values = np.take_along_axis(updates, kept, axis=0)
        return (values * weights[kept]).mean(axis=0)
