"""How fast clients train, against a bare PyTorch loop in the same run, on one thread.

    qafel                     `TorchTask.train`: load the model, gather and normalise a batch, step, hand the model back
    plain, mallopt            torch's own operations and optimizer on a batch that is ready, freed memory kept
    plain                     the same with glibc as it comes, in a process of its own

An update is one local step on one batch. Seconds are those of the processor, which on an idle machine are those of the
clock: all here runs on one thread. The trainers take turns, round after round, and a ratio is the median of the rounds'
ratios, so others' load on the machine hits all of them alike. The data is random; no dataset is needed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qafel.algorithm import LocalTraining
from qafel.rng import Stream
from qafel.tasks.datasets.partition import split
from qafel.tasks.datasets.samples import ArraySamples
from qafel.tasks.neural.networks import CharacterLstm, Cnn, Normalise, as_numbers
from qafel.tasks.neural.task import TorchTask
from qafel.tasks.neural.trainer import Precision, has_bfloat16, keep_freed_memory, one_thread

# What anyone would write: the paper's models trained by PyTorch's own layers and optimizer, to be measured against.


@final
class PlainCnn(nn.Module):
    """The four-layer network of `Cnn`, from torch's layers."""

    def __init__(self, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv4 = nn.Conv2d(32, 32, 3, padding=2)
        self.norm = nn.GroupNorm(32, 32)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(288, classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = self.pool(self.relu(self.norm(conv(x))))
        scores: Tensor = self.linear(self.dropout(x.flatten(1)))
        return scores


def plain_cnn_loop(batch_size: int) -> Callable[[int], float]:
    """Steps on one batch of random images; a call makes so many and tells the seconds of one."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 3, 32, 32, generator=generator)
    return _loop(PlainCnn(10), images, torch.randint(0, 10, (batch_size,), generator=generator))


def plain_lstm_loop(batch_size: int) -> Callable[[int], float]:
    """Steps on one batch of random text."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 80, (batch_size, 81), generator=generator)
    return _loop(CharacterLstm(), text[:, :-1].contiguous(), text[:, -1].contiguous())


def _loop(module: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[int], float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def train(count: int) -> float:
        begin = time.process_time()
        for _ in range(count):
            optimizer.zero_grad()
            cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return (time.process_time() - begin) / count

    return train


Updates: TypeAlias = Callable[[int], float]
"""Make so many updates and tell how many seconds one took."""


@final
@dataclass(frozen=True)
class Rate:
    """One trainer's time per update, in each round."""

    model: str
    batch_size: int
    trainer: str
    seconds: tuple[float, ...]

    @property
    def updates_per_s(self) -> float:
        return 1 / median(self.seconds)

    @property
    def best_updates_per_s(self) -> float:
        return 1 / min(self.seconds)

    def times(self, other: Rate) -> float:
        """How many times as fast as the other this one is."""
        return median(theirs / ours for theirs, ours in zip(other.seconds, self.seconds, strict=True))

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "trainer": self.trainer,
            "updates_per_s": round(self.updates_per_s, 2),
            "best_updates_per_s": round(self.best_updates_per_s, 2),
        }


@final
@dataclass(frozen=True)
class NeuralFigures:
    """All rates of one run, and the ratios that count."""

    rates: tuple[Rate, ...]
    bfloat16: bool
    """Whether the hardware has it; without it the LSTM trains in float32."""

    def rate(self, model: str, batch_size: int, trainer: str) -> Rate | None:
        wanted = (model, batch_size, trainer)
        return next((r for r in self.rates if (r.model, r.batch_size, r.trainer) == wanted), None)

    def ratios(self) -> dict[str, float]:
        """Our trainer against the others on the same model and batch; the LSTM's precisions against each other."""
        found = {}
        for ours in self.rates:
            for other in self.rates:
                comparable = (ours.model, ours.batch_size) == (other.model, other.batch_size)
                if comparable and ours.trainer.startswith("qafel") and ours is not other:
                    key = f"{ours.model} batch {ours.batch_size}: {ours.trainer} / {other.trainer}"
                    found[key] = round(ours.times(other), 3)
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "threads": 1,
            "torch": torch.__version__,
            "bfloat16": self.bfloat16,
            "rates": [rate.as_dict() for rate in self.rates],
            "ratios": self.ratios(),
        }


def neural_benchmark(
    rounds: int = 15, updates: int = 5, batch_sizes: tuple[int, ...] = (10, 32), lstm: bool = True
) -> NeuralFigures:
    """Measure the CNN at each batch size and, unless told not to, the LSTM at 32."""
    rates: list[Rate] = []
    keep_freed_memory()
    with one_thread():
        for size in batch_sizes:
            with _elsewhere(size) as unaided:
                trainers = {"qafel": _cnn(size), "plain, mallopt": plain_cnn_loop(size), "plain": unaided}
                rates += _take_turns("cnn", size, trainers, rounds, updates)
        fast = has_bfloat16(torch.device("cpu"))
        if lstm:
            trainers = {"qafel float32": _lstm("float32"), "plain, mallopt": plain_lstm_loop(32)}
            trainers |= {"qafel bfloat16": _lstm("bfloat16")} if fast else {}
            rates += _take_turns("lstm", 32, trainers, rounds, max(1, updates // 3))
    return NeuralFigures(tuple(rates), fast)


def _take_turns(model: str, size: int, trainers: dict[str, Updates], rounds: int, updates: int) -> list[Rate]:
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for train in trainers.values():
        train(2)  # compiles, and fills the caches
    for _ in range(rounds):
        for name, train in trainers.items():
            seconds[name].append(train(updates))
    return [Rate(model, size, name, tuple(found)) for name, found in seconds.items()]


def random_cnn_task(batch_size: int, clients: int = 1) -> TorchTask:
    """The paper's network on random images, four batches for each client."""
    generator, count = np.random.default_rng(0), 4 * batch_size * clients
    data = ArraySamples(generator.integers(0, 256, (count, 3, 32, 32), np.uint8), generator.integers(0, 10, count))
    prepare = Normalise((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    part = split("iid", data.labels, clients, Stream.named(0, "partition"))
    return TorchTask("cnn", partial(Cnn, 10), data, data, part, prepare=prepare)


def random_lstm_task(precision: Precision = "auto", clients: int = 1) -> TorchTask:
    """The paper's LSTM on random characters, four batches of 32 for each client."""
    generator, count = np.random.default_rng(0), 128 * clients
    data = ArraySamples(generator.integers(0, 80, (count, 80), np.uint8), generator.integers(0, 80, count))
    part = split("iid", data.labels, clients, Stream.named(0, "partition"))
    return TorchTask("lstm", CharacterLstm, data, data, part, prepare=as_numbers, precision=precision)


def _cnn(size: int) -> Updates:
    return _updates(random_cnn_task(size), size)


def _lstm(precision: Precision) -> Updates:
    return _updates(random_lstm_task(precision), 32)


def _updates(task: TorchTask, size: int) -> Updates:
    local = LocalTraining(0.01, steps=1, batch_size=size)
    start = task.initial_model(Stream.named(0, "initial model"))

    def train(count: int) -> float:
        begin = time.process_time()
        for number in range(count):
            task.train(0, start, local, Stream.named(0, "train", 0, number))
        return (time.process_time() - begin) / count

    return train


@contextlib.contextmanager
def _elsewhere(size: int) -> Iterator[Updates]:
    """The plain loop in a new process, whose allocator is as glibc made it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, size), daemon=True)
    process.start()
    there.close()

    def train(count: int) -> float:
        here.send(count)
        seconds: float = here.recv()
        return seconds

    try:
        yield train
    finally:
        here.close()
        process.join()


def _serve(pipe: Connection, size: int) -> None:
    torch.set_num_threads(1)
    train = plain_cnn_loop(size)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(train(pipe.recv()))
