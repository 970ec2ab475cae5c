"""`TorchTask`: a task from any PyTorch module, samples and partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qafel.algorithm import HiddenState, LocalTraining
from qafel.errors import ConfigError
from qafel.params import Layout, Vector, require_vector
from qafel.rng import Stream
from qafel.tasks.datasets.partition import Indices, Partition
from qafel.tasks.neural import trainer
from qafel.tasks.neural.data import (
    Collate,
    each_tensor,
    float32,
    require_readable,
    samples_of,
    to_device,
    whole_numbers,
)
from qafel.tasks.neural.model import Buffers, FlatModel, made_by, vector_of
from qafel.tasks.neural.trainer import FillsGradient, Loss, Optimizer, Precision, Prepare
from qafel.tasks.protocol import ClientTraining, Goal, require_digest

Metric: TypeAlias = Callable[[Any, Any], Any]
"""From outputs and targets to a score per sample, or to one number for all samples."""
_CALIBRATION_ROWS = 1024
"""The most training rows that calibrate running statistics."""


def is_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each sample whether the class with the largest score is the target."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        raise ConfigError(
            f"accuracy needs a score for each class; got outputs {_shape(outputs)}: pass other metrics={{…}}"
        )
    return outputs.argmax(dim=1) == targets


def predict(module: nn.Module, inputs: Any) -> Any:
    """Call the module: with a table by name, with several inputs in order."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


ACCURACY: Mapping[str, Metric] = {"accuracy": is_correct}


class TorchTask:
    """Train a PyTorch module on the samples of clients.

    Training and evaluation use one thread. Equal arguments give equal bits in every process on the same machine, on one
    type of device. A task has one module, so only one thread at a time may use it.

    name               the name of the task
    model              a function that returns a new module; its random numbers come from the stream of `initial_model`
    train, test        the samples: a pair of arrays, inputs and targets; a torch Dataset; or an object with the
                       protocol `Samples`
    clients            the rows of each client: the result of `split(…)`, or a list with an array of row numbers each
    trainable          patterns of the parameters to train, such as ["*lora_*", "head.*"]; None: all that require a
                       gradient. Others stay as the function made them
    buffers            the treatment of running statistics (BatchNorm): "refuse"; "hold" keeps those of a pretrained
                       model; "recompute" calibrates them on training rows before each evaluation; "batch" uses the
                       statistics of each batch
    optimizer          makes the optimizer of each update from parameters and `lr`, such as torch.optim.AdamW or
                       partial(torch.optim.AdamW, weight_decay=0.01); None: SGD
    transform          changes the inputs of training batches, for augmentation
    collate            makes a batch from a list of a Dataset's samples; None: PyTorch's default
    prepare            converts a batch of inputs to tensors on a device
    forward            the outputs, from module and inputs
    loss               the mean loss of a batch, from outputs and targets; None: the model's own `loss` if its outputs
                       have one, else cross entropy
    metrics            functions of outputs and targets by name; the first one is the main metric. A score per sample is
                       averaged. One number, such as F1, is computed once over all test samples. Without functions, the
                       loss is the metric
    goal               the better direction of the main metric, "max" or "min"
    device             "cpu", "cuda", "cuda:1", …; "cuda:{i}": worker i uses GPU i; "auto"
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
        train: Any,
        test: Any,
        clients: Partition | Sequence[Any],
        *,
        trainable: Sequence[str] | None = None,
        buffers: Buffers = "refuse",
        optimizer: Optimizer | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Collate | None = None,
        prepare: Prepare = to_device,
        forward: Callable[[nn.Module, Any], Any] = predict,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] = ACCURACY,
        goal: Goal = "max",
        device: str = "cpu",
        precision: Precision = "float32",
        evaluation_batch: int = 128,
        rebuild: Callable[[], TorchTask] | None = None,
    ) -> None:
        self._rebuild = rebuild
        self.train_samples = samples_of(train, collate, "train")
        self.test_samples = samples_of(test, collate, "test")
        self.partition = clients if isinstance(clients, Partition) else Partition.of_parts(clients)
        if (last := int(self.partition.order.max())) >= len(self.train_samples):
            raise ConfigError(
                f"task {name!r} has {len(self.train_samples)} training samples, but its partition has row {last}"
            )
        if len(self.test_samples) == 0:
            raise ConfigError(f"task {name!r} needs at least one test sample")
        if not isinstance(metrics, Mapping) or not {"loss", "metric"}.isdisjoint(metrics):
            raise ConfigError(
                f"metrics are functions by name, such as {{'accuracy': …}}, other than loss; got {metrics!r}"
            )
        if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
            raise ConfigError("the loss has parameters, which clients would not train: make them part of the model")
        if evaluation_batch < 1:
            raise ConfigError(f"evaluation_batch is at least one sample; got {evaluation_batch}")
        self.name, self._metrics = name, dict(metrics)
        self.metric_name, self.metric_goal = (next(iter(metrics)), goal) if metrics else ("loss", "min")
        if self.metric_goal not in ("max", "min"):
            raise ConfigError(f"goal is max or min; got {goal!r}")
        self._make, self._trainable, self._buffers, self._optimizer = model, trainable, buffers, optimizer
        self._transform, self._prepare, self._call, self._loss = transform, prepare, forward, loss
        self._named_device, self._named_precision, self._evaluation_batch = device, precision, evaluation_batch
        self._make_model()
        self._new_optimizer(lr=1.0)  # raises if it cannot be made
        with self._random_numbers(Stream.named(0, "unused")):
            first = int(self.partition.order[0])
            require_readable(self.train_samples, first, self._device, prepare, "train")
            require_readable(self.test_samples, 0, self._device, prepare, "test")

    def _make_model(self) -> None:
        self._device = trainer.choose_device(self._named_device)
        self._precision = trainer.choose_precision(self._named_precision, self._device)
        trainer.keep_freed_memory()
        with trainer.random_numbers_of(Stream.named(0, "unused"), self._device):
            self._model = FlatModel(made_by(self._make), self._device, self._trainable, self._buffers)
        plain = self._device.type == "cpu" and self._precision == torch.float32
        ours = self._loss in (None, cross_entropy) and self._transform is None and self._call is predict
        module = self._model.module
        self._compiled = module if plain and ours and isinstance(module, FillsGradient) else None

    @property
    def clients(self) -> int:
        return self.partition.clients

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def layers(self) -> tuple[int, ...]:
        """The sizes of the tensors in the flat vector, in order."""
        return tuple(int(np.prod(shape, dtype=np.int64)) for _, shape in self.layout.tensors)

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen parameters and the buffers; empty if there are none."""
        return self._model.digest

    @property
    def device(self) -> str:
        """The device, such as cpu or cuda:0."""
        return str(self._device)

    @property
    def precision(self) -> str:
        """The type of matrix products: float32 or bfloat16."""
        return str(self._precision).removeprefix("torch.")

    def samples(self, client: int) -> int:
        return len(self.partition.rows(client))

    def initial_model(self, stream: Stream) -> Vector:
        with trainer.random_numbers_of(stream, torch.device("cpu")):
            module = made_by(self._make)
            if module is self._model.module:
                raise ConfigError("the model's function returned the same module twice: make it inside the function")
            return vector_of(module, self._trainable, self.layout)

    def training(self, client: int) -> ClientTraining:
        """Return the training function of one client, for `run_client`."""
        return ClientTraining(self, client)

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        """Take the client's local steps from `start`. `stream` orders its samples. Algorithm 2, lines 3 to 6."""
        model = self._model
        model.load(start.vector)
        model.switch(training=True)
        with trainer.one_thread(), self._random_numbers(stream):
            beginning = model.values.clone() if local.proximal else None
            correction = None if local.correction is None else self._correction(local.correction)
            optimizer = self._new_optimizer(local.lr)
            for rows in trainer.batches(self.partition.rows(client), local, stream.generator()):
                inputs, targets = self._batch(self.train_samples, rows)
                if self._transform is not None:
                    inputs = self._transform(inputs)
                self._fill_gradient(inputs, targets)
                trainer.adjust_(model.gradient, model.values, local, beginning, correction)
                if optimizer is None:
                    model.values.add_(model.gradient, alpha=-local.lr)
                else:
                    optimizer.step()
        model.restore_buffers()
        return model.vector()

    def _random_numbers(self, stream: Stream) -> AbstractContextManager[None]:
        return trainer.random_numbers_of(stream, self._device, self._model.dropouts)

    def _new_optimizer(self, lr: float) -> torch.optim.Optimizer | None:
        if self._optimizer is None:
            return None
        return trainer.make_optimizer(self._optimizer, self._model.values, self._model.tensors, lr)

    def _correction(self, vector: Vector) -> Tensor:
        return torch.tensor(require_vector(vector, self.layout.size, "a client rule"), device=self._device)

    def _batch(self, samples: Any, rows: Indices) -> tuple[Any, Any]:
        """Return prepared inputs and targets of these rows; integer targets become int64."""
        inputs, targets = samples.batch(rows)
        return self._prepare(inputs, self._device), whole_numbers(to_device(targets, self._device))

    def _fill_gradient(self, inputs: Any, targets: Any) -> None:
        model = self._model
        if self._compiled and self._compiled.fill_gradient(
            model.values.numpy(), inputs, targets, model.gradient.numpy()
        ):
            return
        model.gradient.zero_()
        model.push()
        self._outputs_and_loss(inputs, targets)[1].backward()  # type: ignore[no-untyped-call]
        model.pull()

    def _outputs_and_loss(self, inputs: Any, targets: Any) -> tuple[Any, Tensor]:
        """Return outputs and mean loss. Outputs with `logits` (Hugging Face) are these logits."""
        with trainer.autocast(self._precision, self._device):
            found = self._call(self._model.module, inputs)
        outputs = each_tensor(getattr(found, "logits", found), float32)
        loss = getattr(found, "loss", None) if self._loss is None else None
        if not isinstance(loss, Tensor):
            loss = (self._loss or cross_entropy)(outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim():
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"the loss is one number, the mean of a batch; got {shape}")
        return outputs, loss

    def evaluate(self, model: Vector) -> dict[str, float]:
        """Return the metrics and the mean loss over all test samples. "metric" is the main metric."""
        return self.combine([self.evaluate_part(model, part) for part in range(self.evaluation_parts)])

    @property
    def evaluation_parts(self) -> int:
        return -(-len(self.test_samples) // self._evaluation_batch)

    @torch.no_grad()
    def evaluate_part(self, model: Vector, part: int) -> tuple[Any, ...]:
        """Return the sums of each metric and of the loss over one batch of test samples.

        If a metric needs all samples, its sum is None, and outputs and targets follow.
        """
        self._model.load(model)
        count, parts = len(self.test_samples), self.evaluation_parts
        start, stop = part * self._evaluation_batch, min((part + 1) * self._evaluation_batch, count)
        if self._buffers == "batch":  # a last batch of one sample would have no variance
            start, stop = count * part // parts, count * (part + 1) // parts
        if self._model.needs_calibration():
            self._calibrate()
        with trainer.one_thread(), self._random_numbers(Stream.named(0, "evaluation", part)):
            self._model.switch(training=False)
            self._model.push()
            inputs, targets = self._batch(self.test_samples, np.arange(start, stop))
            outputs, loss = self._outputs_and_loss(inputs, targets)
            self._refuse_broadcast(outputs, targets, loss)
            sums = [self._sum(name, outputs, targets, stop - start) for name in self._metrics]
        if None not in sums:
            return *sums, (stop - start) * loss.item()
        if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
            raise ConfigError("a metric of one number needs outputs and targets that are one tensor each")
        return *sums, (stop - start) * loss.item(), outputs.cpu().numpy(), targets.cpu().numpy()

    def _refuse_broadcast(self, outputs: Any, targets: Any, loss: Tensor) -> None:
        """Raise `ConfigError` if the loss broadcasts, for example outputs [B, 1] and targets [B] to [B, B]."""
        if self._loss is None or not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
            return
        if outputs.shape == targets.shape or outputs.numel() != targets.numel():
            return
        try:
            one_shape = self._loss(outputs.reshape(targets.shape), targets)
        except Exception:  # it needs these shapes
            return
        if not torch.allclose(one_shape, loss, rtol=1e-3, equal_nan=True):
            raise ConfigError(
                f"outputs {_shape(outputs)} and targets {_shape(targets)} must have one shape: the loss broadcasts them"
            )

    def _calibrate(self) -> None:
        """Compute running statistics on fixed training rows, spread evenly over the clients."""
        order = self.partition.order
        count = min(len(order), _CALIBRATION_ROWS)
        rows = order[np.arange(count) * len(order) // count]
        with trainer.one_thread(), self._random_numbers(Stream.named(0, "calibration")):
            self._model.start_calibration()
            self._model.push()
            for batch in np.array_split(rows, -(-count // self._evaluation_batch)):
                self._call(self._model.module, self._batch(self.train_samples, batch)[0])
            self._model.end_calibration()

    def _sum(self, name: str, outputs: Any, targets: Any, count: int) -> float | None:
        """Return the sum of a metric over some samples; None if it gives one number for all samples."""
        try:
            scores = torch.as_tensor(self._metrics[name](*each_tensor((outputs, targets), Tensor.clone)))
        except Exception:  # such as F1 of a batch without positives; `combine` raises it if it concerns all samples
            return None
        if not scores.dim():
            return None
        if scores.shape != (count,):
            raise ConfigError(
                f"metric {name!r} must return a score per sample, of shape [{count}], or one number; got "
                f"{list(scores.shape)} from outputs {_shape(outputs)} and targets {_shape(targets)}"
            )
        return scores.double().sum().item()

    def combine(self, parts: Sequence[tuple[Any, ...]]) -> dict[str, float]:
        *sums, loss = zip(*(part[: len(self._metrics) + 1] for part in parts), strict=True)
        figures, everything = {}, None
        for (name, metric), column in zip(self._metrics.items(), sums, strict=True):
            if None not in column:
                figures[name] = sum(column) / len(self.test_samples)
                continue
            if any(score is not None for score in column):
                raise ConfigError(
                    f"metric {name!r} must return a score per sample for each batch, or one number for each batch; "
                    "some batches of test samples have one number or an error instead of scores"
                )
            if everything is None:
                everything = [
                    torch.from_numpy(np.concatenate(found)) for found in zip(*(it[-2:] for it in parts), strict=True)
                ]
            with trainer.one_thread(), self._random_numbers(Stream.named(0, "evaluation")):
                figures[name] = float(metric(*each_tensor(everything, Tensor.clone)))
        mean = sum(loss) / len(self.test_samples)
        first = figures.pop(self.metric_name) if figures else mean
        return {"metric": first, "loss": mean, **figures}

    def __reduce__(self) -> tuple[Callable[..., TorchTask], tuple[Any, ...]]:
        made_anew = ("_device", "_precision", "_model", "_compiled")
        state = {name: value for name, value in vars(self).items() if name not in made_anew}
        return _rebuilt, (type(self), self._rebuild or state, self.digest)


def _shape(values: Any) -> str:
    return str(list(values.shape)) if isinstance(values, Tensor) else type(values).__name__


def _rebuilt(kind: type[TorchTask], made: Callable[[], TorchTask] | dict[str, Any], digest: str) -> TorchTask:
    """Return an equal task, also of a subclass: by its function, or from its attributes with a new module."""
    if callable(made):
        task = made()
    else:
        task = kind.__new__(kind)
        vars(task).update(made)
        task._make_model()
    if type(task) is not kind:
        raise ConfigError(f"rebuild must return a {kind.__name__}; it returned a {type(task).__name__}")
    require_digest(task, digest)
    return task
