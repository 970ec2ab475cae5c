"""Models of researchers: BatchNorm, frozen backbones, transformers, Datasets, optimizers and metrics of their own."""

import copy
import pickle
import random
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from qafel.algorithm import LocalTraining, method
from qafel.errors import ConfigError, DataError
from qafel.rng import Stream
from qafel.simulator import simulate
from qafel.tasks.datasets.partition import split
from qafel.tasks.neural.data import whole_numbers
from qafel.tasks.neural.published import Cnn
from qafel.tasks.neural.task import ACCURACY, TorchTask
from qafel.tasks.neural.trainer import batches, has_bfloat16
from qafel.tasks.protocol import initial_model, train_from
from tests.tasks.neural.models import (
    CLIENTS,
    ROWS,
    TASKS,
    Augmented,
    Backbone,
    Gpt,
    Together,
    as_half,
    f1,
    features,
    gpt,
    half,
    language_model,
    layers,
    made,
    multi_label,
    with_batch_norm,
)  # fmt: skip

INIT, STREAM = Stream.named(1, "initial model"), Stream.named(1, "train", 2, 3)
LOCAL = LocalTraining(0.05, epochs=1, batch_size=8)
CPU = torch.device("cpu")


def run(task, schedule=None, **settings):
    lowered = {"client_lr_schedule": schedule} if schedule else {}
    algorithm = method("qafel", buffer_size=2, client_lr=0.05, local_epochs=1, batch_size=8, **lowered)
    return simulate(task, algorithm, server_steps=4, evaluate_every=2, **settings)


def bits(result):
    figures = (result.history[name].tolist() for name in ("metric", "loss") if name in result.history.columns)
    return result.model.tobytes(), *figures


@pytest.mark.parametrize("name", TASKS)
def test_a_pickled_task_gives_equal_bits(name):
    task = TASKS[name]()
    again, start = pickle.loads(pickle.dumps(task)), task.initial_model(INIT)
    trained = train_from(task, 1, start, LOCAL, STREAM)
    np.testing.assert_array_equal(train_from(again, 1, start, LOCAL, STREAM), trained)
    assert again.evaluate(trained) == task.evaluate(trained)


@pytest.fixture(scope="module")
def together():
    """Tasks of all kinds, with a language model that trains whole and with LoRA; and their run in this process."""
    tasks = {name: make() for name, make in TASKS.items()}
    if find_spec("transformers") and find_spec("peft"):
        tasks |= {"LoRA": language_model(), "whole language model": language_model(lora=None)}
    task = Together(tasks)
    return task, run_together(task)


def run_together(task, **settings):
    algorithm = method(
        "qafel", client_quantizer="rotated:4", server_quantizer="rotated:4", buffer_size=10,
        client_lr=0.05, client_lr_schedule={"cosine": 8}, local_epochs=1, batch_size=8,
    )  # fmt: skip
    return simulate(task, algorithm, server_steps=8, evaluate_every=4, **settings)


def require_equal(task, one, other):
    """Name the tasks whose vectors or figures differ."""
    pairs = zip(task.split(one.model).items(), task.split(other.model).values(), strict=True)
    assert [name for (name, first), second in pairs if not np.array_equal(first, second)] == []
    names = [name for name in one.history.columns if ": " in name]
    assert len(names) > 2 * len(task.tasks)
    assert [name for name in names if one.history[name].tolist() != other.history[name].tolist()] == []
    assert one.summary["model_sha256"] == other.summary["model_sha256"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_every_executor_gives_equal_bits_for_models_of_all_kinds_and_a_schedule(together, executor):
    """BatchNorm, frozen, LoRA, GPT, AdamW, schedule, augmented Dataset, bfloat16, tied weights, F1, regression."""
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    task, one = together
    start = initial_model(task, 0)
    moved = zip(task.split(one.model).items(), task.split(start).values(), strict=True)
    assert [name for (name, part), before in moved if np.array_equal(part, before)] == []
    require_equal(task, one, run_together(task, executor=executor, workers=2))


def test_a_schedule_changes_the_model():
    assert bits(run(made(), {"cosine": 4})) != bits(run(made()))


def wide():
    return nn.Sequential(nn.Linear(6, 4096), nn.ReLU(), nn.Linear(4096, 6000), nn.ReLU(), nn.Linear(6000, 2))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_25_million_parameters_give_equal_bits_in_every_executor(executor):
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    task = made(wide, clients=[[row] for row in range(4)])
    assert task.layout.size > 24_000_000
    algorithm = method(
        "qafel",
        buffer_size=2,
        client_lr=0.05,
        local_steps=1,
        client_quantizer="trellis:2",
        server_quantizer="trellis:2",
    )
    runs = [
        simulate(task, algorithm, server_steps=2, executor=name, workers=None if name == "inline" else 2, check=False)
        for name in ("inline", executor)
    ]
    assert runs[0].summary["model_sha256"] == runs[1].summary["model_sha256"]


def test_torchs_adamw_step_by_step_gives_the_same_model():
    task = TASKS["AdamW"]()
    start = task.initial_model(INIT)
    module = layers()
    nn.utils.vector_to_parameters(torch.tensor(start), module.parameters())
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05, weight_decay=0.01)
    for rows in batches(task.partition.rows(1), LOCAL, STREAM.generator()):
        inputs, labels = features()
        optimizer.zero_grad()
        cross_entropy(module(torch.tensor(inputs[rows])), torch.tensor(labels[rows])).backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(train_from(task, 1, start, LOCAL, STREAM), expected, atol=1e-6)


def per_tensor(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)


def test_an_optimizer_of_one_flat_tensor_gives_the_bits_of_one_per_tensor():
    flat, plain = TASKS["AdamW"](), made(optimizer=per_tensor)
    start = flat.initial_model(INIT)
    np.testing.assert_array_equal(train_from(flat, 0, start, LOCAL, STREAM), train_from(plain, 0, start, LOCAL, STREAM))


class SharedMemory(nn.Module):
    """Two parameters over one memory."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 2, bias=False)
        self.second = nn.Linear(6, 2, bias=False)
        self.second.weight = nn.Parameter(self.first.weight.data)

    def forward(self, x):
        return self.first(x) + self.second(x)


def plain_sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr)


@pytest.mark.parametrize("settings", [{"model": half, "forward": as_half}, {"model": SharedMemory}])
def test_an_optimizer_per_tensor_moves_the_vector_also_of_converted_and_shared_parameters(settings):
    plain, own = made(**settings), made(**settings, optimizer=plain_sgd)
    start = plain.initial_model(INIT)
    local = LocalTraining(0.05, steps=3, batch_size=8, clip_norm=0.1)
    trained = train_from(own, 0, start, local, STREAM)
    assert not np.array_equal(trained, start)
    np.testing.assert_allclose(trained, train_from(plain, 0, start, local, STREAM), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", torch.optim.AdamW(layers().parameters())])
def test_an_optimizer_that_cannot_be_called_is_refused(optimizer):
    with pytest.raises(ConfigError, match="torch.optim"):
        made(optimizer=optimizer)


class Constrained(nn.Linear):
    """A layer with a largest norm of its weights, which replaces their data."""

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, 2, 0, maxnorm=0.2)
        return super().forward(x)


def test_weights_that_a_forward_pass_replaces_train_as_in_pytorch():
    task, module = made(partial(Constrained, 6, 2)), Constrained(6, 2)
    start = task.initial_model(INIT)
    nn.utils.vector_to_parameters(torch.tensor(start), module.parameters())
    optimizer, (inputs, labels) = torch.optim.SGD(module.parameters(), lr=0.05), features()
    for rows in batches(task.partition.rows(1), LOCAL, STREAM.generator()):
        optimizer.zero_grad()
        cross_entropy(module(torch.tensor(inputs[rows])), torch.tensor(labels[rows])).backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    for _ in range(2):
        task.evaluate(start)
        np.testing.assert_allclose(train_from(task, 1, start, LOCAL, STREAM), expected, atol=1e-6)


def test_state_of_an_optimizer_ends_with_the_update():
    task = TASKS["AdamW"]()
    start = task.initial_model(INIT)
    first = train_from(task, 0, start, LOCAL, STREAM)
    train_from(task, 1, start, LOCAL, STREAM)
    np.testing.assert_array_equal(train_from(task, 0, start, LOCAL, STREAM), first)


def test_only_trainable_parameters_are_federated_and_the_others_stay():
    task = made(Backbone)
    assert task.layout.tensors == (("head.weight", (2, 16)), ("head.bias", (2,)))
    assert task.layers == (32, 2)
    body = task._model.module.body.weight
    before, place = body.clone(), body.data_ptr()
    train_from(task, 0, task.initial_model(INIT), LOCAL, STREAM)
    assert body.data_ptr() == place
    assert torch.equal(body, before)
    assert made(layers, trainable=["2.*"]).layers == (32, 2)
    with pytest.raises(ConfigError, match="'3\\.\\*'"):
        made(layers, trainable=["3.*"])


def test_another_backbone_has_another_digest_and_is_refused_in_a_worker():
    task, other = made(Backbone), made(partial(Backbone, 2.0))
    assert task.digest == made(Backbone).digest != other.digest
    assert made(layers).digest == ""
    make, (kind, state, _) = task.__reduce__()
    with pytest.raises(DataError, match="frozen"):
        make(kind, state, other.digest)


def test_tied_weights_are_one_tensor_of_the_vector():
    task = gpt()
    assert [name for name, _ in task.layout.tensors].count("embedding.weight") == 1
    assert "head.weight" not in dict(task.layout.tensors)
    assert task.layout.size == sum(p.numel() for p in Gpt().parameters())


class Overlap(SharedMemory):
    def __init__(self):
        super().__init__()
        self.second.weight = nn.Parameter(self.first.weight.data[:1].expand(1, 6).clone().set_(
            self.first.weight.data.untyped_storage(), 3, (2, 3), (3, 1)))  # fmt: skip


class PartOfFrozen(SharedMemory):
    """Two frozen parameters, the second one short, and one to train within the first one."""

    def __init__(self):
        super().__init__()
        whole = torch.zeros(100)
        self.whole = nn.Parameter(whole, requires_grad=False)
        self.short = nn.Parameter(whole[10:20], requires_grad=False)
        self.part = nn.Parameter(whole[50:56])


def test_parameters_over_one_memory_are_trained_as_one_or_refused():
    task = made(SharedMemory)
    assert task.layout.size == 12
    start = task.initial_model(INIT)
    trained = train_from(task, 0, start, LocalTraining(0.1, steps=1), STREAM)
    inputs, labels = features()
    weight = torch.tensor(start.reshape(2, 6), requires_grad=True)
    rows = np.arange(24)
    cross_entropy(2 * torch.tensor(inputs[rows]) @ weight.T, torch.tensor(labels[rows])).backward()
    np.testing.assert_allclose(trained, start - 0.1 * weight.grad.numpy().ravel(), atol=1e-6)
    with pytest.raises(ConfigError, match="share memory"):
        made(Overlap)
    with pytest.raises(ConfigError, match="share memory"):
        made(PartOfFrozen)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, partial(nn.BatchNorm1d, track_running_stats=False)])
def test_batch_norm_names_the_choices(kind):
    with pytest.raises(ConfigError, match='"batch"'):
        made(lambda: nn.Sequential(nn.Linear(6, 2), kind(2)))


def test_recomputed_statistics_are_those_of_the_training_rows():
    task = TASKS["batch norm, recompute"]()
    vector = task.initial_model(INIT)
    module = with_batch_norm()
    nn.utils.vector_to_parameters(torch.tensor(vector), module.parameters())
    inputs = torch.tensor(features()[0])
    hidden = module[0](inputs).detach()
    # The mean of the batches' statistics, in batches of 16 rows.
    means, variances = zip(*((part.mean(0), part.var(0)) for part in hidden.split(16)), strict=True)
    module.eval()
    module[1].running_mean.copy_(sum(means) / 6)
    module[1].running_var.copy_(sum(variances) / 6)
    tests, labels = (torch.tensor(part) for part in features(40, 1))
    assert task.evaluate(vector)["loss"] == pytest.approx(cross_entropy(module(tests), labels).item(), rel=1e-5)
    again = pickle.loads(pickle.dumps(task))
    assert again.combine([again.evaluate_part(vector, part) for part in (0, 1, 2)]) == task.evaluate(vector)


def test_statistics_of_augmented_rows_are_the_same_in_every_worker():
    make = partial(made, with_batch_norm, data=Augmented(), buffers="recompute")
    task = make()
    vector = task.initial_model(INIT)
    parts = [make().evaluate_part(vector, part) for part in range(task.evaluation_parts)]
    assert task.combine(parts) == task.evaluate(vector)


def test_held_statistics_are_used_in_training():
    task = TASKS["batch norm, hold"]()
    norm = task._model.module[1]
    train_from(task, 0, task.initial_model(INIT), LOCAL, STREAM)
    assert not norm.training
    assert torch.equal(norm.running_mean, torch.zeros(16))


class HandWritten(nn.Module):
    """A layer with running statistics that is not one of PyTorch's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer("running_scale", torch.ones(1))

    def forward(self, x):
        if self.training:
            self.running_scale = 0.9 * self.running_scale + 0.1 * x.detach().abs().mean()
        return self.linear(x / self.running_scale)


def test_running_statistics_of_hand_written_layers_are_held_and_not_averaged():
    for buffers in ("refuse", "recompute"):
        with pytest.raises(ConfigError, match="HandWritten"):
            made(HandWritten, buffers=buffers)
    task = made(HandWritten, buffers="hold")
    vector = task.initial_model(INIT)
    task.evaluate(vector)
    assert task._model.module.running_scale.item() == 1.0
    first = train_from(task, 0, vector, LOCAL, STREAM)
    np.testing.assert_array_equal(train_from(task, 0, vector, LOCAL, STREAM), first)


def test_datasets_are_read_by_row_and_equal_arrays():
    inputs, labels = features()
    plain, dataset = made(), made(data=TensorDataset(torch.tensor(inputs), torch.tensor(labels)))
    start = plain.initial_model(INIT)
    np.testing.assert_array_equal(
        train_from(plain, 0, start, LOCAL, STREAM), train_from(dataset, 0, start, LOCAL, STREAM)
    )


def global_states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def test_random_numbers_of_data_code_come_from_the_stream_and_global_states_stay():
    task = made(data=Augmented())
    start = task.initial_model(INIT)
    states = global_states()
    first = train_from(task, 0, start, LOCAL, STREAM)
    task.evaluate(start)
    assert global_states() == states
    random.seed(9)
    np.random.seed(9)  # noqa: NPY002
    np.testing.assert_array_equal(train_from(task, 0, start, LOCAL, STREAM), first)
    assert not np.array_equal(train_from(task, 0, start, LOCAL, Stream.named(5, "train")), first)


class Noise(Dataset):
    """Pictures from PyTorch's global generator."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        return torch.randn(3, 32, 32), row


def test_a_compiled_network_takes_random_numbers_of_data_code_from_the_stream():
    task = TorchTask("noise", partial(Cnn, 10), Noise(), Noise(), [range(4), range(4, 8)])
    start = task.initial_model(INIT)
    np.testing.assert_array_equal(train_from(task, 0, start, LOCAL, STREAM), train_from(task, 0, start, LOCAL, STREAM))
    assert task.evaluate(start) == task.evaluate(start)


def test_tensors_of_bfloat16_and_with_gradients_are_data_too():
    inputs, labels = (torch.tensor(part) for part in features())
    task = made(data=(inputs.to(torch.bfloat16).requires_grad_(), labels))
    found, targets = task.train_samples.batch(np.array([0, 1]))
    assert (found.dtype, targets.tolist()) == (np.float32, labels[:2].tolist())


class Remembers(nn.Module):
    """A layer that keeps a tensor from its first pass, as a cache of positions does."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 2), None

    def forward(self, x):
        if self.scale is None:
            self.scale = 2 * torch.ones(2)
        return self.linear(x) * self.scale


def test_a_tensor_kept_from_an_evaluation_serves_in_training():
    task = made(Remembers)
    start = task.initial_model(INIT)
    task.evaluate(start)
    assert not np.array_equal(train_from(task, 0, start, LOCAL, STREAM), start)


class Graph(nn.Module):
    """A graph convolution with a sparse adjacency matrix as a buffer."""

    def __init__(self, layout=torch.sparse_coo, weight=1.0):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer("adjacency", (weight * torch.eye(6)).to_sparse(layout=layout))

    def forward(self, x):
        return self.linear((self.adjacency @ x.T).T)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_buffers_are_part_of_the_digest():
    tasks = [made(partial(Graph, *given)) for given in ((), (torch.sparse_csr,), (torch.sparse_coo, 2.0))]
    assert len({task.digest for task in tasks}) == 2
    train_from(tasks[0], 0, tasks[0].initial_model(INIT), LOCAL, STREAM)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


class Pictures(list):
    """A dataset whose inputs are not tensors."""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader(TensorDataset(torch.zeros(3, 6), torch.zeros(3))), "DataLoader.*loader.dataset"),
        (Endless(), "IterableDataset"),
        (Pictures([(object(), 1)] * ROWS), "collate"),
        (Pictures([("text", 1)] * ROWS), "str"),
        ([1.0] * ROWS, "pair"),
        ((np.zeros(3),), "pair"),
        (np.zeros((ROWS, 6)), "ndarray"),
    ],
)
def test_data_that_cannot_be_read_is_refused_in_a_sentence(data, words):
    with pytest.raises(ConfigError, match=words):
        made(data=data)


def test_batches_as_tables_and_outputs_with_loss_and_logits_work():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, values, labels):
            logits = self.linear(values)
            return SimpleNamespace(logits=logits, loss=cross_entropy(logits, labels))

    inputs, labels = features()
    rows = [{"values": values, "labels": label} for values, label in zip(inputs, labels, strict=True)]
    task = TorchTask("tables", Model, rows, rows, CLIENTS)
    plain = TorchTask("plain", partial(nn.Linear, 6, 2), (inputs, labels), (inputs, labels), CLIENTS)
    start = plain.initial_model(INIT)
    trained = train_from(task, 0, start, LOCAL, STREAM)
    np.testing.assert_array_equal(trained, train_from(plain, 0, start, LOCAL, STREAM))
    assert task.evaluate(trained) == plain.evaluate(trained)


def test_a_metric_of_one_number_is_computed_over_all_test_samples():
    task = made(metrics={"f1": f1, "accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()})
    vector = task.initial_model(INIT)
    inputs, labels = (torch.tensor(part) for part in features(40, 1))
    module = layers()
    nn.utils.vector_to_parameters(torch.tensor(vector), module.parameters())
    found = task.evaluate(vector)
    assert found["metric"] == f1(module(inputs), labels)
    assert found["accuracy"] == pytest.approx((module(inputs).argmax(1) == labels).double().mean().item())
    assert task.metric_name == "f1"


@pytest.mark.parametrize(
    "score",
    [
        lambda outputs, targets: (outputs - targets[:, None]) ** 2,
        lambda outputs, targets: outputs[:, :1] == targets,
        lambda outputs, targets: outputs[:, :1],
    ],
)
def test_scores_of_another_shape_are_refused(score):
    task = made(metrics={"score": score})
    with pytest.raises(ConfigError, match="'score' must return a score per sample"):
        task.evaluate(task.initial_model(INIT))


def sometimes(outputs, targets):
    scores = outputs.argmax(1) == targets
    return scores.squeeze()


def test_a_metric_that_is_a_score_for_some_batches_and_a_number_for_others_is_refused():
    task = TorchTask("33", layers, features(), features(33), CLIENTS, metrics={"some": sometimes}, evaluation_batch=16)
    with pytest.raises(ConfigError, match="'some' must return a score per sample"):
        task.evaluate(task.initial_model(INIT))


def test_a_metric_that_changes_its_arguments_changes_nothing_for_others():
    def largest(outputs, targets):
        return outputs.max(dim=1).values

    def largest_in_place(outputs, targets):
        return outputs.sigmoid_().max(dim=1).values

    def mean_in_place(outputs, targets):
        return outputs.sigmoid_().max(dim=1).values.mean()

    metrics = {"first": largest, "each": largest_in_place, "all": mean_in_place, "last": largest}
    task = made(metrics=metrics)
    found = task.evaluate(task.initial_model(INIT))
    assert found["metric"] == found["last"]
    assert found["each"] == pytest.approx(found["all"])


def test_a_loss_with_parameters_is_refused():
    class Scaled(nn.CrossEntropyLoss):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(1))

    with pytest.raises(ConfigError, match="the loss has parameters"):
        made(loss=Scaled())
    made(loss=nn.CrossEntropyLoss(weight=torch.ones(2)))


def test_a_figure_with_the_name_of_a_column_is_refused():
    task = made(metrics={"accuracy": ACCURACY["accuracy"], "uploads": ACCURACY["accuracy"]})
    with pytest.raises(ConfigError, match="uploads"):
        simulate(task, method("fedbuff", client_lr=0.1), server_steps=1)


def test_outputs_of_low_precision_are_float32_also_in_containers():
    seen = []

    def in_a_list(model, inputs):
        outputs = model(inputs).bfloat16()
        return [outputs, {"other": outputs}, torch.ones(1, dtype=torch.int64)]

    def loss(outputs, targets):
        seen.extend([outputs[0].dtype, outputs[1]["other"].dtype, outputs[2].dtype])
        return cross_entropy(outputs[0], targets)

    task = made(forward=in_a_list, loss=loss, metrics={})
    task.evaluate(task.initial_model(INIT))
    assert seen[:3] == [torch.float32, torch.float32, torch.int64]


def test_complex_targets_keep_their_imaginary_part():
    values = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(whole_numbers(values), values)


def test_a_metric_with_random_numbers_is_repeatable():
    task = made(metrics={"drawn": lambda outputs, targets: float(np.random.random())})  # noqa: NPY002
    assert task.evaluate(task.initial_model(INIT)) == task.evaluate(task.initial_model(INIT))


def test_accuracy_of_one_score_per_sample_is_refused():
    inputs, _ = features()
    data = inputs, (inputs[:, :1] > 0).astype(np.float32)
    task = TorchTask("one", partial(nn.Linear, 6, 1), data, data, CLIENTS, loss=binary_cross_entropy_with_logits)
    with pytest.raises(ConfigError, match="score for each class"):
        task.evaluate(task.initial_model(INIT))


def test_a_loss_per_sample_is_refused():
    task = made(loss=partial(cross_entropy, reduction="none"))
    with pytest.raises(ConfigError, match="one number"):
        task.evaluate(task.initial_model(INIT))


def squares(outputs, targets):
    return ((outputs - targets) ** 2).mean()


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [mse_loss, nn.L1Loss(), squares])
def test_a_loss_that_would_broadcast_outputs_and_targets_is_refused(loss):
    inputs, _ = features()
    data = inputs, inputs[:, 0]
    task = TorchTask("one column", partial(nn.Linear, 6, 1), data, data, CLIENTS, loss=loss, metrics={})
    with pytest.raises(ConfigError, match="one shape"):
        task.evaluate(task.initial_model(INIT))


def test_a_loss_that_makes_one_shape_of_outputs_and_targets_is_accepted():
    inputs, _ = features()
    for loss in (
        lambda outputs, targets: mse_loss(outputs[:, 0], targets),
        lambda *two: squares(two[0].view(-1), two[1]),
    ):
        task = made(partial(nn.Linear, 6, 1), (inputs, inputs[:, 0]), loss=loss, metrics={})
        task.test_samples = task.train_samples
        assert task.evaluate(task.initial_model(INIT))["loss"] > 0


def test_regression_and_several_labels_learn():
    result = run(TASKS["regression"]())
    assert (result.summary["metric_name"], result.summary["metric_goal"]) == ("loss", "min")
    task = multi_label()
    vector = task.initial_model(INIT)
    before = task.evaluate(vector)["metric"]
    for number in range(20):
        vector = train_from(task, number % 4, vector, LocalTraining(0.5, steps=5), STREAM)
    assert task.evaluate(vector)["metric"] > max(0.6, before)


class Doubling(TorchTask):
    """Replaces training and evaluation."""

    factor = 1

    def train(self, client, start, local, stream):
        return super().train(client, start, local, stream) * np.float32(self.factor)

    def evaluate(self, model):
        return {"metric": float(self.factor * np.abs(model).sum())}


class Tripling(Doubling):
    """Has an attribute before the task is made."""

    def __init__(self):
        self.factor = 3
        super().__init__("own", layers, features(), features(40, 1), CLIENTS)


def test_a_subclass_is_itself_in_workers():
    task = Doubling("own", layers, features(), features(40, 1), CLIENTS)
    task.factor = 0.5
    assert bits(run(task)) == bits(run(task, executor="processes", workers=2))
    assert pickle.loads(pickle.dumps(task)).factor == 0.5
    assert pickle.loads(pickle.dumps(Tripling())).factor == 3
    assert copy.deepcopy(task).factor == 0.5


@pytest.mark.skipif(not has_bfloat16(CPU), reason="this CPU has no bfloat16 that PyTorch can use")
def test_bfloat16_products_give_another_float32_vector():
    low, whole = gpt("bfloat16"), gpt()
    start = whole.initial_model(INIT)
    trained = train_from(low, 0, start, LOCAL, STREAM)
    assert trained.dtype == np.float32
    assert not np.array_equal(trained, train_from(whole, 0, start, LOCAL, STREAM))


def test_a_model_in_bfloat16_keeps_its_vector_in_float32():
    task, whole = made(half, forward=as_half), made()
    start = whole.initial_model(INIT)
    local = LocalTraining(1e-5, steps=3)
    moved = train_from(task, 0, start, local, STREAM) - start
    expected = train_from(whole, 0, start, local, STREAM) - start
    assert np.linalg.norm(moved - expected) < 0.1 * np.linalg.norm(expected)


SAME = layers()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (SAME, "function that returns a new module"),
        (lambda: None, "returned None"),
        (lambda: nn.LazyLinear(2), "lazy"),
    ],
)
def test_what_is_not_a_function_of_modules_is_refused(model, words):
    with pytest.raises(ConfigError, match=words):
        made(model)


def test_a_function_that_returns_one_module_twice_is_refused():
    task = made(lambda: SAME)
    with pytest.raises(ConfigError, match="same module twice"):
        task.initial_model(INIT)


def test_a_loss_that_is_nan_at_the_end_has_diverged():
    task = made(loss=lambda outputs, targets: outputs.sum() * float("nan"))
    assert run(task, check=False).summary["status"] == "diverged"


def with_complex_numbers():
    module = layers()
    module.register_parameter("phases", nn.Parameter(torch.ones(3, dtype=torch.complex64)))
    return module


def test_complex_parameters_are_frozen_or_refused():
    for patterns in (None, ["*"]):
        with pytest.raises(ConfigError, match="complex64"):
            made(with_complex_numbers, trainable=patterns)
    assert made(with_complex_numbers, trainable=["2.*"]).digest


def test_wrong_settings_are_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="evaluation_batch"):
        TorchTask("small", layers, features(), features(), CLIENTS, evaluation_batch=0)
    for clients in ({"first": [0]}, [[[0, 1], [2]]]):
        with pytest.raises(ConfigError, match="client 0"):
            made(clients=clients)
    assert made(device=CPU).device == "cpu"


def test_rows_of_two_clients_and_labels_of_two_dimensions_are_refused():
    with pytest.raises(ConfigError, match="row 3"):
        made(clients=[[0, 1, 3], [3, 4]])
    with pytest.raises(ConfigError, match="one label per sample"):
        split("dirichlet:0.5", np.zeros((10, 3)), clients=2)
    assert split("iid", np.zeros((10, 3)), clients=2).clients == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")
def test_training_on_a_gpu_is_repeatable_and_close_to_the_cpu():
    there, here = made(device="cuda"), made()
    start = here.initial_model(INIT)
    trained = train_from(there, 0, start, LOCAL, STREAM)
    np.testing.assert_array_equal(train_from(there, 0, start, LOCAL, STREAM), trained)
    np.testing.assert_allclose(trained, train_from(here, 0, start, LOCAL, STREAM), atol=1e-4)
