"""The benchmark compares like with like and says so in numbers."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from qafel.bench.training import PlainCnn, TrainingFigures, TrainingSpeed, measure_training
from qafel.cli import app
from qafel.errors import ConfigError
from qafel.tasks.neural.published import Cnn
from qafel.tasks.neural.trainer import choose_precision, has_bfloat16
from qafel.tasks.protocol import train_from

CPU = torch.device("cpu")


def test_the_command_prints_the_ratios_and_writes_the_figures(tmp_path, monkeypatch):
    figures = TrainingFigures(
        (TrainingSpeed("cnn", 4, "qafel", (1.0,)), TrainingSpeed("cnn", 4, "plain", (2.0,))), False
    )
    monkeypatch.setattr("qafel.bench.training.measure_training", lambda: figures)
    file = tmp_path / "training.json"
    result = CliRunner().invoke(app, ["bench", "training", "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "cnn batch 4: qafel / plain" in result.stdout
    assert "bfloat16" in result.stdout
    assert json.loads(file.read_text()) == figures.as_dict()


@pytest.mark.slow
def test_all_trainers_are_measured_in_one_run():
    figures = measure_training(rounds=2, updates=1, batch_sizes=(4,))
    found = figures.as_dict()
    assert {(rate["model"], rate["trainer"]) for rate in found["rates"]} >= {
        ("cnn", "qafel"),
        ("cnn", "plain, mallopt"),
        ("cnn", "plain"),
        ("cnn evaluation", "qafel"),
        ("cnn evaluation", "plain, mallopt"),
        ("lstm", "qafel float32"),
        ("lstm", "plain, mallopt"),
    }
    assert all(rate["updates_per_s"] > 0 for rate in found["rates"])
    assert ("lstm batch 32: qafel bfloat16 / qafel float32" in found["ratios"]) == figures.bfloat16


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    ours, plain = TrainingSpeed("cnn", 32, "qafel", (1.0, 2.0, 1.0)), TrainingSpeed("cnn", 32, "plain", (2.0, 6.0, 1.0))
    assert TrainingFigures((ours, plain), False).ratios() == {"cnn batch 32: qafel / plain": 2.0}
    assert plain.updates_per_s == 0.5


def test_the_plain_network_is_the_same_function():
    ours, plain = Cnn(10).eval(), PlainCnn(10).eval()
    plain.load_state_dict(ours.state_dict())
    images = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        np.testing.assert_allclose(ours(images), plain(images), atol=1e-5)


@pytest.mark.skipif(has_bfloat16(CPU), reason="this CPU has bfloat16")
def test_without_bfloat16_in_hardware_it_is_refused_or_left_out():
    assert choose_precision("auto", CPU) == torch.float32
    with pytest.raises(ConfigError, match="bfloat16"):
        choose_precision("bfloat16", CPU)


@pytest.mark.skipif(not has_bfloat16(CPU), reason="this CPU has no bfloat16 that PyTorch can use")
def test_the_lstm_in_bfloat16_trains_like_the_one_in_float32():
    from qafel.algorithm import LocalTraining
    from qafel.rng import Stream
    from qafel.tasks.datasets.partition import split
    from qafel.tasks.datasets.samples import ArraySamples
    from qafel.tasks.neural.published import CharacterLstm, as_numbers
    from qafel.tasks.neural.task import TorchTask

    generator, stream = np.random.default_rng(0), Stream.named(0, "test")
    data = ArraySamples(generator.integers(0, 80, (32, 80), np.uint8), generator.integers(0, 80, 32))
    whole, half = (
        TorchTask(
            "lstm", CharacterLstm, data, data, split("iid", data.labels, 1, stream), prepare=as_numbers, precision=p
        )
        for p in ("float32", "bfloat16")
    )
    start, local = whole.initial_model(stream), LocalTraining(0.5, steps=2, batch_size=16)
    moved = train_from(whole, 0, start, local, stream) - start
    moved_half = train_from(half, 0, start, local, stream) - start
    assert np.linalg.norm(moved_half - moved) < 0.05 * np.linalg.norm(moved)
