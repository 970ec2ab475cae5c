"""The speed of local training, relative to a plain PyTorch loop on one thread.

    qafel             `TorchTask.train`: load the model, gather and normalise a batch, step, return the model
    plain, mallopt    torch's operations and optimizer on a prepared batch; freed memory is kept
    plain             the same with the default settings of glibc, in its own process

An update is one local step on one batch. An evaluation is one batch of 100 without a gradient. Times are processor
times. The trainers take turns in rounds, and a ratio is the median of the rounds' ratios, so that other load affects
all of them alike. The data is random; no dataset is needed.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from statistics import median
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qafel.algorithm import HiddenState, LocalTraining
from qafel.bench import Timed, take_turns, timed
from qafel.rng import Stream
from qafel.tasks.datasets.partition import split
from qafel.tasks.datasets.samples import ArraySamples
from qafel.tasks.neural.published import CharacterLstm, Cnn, Normalise, as_numbers
from qafel.tasks.neural.task import TorchTask
from qafel.tasks.neural.trainer import Precision, has_bfloat16, keep_freed_memory, one_thread


@final
class PlainCnn(nn.Module):
    """The four-layer network of `Cnn`, from torch's layers."""

    def __init__(self, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.convolutions = tuple(nn.Conv2d(channels, 32, 3, padding=2) for channels in (3, 32, 32, 32))
        for number, convolution in enumerate(self.convolutions, start=1):
            self.add_module(f"conv{number}", convolution)
        self.norm = nn.GroupNorm(32, 32)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(288, classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convolutions:
            x = self.pool(self.relu(self.norm(conv(x))))
        scores: Tensor = self.linear(self.dropout(x.flatten(1)))
        return scores


@final
class PlainLstm(nn.Module):
    """The network of `CharacterLstm`, from torch's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.linear = nn.Linear(256, 80)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        scores: Tensor = self.linear(states[:, -1])
        return scores


def plain_cnn_loop(batch_size: int) -> Timed:
    """Updates of the plain network on one batch of random images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 3, 32, 32, generator=generator)
    return _loop(PlainCnn(10), images, torch.randint(0, 10, (batch_size,), generator=generator))


def plain_lstm_loop(batch_size: int) -> Timed:
    """Updates of the plain LSTM on one batch of random text."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 80, (batch_size, 81), generator=generator)
    return _loop(PlainLstm(), text[:, :-1].contiguous(), text[:, -1].contiguous())


def _loop(module: nn.Module, inputs: Tensor, targets: Tensor) -> Timed:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def update(_: int) -> None:
        optimizer.zero_grad()
        cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return timed(update)


@final
@dataclass(frozen=True)
class TrainingSpeed:
    """One trainer's time per update, in each round."""

    model: str
    batch_size: int
    trainer: str
    seconds: tuple[float, ...]

    @property
    def updates_per_s(self) -> float:
        return 1 / median(self.seconds)

    def times(self, other: TrainingSpeed) -> float:
        """The speed relative to the other."""
        return median(theirs / ours for theirs, ours in zip(other.seconds, self.seconds, strict=True))

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "trainer": self.trainer,
            "updates_per_s": round(self.updates_per_s, 2),
        }


@final
@dataclass(frozen=True)
class TrainingFigures:
    """The speed of every trainer in one run, and their ratios."""

    speeds: tuple[TrainingSpeed, ...]
    bfloat16: bool
    """Whether the hardware supports it. Without it the LSTM trains in float32."""

    def ratios(self) -> dict[str, float]:
        """Our trainer relative to the others on the same model and batch, and the LSTM's precisions to each other."""
        found = {}
        for ours in self.speeds:
            for other in self.speeds:
                comparable = (ours.model, ours.batch_size) == (other.model, other.batch_size)
                if comparable and ours.trainer.startswith("qafel") and ours is not other:
                    key = f"{ours.model} batch {ours.batch_size}: {ours.trainer} / {other.trainer}"
                    found[key] = round(ours.times(other), 3)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The content of the file of `--json`."""
        return {
            "threads": 1,
            "torch": torch.__version__,
            "bfloat16": self.bfloat16,
            "rates": [speed.as_dict() for speed in self.speeds],
            "ratios": self.ratios(),
        }


def measure_training(rounds: int = 15, updates: int = 5, batch_sizes: tuple[int, ...] = (10, 32)) -> TrainingFigures:
    """Measure the speed of all trainers.

    Each has `rounds` turns of `updates` updates, a third of that for the LSTM. The CNN is measured at each of
    `batch_sizes`, the LSTM at 32.
    """
    speeds: list[TrainingSpeed] = []
    trainers: dict[str, Timed]
    keep_freed_memory()
    with one_thread():
        for size in batch_sizes:
            with ProcessPoolExecutor(1, get_context("spawn")) as unaided:
                trainers = {
                    "qafel": _updates(random_cnn_task(size), size),
                    "plain, mallopt": plain_cnn_loop(size),
                    "plain": partial(_in_process, unaided, size),
                }
                speeds += _take_turns("cnn", size, trainers, rounds, updates)
        speeds += _take_turns("cnn evaluation", 100, _evaluations(100), rounds, updates)
        fast = has_bfloat16(torch.device("cpu"))
        trainers = {
            "qafel float32": _updates(random_lstm_task("float32"), 32),
            "plain, mallopt": plain_lstm_loop(32),
        }
        trainers |= {"qafel bfloat16": _updates(random_lstm_task("bfloat16"), 32)} if fast else {}
        speeds += _take_turns("lstm", 32, trainers, rounds, max(1, updates // 3))
        return TrainingFigures(tuple(speeds), fast)


def _take_turns(model: str, size: int, trainers: dict[str, Timed], rounds: int, updates: int) -> list[TrainingSpeed]:
    found = zip(trainers, take_turns(list(trainers.values()), rounds, updates), strict=True)
    return [TrainingSpeed(model, size, name, tuple(seconds)) for name, seconds in found]


def random_cnn_task(batch_size: int, clients: int = 1) -> TorchTask:
    """The paper's network on random images, four batches per client."""
    generator, count = np.random.default_rng(0), 4 * batch_size * clients
    data = ArraySamples(generator.integers(0, 256, (count, 3, 32, 32), np.uint8), generator.integers(0, 10, count))
    prepare = Normalise((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    part = split("iid", data.labels, clients, Stream.named(0, "partition"))
    return TorchTask("cnn", partial(Cnn, 10), data, data, part, prepare=prepare, evaluation_batch=100)


def random_lstm_task(precision: Precision = "auto", clients: int = 1) -> TorchTask:
    """The paper's LSTM on random characters, four batches of 32 per client."""
    generator, count = np.random.default_rng(0), 128 * clients
    data = ArraySamples(generator.integers(0, 80, (count, 80), np.uint8), generator.integers(0, 80, count))
    part = split("iid", data.labels, clients, Stream.named(0, "partition"))
    return TorchTask("lstm", CharacterLstm, data, data, part, prepare=as_numbers, precision=precision)


def _updates(task: TorchTask, size: int) -> Timed:
    local = LocalTraining(0.01, steps=1, batch_size=size)
    start = HiddenState.of(task.initial_model(Stream.named(0, "initial model")))
    return timed(lambda number: task.train(0, start, local, Stream.named(0, "train", 0, number)))


def _evaluations(size: int) -> dict[str, Timed]:
    """Evaluations of one batch by our task, and by the plain network on a prepared batch."""
    task, plain = random_cnn_task(size), PlainCnn(10).eval()
    start, images = task.initial_model(Stream.named(0, "initial model")), torch.randn(size, 3, 32, 32)

    @torch.inference_mode()
    def forward(_: int) -> None:
        plain(images)

    return {"qafel": timed(lambda _: task.evaluate_part(start, 0)), "plain, mallopt": timed(forward)}


def _in_process(unaided: ProcessPoolExecutor, size: int, count: int) -> float:
    """Updates of the plain network in its own process, with the default allocator of glibc."""
    return unaided.submit(_train_unaided, size, count).result()


def _train_unaided(size: int, count: int) -> float:
    return _unaided_loop(size)(count)


@cache
def _unaided_loop(size: int) -> Timed:
    torch.set_num_threads(1)
    return plain_cnn_loop(size)
