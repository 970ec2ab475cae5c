"""Small tasks of many kinds, made by functions that other processes can import."""

import random
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import Dataset

from qafel.tasks.neural.task import TorchTask, is_correct

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


def multi_label():
    inputs, _ = features()
    data = inputs, (inputs[:, :3] > 0).astype(np.float32)
    return TorchTask(
        *("labels", partial(nn.Linear, 6, 3), data, data, CLIENTS), loss=binary_cross_entropy_with_logits,
        metrics={"exact": lambda outputs, targets: ((outputs > 0) == targets.bool()).all(dim=1)},
    )  # fmt: skip


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
    "model in bfloat16": partial(made, half, forward=as_half),
}


def backbone(scale=1.0):
    return made(partial(Backbone, scale))
