"""Training equals a plain PyTorch loop, depends on its arguments only, and takes any module."""

import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError, DataError
from qafel.rng import Stream
from qafel.tasks.datasets.partition import split
from qafel.tasks.datasets.samples import ArraySamples
from qafel.tasks.neural.published import Cnn, Normalise
from qafel.tasks.neural.task import TorchTask
from qafel.tasks.neural.trainer import batches
from qafel.tasks.protocol import train_from

INIT, STREAM = Stream.named(1, "initial model"), Stream.named(1, "train", 2, 3)
ROOT = Path(__file__).parents[3]
PREPARE = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


class PlainCnn(nn.Module):
    """The paper's network in the words of torch alone."""

    def __init__(self, classes):
        super().__init__()
        for number, channels in enumerate([3, 32, 32, 32], 1):
            self.add_module(f"conv{number}", nn.Conv2d(channels, 32, 3, stride=1, padding=2))
        self.norm = nn.GroupNorm(32, 32)
        self.linear = nn.Linear(288, classes)

    def forward(self, x):
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = functional.max_pool2d(functional.relu(self.norm(conv(x))), 2, 2)
        return self.linear(x.flatten(1))


def image_samples(count=60):
    generator = np.random.default_rng(0)
    return ArraySamples(generator.integers(0, 256, (count, 3, 32, 32), np.uint8), generator.integers(0, 10, count))


def cnn_task(dropout=0.0):
    data = image_samples()
    return TorchTask("fake", partial(Cnn, 10, dropout), data, data, split("iid", data.labels, 3, INIT), prepare=PREPARE)


def feature_task(model, **settings):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(90, 6)).astype(np.float32)
    data = ArraySamples(features, (features[:, 0] > 0).astype(np.int64))
    return TorchTask("features", model, data, data, split("iid", data.labels, 3, INIT), **settings)


def layers():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def plain_training(module, task, client, start, local):
    """A textbook loop over the same batches."""
    data = task.train_samples
    vector = torch.tensor(start)
    nn.utils.vector_to_parameters(vector, module.parameters())
    first = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=local.lr, weight_decay=local.weight_decay)
    for rows in batches(task.partition.rows(client), local, STREAM.generator()):
        inputs, labels = data.batch(rows)
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(PREPARE(inputs, torch.device("cpu")).double()), torch.tensor(labels))
        for parameter, origin in zip(module.parameters(), first, strict=True):
            loss = loss + local.proximal / 2 * (parameter - origin).square().sum()
        loss.backward()
        if local.clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), local.clip_norm)
        if local.correction is not None:
            places = torch.tensor(local.correction).double().split([each.numel() for each in module.parameters()])
            for parameter, place in zip(module.parameters(), places, strict=True):
                parameter.grad += place.view(parameter.shape)
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


CORRECTION = np.random.default_rng(3).normal(scale=0.02, size=cnn_task().layout.size).astype(np.float32)
LOCALS = {
    "an epoch": LocalTraining(0.05, epochs=1, batch_size=8),
    "full batches": LocalTraining(0.05, steps=3),
    "more steps than an epoch": LocalTraining(0.05, steps=7, batch_size=8),
    "weight decay": LocalTraining(0.05, epochs=2, batch_size=8, weight_decay=0.1),
    "clipping": LocalTraining(0.05, epochs=1, batch_size=8, clip_norm=0.3),
    "proximal": LocalTraining(0.05, epochs=2, batch_size=8, proximal=0.5),
    "correction": LocalTraining(0.05, epochs=1, batch_size=8, correction=CORRECTION),
    "all": LocalTraining(
        0.05, epochs=2, batch_size=8, weight_decay=0.1, clip_norm=0.5, proximal=0.5, correction=CORRECTION
    ),
}


@pytest.mark.parametrize(
    "local",
    [
        pytest.param(local, id=name, marks=() if name in ("full batches", "all") else pytest.mark.slow)
        for name, local in LOCALS.items()
    ],
)
def test_training_the_cnn_equals_a_plain_pytorch_loop_in_double_precision(local):
    """The median of three starts: where two values of a pool are equal to seven digits, rounding chooses, and now and
    then torch's own float32 chooses otherwise than its float64."""
    task = cnn_task()
    deviations = []
    for seed in range(3):
        start = task.initial_model(Stream.named(seed, "initial model"))
        before = start.copy()
        trained = train_from(task, 1, start, local, STREAM)
        np.testing.assert_array_equal(start, before)
        exact = plain_training(PlainCnn(10).double(), task, 1, start.astype(np.float64), local)
        assert np.abs(exact - start).max() > 1e-3, "there was something to learn"
        deviations.append(np.abs(trained - exact).max())
    assert np.median(deviations) < 1e-6


def test_the_layout_names_the_modules_parameters():
    task = cnn_task()
    assert task.layout.tensors[:2] == (("conv1.weight", (32, 3, 3, 3)), ("conv1.bias", (32,)))
    assert task.layout.size == 31_594


def test_evaluation_is_the_mean_over_the_test_samples():
    task = cnn_task(dropout=0.5)
    vector = task.initial_model(INIT)
    module = PlainCnn(10)
    nn.utils.vector_to_parameters(torch.tensor(vector), module.parameters())
    inputs, labels = task.test_samples.batch(np.arange(60))
    scores = module(PREPARE(inputs, torch.device("cpu")))
    found = task.evaluate(vector)
    assert found["loss"] == pytest.approx(functional.cross_entropy(scores, torch.tensor(labels)).item(), rel=1e-5)
    assert found["metric"] == (scores.argmax(1).numpy() == labels).mean()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_depends_on_its_arguments_only(dropout):
    task, other = cnn_task(dropout), pickle.loads(pickle.dumps(cnn_task(dropout)))
    start, local = task.initial_model(INIT), LOCALS["all"]
    trained = train_from(task, 1, start, local, STREAM)
    train_from(other, 0, start, local, Stream.named(9, "train"))
    other.evaluate(start)
    torch.manual_seed(12345)
    np.testing.assert_array_equal(train_from(other, 1, start, local, STREAM), trained)
    assert not np.array_equal(train_from(other, 1, start, local, Stream.named(9, "train")), trained)


def test_the_number_of_threads_does_not_matter():
    task = cnn_task(0.1)
    start, local = task.initial_model(INIT), LOCALS["an epoch"]
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            results.append((train_from(task, 1, start, local, STREAM), task.evaluate(start)))
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(threads)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


DIGEST = """
import hashlib
from qafel.tasks.protocol import train_from
from tests.tasks.neural.test_task import INIT, LOCALS, STREAM, cnn_task
task = cnn_task(0.1)
print(hashlib.sha256(train_from(task, 1, task.initial_model(INIT), LOCALS["an epoch"], STREAM)).hexdigest())
"""


@pytest.mark.slow
def test_other_processes_give_equal_bits():
    found = {
        subprocess.run([sys.executable, "-c", DIGEST], check=True, capture_output=True, text=True, cwd=ROOT).stdout
        for _ in range(2)
    }
    assert len(found) == 1


def test_torchs_global_state_is_not_touched():
    task = cnn_task(0.5)
    state = torch.get_rng_state()
    train_from(task, 0, task.initial_model(INIT), LOCALS["an epoch"], STREAM)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_changes_training_and_not_evaluation():
    with_dropout, without = cnn_task(0.5), cnn_task(0.0)
    start = without.initial_model(INIT)
    np.testing.assert_array_equal(with_dropout.initial_model(INIT), start)
    assert with_dropout.evaluate(start) == without.evaluate(start)
    local = LOCALS["an epoch"]
    assert not np.array_equal(
        train_from(with_dropout, 0, start, local, STREAM), train_from(without, 0, start, local, STREAM)
    )


def test_initial_models_come_from_the_stream():
    task = cnn_task()
    np.testing.assert_array_equal(task.initial_model(INIT), task.initial_model(INIT))
    assert not np.array_equal(task.initial_model(INIT), task.initial_model(STREAM))


def test_a_read_only_start_is_taken():
    task = feature_task(layers)
    start = task.initial_model(INIT)
    start.flags.writeable = False
    assert train_from(task, 0, start, LocalTraining(0.1, steps=1), STREAM).flags.writeable


def test_any_module_learns():
    task = feature_task(layers)
    vector = task.initial_model(INIT)
    before = task.evaluate(vector)
    for number in range(30):
        vector = train_from(
            task, number % 3, vector, LocalTraining(0.5, epochs=1, batch_size=10), Stream.named(0, "t", number)
        )
    after = task.evaluate(vector)
    assert after["metric"] > 0.9 > before["metric"]
    assert after["loss"] < before["loss"]


def dropout_layers():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def test_torchs_own_dropout_is_reproducible_too():
    task = feature_task(dropout_layers)
    start, local = task.initial_model(INIT), LocalTraining(0.1, steps=3, batch_size=5)
    trained = train_from(task, 0, start, local, STREAM)
    torch.rand(3)
    np.testing.assert_array_equal(train_from(task, 0, start, local, STREAM), trained)


def regression_loss(outputs, targets):
    return (outputs[:, 0] - targets).square().mean()


def squared_error(outputs, targets):
    return (outputs[:, 0] - targets).square()


def test_losses_and_metrics_of_ones_own():
    features = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    data = ArraySamples(features, features @ np.array([1, -2, 3], np.float32))
    task = TorchTask(
        "regression",
        partial(nn.Linear, 3, 1),
        data,
        data,
        split("iid", data.labels, 4, INIT),
        loss=regression_loss,
        metrics={"squared error": squared_error},
        goal="min",
    )
    vector = task.initial_model(INIT)
    for number in range(40):
        vector = train_from(task, number % 4, vector, LocalTraining(0.1, steps=5), STREAM)
    found = task.evaluate(vector)
    assert found["metric"] == pytest.approx(found["loss"], rel=1e-4)
    assert found["metric"] < 1e-3


class Counting(nn.Module):
    """Keeps state that is not a parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_state_that_is_not_a_parameter_is_refused_or_the_same_at_every_start():
    local = LocalTraining(0.1, steps=3, batch_size=5)
    refusing = feature_task(Counting)
    with pytest.raises(ConfigError, match="'calls'"):
        train_from(refusing, 0, refusing.initial_model(INIT), local, STREAM)
    task = feature_task(Counting, buffers="hold")
    start, local = task.initial_model(INIT), LocalTraining(0.1, steps=3, batch_size=5)
    trained = train_from(task, 0, start, local, STREAM)
    np.testing.assert_array_equal(train_from(task, 0, start, local, STREAM), trained)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (partial(nn.BatchNorm1d, 6), "running statistics"),
        (nn.ReLU, "parameters"),
    ],
)
def test_a_module_that_cannot_be_shared_says_why(model, words):
    with pytest.raises(ConfigError, match=words):
        feature_task(model)


def test_a_vector_of_another_model_is_refused():
    with pytest.raises(DataError, match="has 74 parameters, the vector has shape"):
        feature_task(layers).evaluate(np.zeros(73, np.float32))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"device": "cuda:{j}"}, "use auto"),
        ({"precision": "half"}, "one of"),
    ],
)
def test_a_device_or_precision_that_is_not_there_is_refused_in_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words) as refused:
        feature_task(layers, **settings)
    assert len(str(refused.value)) < 160


def test_what_the_page_of_tasks_shows_learns_and_is_plotted(tmp_path, monkeypatch):
    """The code of docs/tasks.md, as it stands there: a model and arrays of one's own, in about fifteen lines."""
    page = (ROOT / "docs/tasks.md").read_text().partition("## Custom tasks")[2]
    code = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "mine"}
    exec(compile(code, "docs/tasks.md", "exec"), names)
    assert (tmp_path / "mine.png").stat().st_size > 10_000
    metric = names["result"].history["metric"]
    assert metric[0] < 0.6
    assert metric[-1] > 0.75


def test_a_list_of_index_arrays_is_a_partition_and_a_pair_of_arrays_are_samples():
    inputs, labels = np.arange(12.0).reshape(6, 2), [0, 1, 0, 1, 0, 1]
    task = TorchTask("own", Linear, (inputs, labels), (inputs, labels), [[5, 0], np.array([1, 2, 3])])
    assert (task.clients, task.samples(0), task.samples(1)) == (2, 2, 3)
    assert task.partition.rows(0).tolist() == [5, 0]
    given, targets = task.train_samples.batch(task.partition.rows(0))
    assert (given.dtype, given.tolist(), targets.tolist()) == (np.float32, [[10.0, 11.0], [0.0, 1.0]], [1, 0])
    model = task.initial_model(INIT)
    trained = train_from(task, 0, model, LocalTraining(lr=0.1, steps=2), STREAM)
    assert not np.array_equal(model, trained)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(task)).partition.order, task.partition.order)


def Linear():  # noqa: N802  (as a module's class is called)
    return nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([[0, 1], []], "client 1 needs a flat list of row numbers"),
        ([[0.5]], "client 0 needs a flat list of row numbers"),
        ([[-1]], "client 0 needs a flat list of row numbers"),
        ([], "at least one client"),
        ([[0, 6]], "row 6"),
    ],
)
def test_a_partition_that_cannot_be_is_refused_in_a_sentence(parts, sentence):
    data = np.zeros((6, 2), np.float32), np.zeros(6, np.int64)
    with pytest.raises(ConfigError, match=sentence):
        TorchTask("own", Linear, data, data, parts)
