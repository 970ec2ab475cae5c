"""A user's folder: a module with a task, laws and a quantizer, a recipe that names them, and nothing installed."""

from __future__ import annotations

import itertools
from pathlib import Path

MODULE = '''
import numpy as np
from qafel import Kept, Layout, ServerRule, Stream


class Rooms:
    """Every client holds a few noisy readings of the same rooms; the model is their estimate."""

    name, metric_name, metric_goal = "rooms", "distance", "min"

    def __init__(self, clients=20, size=8):
        self.clients, self.layout = clients, Layout.flat(size)
        self.truth = np.linspace(18, 25, size, dtype=np.float32)

    def samples(self, client):
        return 5

    def initial_model(self, stream):
        return np.full(self.layout.size, 20, np.float32)

    def train(self, client, start, local, stream):
        noise = Stream.named(0, "readings", client).generator().normal(scale=0.5, size=self.layout.size)
        y = start.vector.astype(np.float64)
        for _ in range(local.steps):
            y -= local.lr * (y - self.truth - noise)
        return y.astype(np.float32)

    def evaluate(self, model):
        return {"metric": float(np.linalg.norm(model - self.truth))}


def small_rooms():
    return Rooms(clients=5, size=3)


ROOMS = Rooms(clients=6)


class Thirds:
    """A duration law: one, two or three, and one more for each seed."""

    def __init__(self, seed, scale=1.0):
        self.seed, self.scale = seed, scale

    def draw(self, client, number):
        return self.scale * (1 + (self.seed + number) % 3)


def every(clients, gap=0.01):
    """An arrival law."""
    for number in range(10**6):
        yield number * gap, number * 7 % clients


def only_fresh(staleness, cut=3):
    return 1.0 if staleness <= cut else 0.1


class Halving:
    def __init__(self, every):
        self.every = every

    def __call__(self, staleness):
        return 0.5 ** (staleness // self.every)


class Half:
    """Sixteen bits a coordinate."""

    def encode(self, vector, stream):
        return vector.astype(np.float16).tobytes()

    def decode(self, payload, size):
        return np.frombuffer(payload, np.float16, size).astype(np.float32)


class Median(Kept):
    def combine(self, uploads, updates, weights):
        return np.median(updates, axis=0)


class Step(ServerRule):
    """SGD with momentum: its velocity is its state."""

    def __init__(self, lr=0.5):
        self.lr = lr

    def begin_(self, algorithm, size, clients):
        self.velocity = np.zeros(size, np.float32)

    def step_(self, model, direction):
        self.velocity = 0.5 * self.velocity + direction.update(model)
        return (model - self.lr * self.velocity).astype(np.float32)
'''

RECIPE = """
name = "mine"

[task]
name = "MODULE:Rooms"
arguments = { clients = 30 }

[algorithm]
client_lr = 0.3
local_steps = 4
client_quantizer = "qsgd:4"

[timing]
arrivals = { name = "MODULE:every", gap = 0.02 }
duration = "MODULE:Thirds"

[evaluation]
every = 10
target = 1.0

[stop]
server_steps = 30
"""
_numbers = itertools.count()


def write_folder(folder: Path) -> str:
    """Write module and recipe, own.toml; return the module's name, which no other folder's module has."""
    module = f"own_module_{next(_numbers)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(MODULE)
    (folder / "own.toml").write_text(RECIPE.replace("MODULE", module))
    return module
