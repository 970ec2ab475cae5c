"""Small tasks of many kinds, made by functions that other processes can import."""

import random
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import Dataset

from qafel.params import Layout
from qafel.tasks.neural.task import TorchTask, is_correct
from qafel.tasks.neural.trainer import has_bfloat16
from qafel.tasks.protocol import train_from

ROWS = 96
CLIENTS = [range(start, start + 24) for start in range(0, ROWS, 24)]


def features(count=ROWS, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    return drawn, (drawn[:, 0] + drawn[:, 1] > 0).astype(np.int64)


def layers():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def half():
    return layers().to(torch.bfloat16)


def as_half(module, inputs):
    return module(inputs.to(torch.bfloat16))


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


class Backbone(nn.Module):
    """Frozen layers in bfloat16, and a head to train."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.body = nn.Linear(6, 16).to(torch.bfloat16)
        nn.init.constant_(self.body.bias, scale)
        self.body.requires_grad_(False)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.to(torch.bfloat16))).float())


class Gpt(nn.Module):
    """A decoder-only transformer whose embedding is also its last layer."""

    def __init__(self, vocabulary=16, width=16, length=8, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(x)


def next_token_loss(outputs, targets):
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def next_token_accuracy(outputs, targets):
    return (outputs.argmax(-1) == targets).double().mean(dim=1)


def f1(outputs, targets):
    found, true = outputs.argmax(1).bool(), targets.bool()
    return 2 * (found & true).sum().item() / max(1, (found.sum() + true.sum()).item())


class Augmented(Dataset):
    """Rows with noise from Python's and NumPy's global generators."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        inputs, labels = features()
        noise = np.random.normal(scale=0.01, size=6) + random.gauss(0, 0.01)  # noqa: NPY002
        return inputs[row] + noise, labels[row]


def jitter(inputs):
    return inputs + 0.01 * torch.randn_like(inputs)


def made(model=layers, data=None, clients=CLIENTS, **settings):
    return TorchTask(
        "small", model, features() if data is None else data, features(40, 1), clients, evaluation_batch=16, **settings
    )


def gpt(precision="float32"):
    tokens = np.cumsum(np.random.default_rng(0).integers(0, 3, (ROWS, 9)), axis=1) % 16
    data = tokens[:, :-1], tokens[:, 1:]
    return TorchTask(
        *("gpt", Gpt, data, data, CLIENTS), loss=next_token_loss, metrics={"accuracy": next_token_accuracy},
        optimizer=torch.optim.AdamW, precision=precision,
    )  # fmt: skip


def regression():
    inputs, _ = features()
    data = inputs, inputs @ np.arange(6.0)[:, None]
    return TorchTask("regression", partial(nn.Linear, 6, 1), data, data, CLIENTS, loss=mse_loss, metrics={})


def all_right(outputs, targets):
    return ((outputs > 0) == targets.bool()).all(dim=1)


def multi_label():
    inputs, _ = features()
    data = inputs, (inputs[:, :3] > 0).astype(np.float32)
    return TorchTask(
        *("labels", partial(nn.Linear, 6, 3), data, data, CLIENTS), loss=binary_cross_entropy_with_logits,
        metrics={"exact": all_right},
    )  # fmt: skip


GPT2 = {
    **{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256},
    **{"bos_token_id": 0, "eos_token_id": 0},
}
LORA = {"rank": 2, "alpha": 4, "target_modules": ["c_attn"]}
TEXTS = [f"{name} says that all the world is a stage. " * 12 for name in ("Jaques", "Rosalind", "Orlando", "Celia")]


def language_model(model=GPT2, lora=LORA, **settings):
    from qafel.tasks.neural.language import language

    return language(model, TEXTS, lora=lora, length=16, **settings)


TASKS = {
    "batch norm, recompute": partial(made, with_batch_norm, buffers="recompute"),
    "batch norm, hold": partial(made, with_batch_norm, buffers="hold"),
    "batch norm, batch": partial(made, with_batch_norm, buffers="batch"),
    "frozen": partial(made, Backbone),
    "patterns": partial(made, layers, trainable=["2.*"]),
    "gpt with tied weights and AdamW": gpt,
    "dataset with augmentation": partial(made, data=Augmented(), transform=jitter),
    "AdamW": partial(made, optimizer=partial(torch.optim.AdamW, weight_decay=0.01)),
    "f1": partial(made, metrics={"f1": f1, "accuracy": is_correct}),
    "regression": regression,
    "several labels": multi_label,
    "model in bfloat16": partial(made, half, forward=as_half),
}
if has_bfloat16(torch.device("cpu")):
    TASKS["gpt, products in bfloat16"] = partial(gpt, "bfloat16")


def backbone(scale=1.0):
    return made(partial(Backbone, scale))


class Together:
    """All tasks of a table as one: the vectors and the clients of each, one after the other."""

    metric_name, metric_goal, takes_correction = "metric", "max", True

    def __init__(self, tasks):
        self.name, self.tasks = "together", tasks
        self.owners = [(task, client) for task in tasks.values() for client in range(task.clients)]
        self.clients = len(self.owners)
        self.parts = [(task, part) for task in tasks.values() for part in range(task.evaluation_parts)]
        self.evaluation_parts = len(self.parts)
        shapes = {f"{name}: {key}": shape for name, task in tasks.items() for key, shape in task.layout.tensors}
        self.layout = Layout.of(shapes)
        self.stops = np.cumsum([task.layout.size for task in tasks.values()])

    def split(self, vector):
        """Return the part of each task."""
        return dict(zip(self.tasks, np.split(vector, self.stops[:-1]), strict=True))

    def part_of(self, vector, task):
        parts = zip(self.tasks.values(), self.split(vector).values(), strict=True)
        return next(part for one, part in parts if one is task)

    def samples(self, client):
        task, own = self.owners[client]
        return task.samples(own)

    def initial_model(self, stream):
        return np.concatenate([task.initial_model(stream) for task in self.tasks.values()])

    def train(self, client, start, local, stream):
        task, own = self.owners[client]
        model = start.vector.copy()
        self.part_of(model, task)[...] = train_from(task, own, self.part_of(start.vector, task), local, stream)
        return model

    def evaluate_part(self, model, part):
        task, own = self.parts[part]
        return task.evaluate_part(self.part_of(model, task), own)

    def combine(self, parts):
        found, given = {}, iter(parts)
        for name, task in self.tasks.items():
            figures = task.combine([next(given) for _ in range(task.evaluation_parts)])
            found |= {f"{name}: {key}": figure for key, figure in figures.items()}
        return {"metric": sum(found.values()), **found}

    def evaluate(self, model):
        return self.combine([self.evaluate_part(model, part) for part in range(self.evaluation_parts)])
