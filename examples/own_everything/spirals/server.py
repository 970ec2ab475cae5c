"""Parts of the server: how much an old update counts, and how the buffer becomes one update."""

import numpy as np

from qafel import Kept


class HalfLife:
    """A staleness law: an update counts half as much for every `steps` that the model has moved on."""

    def __init__(self, steps=5):
        self.steps = steps

    def __call__(self, staleness):
        return 0.5 ** (staleness / self.steps)


class TrimmedMean(Kept):
    """An accumulator: of each coordinate, the mean without the `trim` largest and smallest values."""

    def __init__(self, trim=2):
        self.trim = trim

    def combine(self, uploads, updates, weights):
        kept = np.argsort(updates, axis=0)[self.trim : len(updates) - self.trim]
        values = np.take_along_axis(updates, kept, axis=0)
        return (values * weights[kept]).mean(axis=0)
