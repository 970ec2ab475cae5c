"""`TorchTask`: a task from any PyTorch module, samples and partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qafel.algorithm import HiddenState, LocalTraining
from qafel.errors import ConfigError
from qafel.params import Layout, Vector, require_vector
from qafel.rng import Stream
from qafel.tasks.datasets.partition import Indices, Partition
from qafel.tasks.datasets.samples import Samples, as_samples
from qafel.tasks.neural import trainer
from qafel.tasks.neural.trainer import FillsGradient, FlatModel, Loss, Precision, Prepare
from qafel.tasks.protocol import Goal


def to_tensor(inputs: NDArray[Any], device: torch.device) -> Tensor:
    """Return the inputs as a tensor on the device."""
    return torch.from_numpy(inputs).to(device)


def is_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each sample whether the class with the largest score is the target."""
    return outputs.argmax(dim=1) == targets


@final
class TorchTask:
    """Train a PyTorch module on the samples of clients.

    Training and evaluation use one thread. Equal arguments give equal bits in every process on the same machine. A task
    has one module, so only one thread at a time may use it.

    name               the name of the task
    model              a function that returns the module; its random numbers come from the stream of `initial_model`
    train, test        the samples: a pair of arrays, inputs and targets, or an object with the protocol `Samples`
    partition          the result of `split(…)`, or a list with an array of row numbers for each client
    prepare            converts a batch of inputs to a tensor on a device
    loss               the mean loss of a batch, from outputs and targets
    score              the score of each test sample, from outputs and targets; the metric is their mean
    metric_name        the name of the metric
    metric_goal        "max" or "min"
    device             "cpu", "cuda", …, or "auto"
    precision          the type of matrix products: "float32", "bfloat16" or "auto"
    evaluation_batch   test samples per batch; workers share an evaluation by batches
    rebuild            a picklable function without arguments that returns an equal task; workers call it, so that the
                       data is not copied
    """

    takes_correction = True

    def __init__(
        self,
        name: str,
        model: Callable[[], nn.Module],
        train: Samples | tuple[Any, Any],
        test: Samples | tuple[Any, Any],
        partition: Partition | Sequence[Any],
        *,
        prepare: Prepare = to_tensor,
        loss: Loss = cross_entropy,
        score: Callable[[Tensor, Tensor], Tensor] = is_correct,
        metric_name: str = "accuracy",
        metric_goal: Goal = "max",
        device: str = "cpu",
        precision: Precision = "float32",
        evaluation_batch: int = 128,
        rebuild: Callable[[], TorchTask] | None = None,
    ) -> None:
        train, test = as_samples(train), as_samples(test)
        partition = partition if isinstance(partition, Partition) else Partition.of_parts(partition)
        given = {key: value for key, value in locals().items() if key not in ("self", "rebuild")}
        if (last := int(partition.order.max())) >= len(train):
            raise ConfigError(f"task {name!r} has {len(train)} training samples, but its partition has row {last}")
        if len(test) == 0:
            raise ConfigError(f"task {name!r} needs at least one test sample")
        self.name, self.metric_name, self.metric_goal = name, metric_name, metric_goal
        self.train_samples, self.test_samples, self.partition = train, test, partition
        self._make, self._prepare, self._loss, self._score = model, prepare, loss, score
        self._device = trainer.choose_device(device)
        self._precision = trainer.choose_precision(precision, self._device)
        self._evaluation_batch = evaluation_batch
        self._rebuild = rebuild or partial(TorchTask, **given)
        trainer.keep_freed_memory()
        with trainer.random_numbers_of(Stream.named(0, "unused"), self._device):
            self._model = FlatModel(model(), self._device)
        plain = self._device.type == "cpu" and self._precision == torch.float32 and loss is cross_entropy
        module = self._model.module
        self._compiled = module if plain and isinstance(module, FillsGradient) else None

    @property
    def clients(self) -> int:
        return self.partition.clients

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def precision(self) -> str:
        """The type of matrix products: float32 or bfloat16."""
        return str(self._precision).removeprefix("torch.")

    def samples(self, client: int) -> int:
        return len(self.partition.rows(client))

    def initial_model(self, stream: Stream) -> Vector:
        with trainer.random_numbers_of(stream, torch.device("cpu")):
            return FlatModel(self._make(), torch.device("cpu")).vector()

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        """Take the client's local steps of SGD from `start`. `stream` orders its samples. Algorithm 2, lines 3 to 6."""
        model = self._model
        model.load(start.vector)
        if not model.module.training:
            model.module.train()
        randomness = trainer.random_numbers_of(stream, self._device, model.dropouts, others=self._compiled is None)
        with trainer.one_thread(), randomness:
            beginning = model.values.clone() if local.proximal else None
            correction = None if local.correction is None else self._correction(local.correction)
            for rows in trainer.batches(self.partition.rows(client), local, stream.generator()):
                inputs, targets = self._batch(self.train_samples, rows)
                self._fill_gradient(inputs, targets)
                trainer.descend_(model, local, beginning, correction)
        return model.vector()

    def _correction(self, vector: Vector) -> Tensor:
        return torch.tensor(require_vector(vector, self.layout.size, "a client rule"), device=self._device)

    def _batch(self, samples: Samples, rows: Indices) -> tuple[Tensor, Tensor]:
        """Return prepared inputs and targets of these rows; integer targets become int64."""
        inputs, labels = samples.batch(rows)
        targets = torch.from_numpy(labels)
        whole = targets if targets.is_floating_point() else targets.long()
        return self._prepare(inputs, self._device), whole.to(self._device)

    def _fill_gradient(self, inputs: Tensor, targets: Tensor) -> None:
        model = self._model
        if self._compiled and self._compiled.fill_gradient(
            model.values.numpy(), inputs, targets, model.gradient.numpy()
        ):
            return
        model.gradient.zero_()
        self._loss(self._forward(inputs), targets).backward()  # type: ignore[no-untyped-call]

    def _forward(self, inputs: Tensor) -> Tensor:
        with trainer.autocast(self._precision, self._device):
            outputs: Tensor = self._model.module(inputs)
        return outputs.float()

    def evaluate(self, model: Vector) -> dict[str, float]:
        """Return the mean score and loss over all test samples."""
        return self.combine([self.evaluate_part(model, part) for part in range(self.evaluation_parts)])

    @property
    def evaluation_parts(self) -> int:
        return -(-len(self.test_samples) // self._evaluation_batch)

    @torch.inference_mode()
    def evaluate_part(self, model: Vector, part: int) -> tuple[float, ...]:
        """Return the sums of score and loss over one batch of test samples."""
        self._model.load(model)
        self._model.module.eval()
        start = part * self._evaluation_batch
        rows = np.arange(start, min(start + self._evaluation_batch, len(self.test_samples)))
        with trainer.one_thread():
            inputs, targets = self._batch(self.test_samples, rows)
            outputs = self._forward(inputs)
        loss = self._loss(outputs, targets).item()
        return self._score(outputs, targets).double().sum().item(), len(rows) * loss

    def combine(self, parts: Sequence[tuple[float, ...]]) -> dict[str, float]:
        score, loss = (sum(column) / len(self.test_samples) for column in zip(*parts, strict=True))
        return {"metric": score, "loss": loss}

    def __reduce__(self) -> tuple[Callable[..., TorchTask], tuple[Any, ...]]:
        return self._rebuild, ()
