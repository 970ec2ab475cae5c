"""[start]: a run begins from a model; one that does not fit, is damaged or not finite is refused in a sentence."""

import numpy as np
import pytest
import safetensors.numpy

from qafel.config import load_recipe
from qafel.config.start import StartConfig, model_of
from qafel.errors import DataError
from qafel.params import Layout
from qafel.runs.directory import same_run, settings_of

LAYOUT = Layout.of({"weight": (2, 3), "bias": (3,)})
TENSORS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(3, np.float32)}


def written(path, tensors):
    path.write_bytes(safetensors.numpy.save(tensors))
    return StartConfig(model=str(path))


def test_a_model_is_read_as_the_layout_says_whatever_the_order_and_precision_of_the_file(tmp_path):
    expected = np.array([0, 1, 2, 3, 4, 5, 1, 1, 1], np.float32)
    turned = {name: TENSORS[name].astype(np.float64) for name in ("bias", "weight")}
    for tensors in (TENSORS, turned):
        model = written(tmp_path / "m.safetensors", tensors).read(LAYOUT)
        assert model.dtype == np.float32
        np.testing.assert_array_equal(model, expected)
    np.testing.assert_array_equal(model_of(expected, LAYOUT, "it"), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": np.zeros((3, 2), np.float32)}, "weight"),
        ({"other": np.zeros(1, np.float32)}, "it has a tensor 'other', the task's are weight, bias"),
        ({"bias": None}, "tensor 'bias' is missing"),
        ({"bias": np.array([1, np.nan, 1], np.float32)}, "a NaN or an infinity"),
        ({"bias": np.full(3, 1e300)}, "a NaN or an infinity"),
        ({"bias": np.ones(3, np.int64)}, "int64"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_a_sentence(tmp_path, change, words):
    tensors = {name: tensor for name, tensor in {**TENSORS, **change}.items() if tensor is not None}
    with pytest.raises(DataError) as refused:
        written(tmp_path / "m.safetensors", tensors).read(LAYOUT)
    assert words in str(refused.value)
    assert "m.safetensors" in str(refused.value)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"not one", lambda data: b""])
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path, damage):
    start = written(tmp_path / "m.safetensors", TENSORS)
    path = tmp_path / "m.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="safetensors"):
        start.read(LAYOUT)


def test_the_content_of_the_model_is_part_of_the_run_and_its_place_is_not(tmp_path):
    """A recipe is pinned to the file as it is when it is read."""
    for name, tensors in (("a", TENSORS), ("b", TENSORS), ("c", {**TENSORS, "bias": np.zeros(3, np.float32)})):
        written(tmp_path / name, tensors)
    plain = settings_of(load_recipe("mushrooms-fedbuff"))
    a, b, c = (
        settings_of(load_recipe("mushrooms-fedbuff", [f'start.model="{tmp_path / name}"'])) for name in ("a", "b", "c")
    )
    assert same_run(a, b)
    assert not same_run(a, c)
    assert not same_run(a, plain)
    pinned = load_recipe("mushrooms-fedbuff", [f'start.model="{tmp_path / "a"}"'])
    written(tmp_path / "a", {**TENSORS, "bias": np.zeros(3, np.float32)})
    with pytest.raises(DataError, match="is not the model that this run starts from"):
        pinned.start.read(LAYOUT)


def test_a_model_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="cannot read the model to start from, gone: No such file"):
        load_recipe("mushrooms-fedbuff", ["start.model=gone"])
