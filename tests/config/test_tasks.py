"""A task's settings become the task, or say what it lacks, without making it."""

import importlib

import pytest

from qafel.config import Config
from qafel.config.tasks import TASKS
from qafel.errors import ConfigError
from tests.tasks.datasets.fake_data import write_celeba, write_cifar10_binary, write_shakespeare


def section(name, **settings):
    return Config.from_dict({"task": {"name": name, **settings}}).task


@pytest.mark.parametrize("name", ["mushrooms", "quadratic", "logistic"])
def test_a_tasks_settings_become_the_task(name):
    task = Config.from_dict({"task": {"name": name, "clients": 6}}).task.make()
    assert (task.name, task.clients) == (name, 6)


@pytest.fixture
def nothing_is_made(monkeypatch):
    """Neither the neural tasks nor torch are imported."""
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))


@pytest.mark.usefixtures("nothing_is_made")
def test_missing_data_is_noticed_without_making_the_task(tmp_path, monkeypatch):
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path))
    wanted = {"cifar10": "data_batch_1.bin is missing", "celeba": "list_attr_celeba.txt is missing"}
    wanted["shakespeare"] = "pg100.txt is missing"
    for name in TASKS:
        reason = section(name).missing()
        assert reason is None if name not in wanted else wanted[name] in reason
    for write in (write_cifar10_binary, write_celeba, write_shakespeare):
        write(tmp_path)
    assert [section(name).missing() for name in wanted] == [None] * 3


@pytest.mark.usefixtures("nothing_is_made")
def test_missing_data_that_cannot_be_downloaded_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path))
    assert "CelebA may not be downloaded by programs" in section("celeba").missing(fetch=True)


@pytest.mark.usefixtures("nothing_is_made")
def test_missing_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert section("cifar10").missing() == "cifar10 needs PyTorch and Numba: pip install 'qafel[torch]'"
    with pytest.raises(ConfigError, match="needs PyTorch and Numba: pip install"):
        section("cifar10").make()
    assert section("mushrooms").missing() is None
