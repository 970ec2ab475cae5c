"""examples/resnet and examples/frozen: their recipes run on small images, and a frozen backbone stays."""

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

from qafel.config import load_recipe
from qafel.errors import DataError
from qafel.simulator import simulate
from qafel.tasks.datasets.cifar10 import load_cifar10
from tests.tasks.datasets.fake_data import write_cifar10_binary

EXAMPLES = Path(__file__).parents[3] / "examples"
FEW = ["algorithm.buffer_size=2", "stop.uploads=2", "timing.concurrency=2"]


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Return a function that imports a module of an example, which then reads made-up images."""
    write_cifar10_binary(tmp_path, images=40)
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path))

    def load(folder, *names):
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)
        modules = [importlib.import_module(name) for name in names]
        for module in modules:
            monkeypatch.setattr(module, "load_cifar10", partial(load_cifar10, verify=False))
        return modules

    return load


def run(recipe, **settings):
    changes = [f"task.arguments.{name}={value}" for name, value in settings.items()]
    return simulate(**load_recipe(str(recipe), [*changes, *FEW]).arguments(), check=False)


@pytest.mark.parametrize("name", ["fedbuff", "qafel"])
def test_resnet20_trains_by_the_recipe(example, name):
    example("resnet", "resnet20")
    result = run(EXAMPLES / "resnet" / f"{name}.toml", clients=4, pixels=8, test_samples=10)
    assert result.summary["server_steps"] == 1
    assert result.model.size == 269_722


@pytest.mark.parametrize("name", ["fedbuff", "qafel"])
def test_clients_train_the_head_of_a_pretrained_backbone(example, tmp_path, name):
    module, script = example("frozen", "frozen", "pretrain")
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    script.pretrain(first, steps=1, batch_size=4)
    script.pretrain(second, steps=2, batch_size=4)
    result = run(EXAMPLES / "frozen" / f"{name}.toml", backbone=first, clients=4, test_samples=10)
    assert result.summary["server_steps"] == 1
    assert result.model.size == 4 * module.FEATURES + 4
    task = load_recipe(str(EXAMPLES / "frozen" / f"{name}.toml"), [f"task.arguments.backbone={first}"]).task
    frozen = task.make().digest
    with pytest.raises(DataError, match="frozen parameters"):
        task.model_copy(update={"digest": frozen, "arguments": {**task.arguments, "backbone": str(second)}}).make()
