"""The shipped data is LIBSVM's, the problem is the paper's, and the compiled loops compute it."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError, DataError
from qafel.rng import Stream
from qafel.tasks import LabelledRows, Mushrooms, load_mushrooms, read_libsvm, write_libsvm
from qafel.tasks.convex.mushrooms import FEATURES, OPTIMUM, ROWS
from qafel.tasks.protocol import train_from

STREAM = Stream.named(0, "unused")


def problem():
    """Features with the intercept and targets, in float64."""
    data = load_mushrooms()
    return np.hstack([data.features, np.ones((ROWS, 1))]).astype(np.float64), data.labels - 1


def plain_loss(x, rows, targets, l2=1 / ROWS):
    margins = rows @ x
    return np.mean(np.logaddexp(0, margins) - targets * margins) + l2 / 2 * x @ x


def plain_gradient(x, rows, targets, l2=1 / ROWS):
    return rows.T @ (1 / (1 + np.exp(-rows @ x)) - targets) / len(rows) + l2 * x


def test_the_shipped_data_is_the_libsvm_file_byte_for_byte():
    text = write_libsvm(load_mushrooms())
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest.startswith("51919a59")
    assert digest.endswith("aa2244")


def test_the_shipped_data_has_the_known_counts():
    data = load_mushrooms()
    assert data.features.shape == (8124, 112)
    assert (data.features.sum(axis=1) == 21).all()
    assert np.unique(data.labels, return_counts=True)[1].tolist() == [3916, 4208]


@pytest.mark.skipif("QAFEL_DATA" not in os.environ, reason="QAFEL_DATA, the folder of real datasets, is not set")
def test_the_shipped_data_reads_back_equal_to_the_libsvm_file():
    read = read_libsvm(Path(os.environ["QAFEL_DATA"]) / "mushrooms/mushrooms", FEATURES)
    shipped = load_mushrooms()
    np.testing.assert_array_equal(read.features, shipped.features)
    np.testing.assert_array_equal(read.labels, shipped.labels)


def test_no_caller_can_change_the_shared_dataset():
    with pytest.raises(ValueError, match="read-only"):
        load_mushrooms().features[0, 0] = 7
    with pytest.raises(ValueError, match="read-only"):
        load_mushrooms().labels[0] = 7


def test_newtons_method_finds_the_known_optimum():
    rows, targets = problem()
    x = np.zeros(113)
    while np.linalg.norm(gradient := plain_gradient(x, rows, targets)) > 1e-13:
        probability = 1 / (1 + np.exp(-rows @ x))
        curvature = rows.T @ (rows * (probability * (1 - probability))[:, None]) / ROWS + np.eye(113) / ROWS
        x -= np.linalg.solve(curvature, gradient)
    assert abs(plain_loss(x, rows, targets) - OPTIMUM) < 1e-12
    assert abs(Mushrooms().evaluate(x.astype(np.float32))["metric"]) < 1e-8, "float32 rounding of the optimum"


def test_the_loss_is_the_papers():
    rows, targets = problem()
    task = Mushrooms()
    assert task.loss(task.initial_model(STREAM)) == pytest.approx(np.log(2), rel=1e-12)
    x = np.random.default_rng(0).normal(size=113).astype(np.float32)
    assert task.loss(x) == pytest.approx(plain_loss(x.astype(np.float64), rows, targets), rel=1e-12)
    assert task.evaluate(x)["metric"] == task.loss(x) - OPTIMUM


def test_large_margins_do_not_overflow():
    task = Mushrooms()
    assert np.isfinite(task.loss(np.full(113, 1e6, np.float32)))
    trained = train_from(task, 0, np.full(113, -1e6, np.float32), LocalTraining(1.0, 2), STREAM)
    assert np.isfinite(trained).all()


@pytest.mark.parametrize("clients", [1, 100, 8124])
def test_local_training_is_plain_gradient_descent(clients):
    rows, targets = problem()
    task = Mushrooms(clients)
    client = clients // 2
    part, part_targets = np.array_split(rows, clients)[client], np.array_split(targets, clients)[client]
    start = np.random.default_rng(1).normal(scale=0.1, size=113).astype(np.float32)
    untouched = start.copy()
    expected = start.astype(np.float64)
    for _ in range(10):
        expected -= 2.0 * plain_gradient(expected, part, part_targets)
    np.testing.assert_allclose(train_from(task, client, start, LocalTraining(2.0, 10), STREAM), expected, atol=2e-5)
    np.testing.assert_array_equal(start, untouched)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_correction_is_added_to_every_gradient_after_clipping(clip_norm):
    rows, targets = problem()
    part, part_targets = np.array_split(rows, 100)[50], np.array_split(targets, 100)[50]
    start, correction = np.random.default_rng(1).normal(scale=0.1, size=(2, 113)).astype(np.float32)
    expected = start.astype(np.float64)
    for _ in range(10):
        gradient = plain_gradient(expected, part, part_targets)
        if clip_norm is not None:
            gradient *= min(1.0, clip_norm / np.linalg.norm(gradient))
        expected -= 2.0 * (gradient + correction)
    local = LocalTraining(2.0, 10, clip_norm=clip_norm, correction=correction)
    np.testing.assert_allclose(train_from(Mushrooms(100), 50, start, local, STREAM), expected, atol=2e-5)


def test_clients_hold_contiguous_parts_that_cover_the_file():
    task = Mushrooms(100)
    sizes = [task.samples(client) for client in range(100)]
    assert sizes == [len(part) for part in np.array_split(np.arange(ROWS), 100)]


@pytest.mark.parametrize("clients", [0, 8125])
def test_impossible_numbers_of_clients_are_refused(clients):
    with pytest.raises(ConfigError, match="8124 clients"):
        Mushrooms(clients)


def test_libsvm_text_is_read(tmp_path):
    path = tmp_path / "data"
    path.write_text("1 1:0.5 3:2 # a comment\n\n-1 2:1e-3\n")
    rows = read_libsvm(path)
    np.testing.assert_array_equal(rows.features, np.array([[0.5, 0, 2], [0, 1e-3, 0]], np.float32))
    assert rows.labels.tolist() == [1, -1]
    assert read_libsvm(path, features=5).features.shape == (2, 5)


def test_libsvm_text_is_written_as_it_is_read(tmp_path):
    rows = LabelledRows(np.array([[0.5, 0, 2], [0, 1, 0]], np.float32), np.array([1.0, 2.0]))
    (tmp_path / "data").write_text(write_libsvm(rows))
    np.testing.assert_array_equal(read_libsvm(tmp_path / "data").features, rows.features)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 a:1\n", "line 1: expected 'label index:value …'"),
        ("1 1:1\nx 2:1\n", "line 2"),
        ("1 0:1\n", "indices"),
        ("1 2:1 1:1\n", "indices"),
        ("1 4:1\n", "has feature 4, expected at most 3"),
        ("", "empty"),
        ("\xff", "LIBSVM"),
    ],
)
def test_a_damaged_libsvm_file_says_where(tmp_path, text, words):
    path = tmp_path / "data"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=words):
        read_libsvm(path, features=3)


def test_a_missing_libsvm_file_says_which(tmp_path):
    with pytest.raises(DataError, match="nowhere is missing"):
        read_libsvm(tmp_path / "nowhere")
