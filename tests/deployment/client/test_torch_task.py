"""A `TorchTask` serves a client: another model or another frozen backbone is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from qafel.config import Config  # noqa: E402
from qafel.deployment.client import ClientSettings  # noqa: E402
from qafel.deployment.client.training import train_task, train_with  # noqa: E402
from qafel.deployment.messages import Agreement  # noqa: E402
from qafel.errors import ConfigError, DataError  # noqa: E402
from qafel.simulator import simulate  # noqa: E402
from tests.tasks.neural.models import backbone, made  # noqa: E402

PATH = "tests.tasks.neural.models:backbone"
CONFIG = Config.from_dict(
    {"task": {"name": PATH}, "algorithm": {"buffer_size": 2, "client_weights": "samples"}, "stop": {"server_steps": 2}}
)
SETTINGS = ClientSettings(parts=(PATH,))


def agreement() -> Agreement:
    task = CONFIG.task.make()
    sent = Agreement("run", CONFIG.with_task(task), task.layout).to_bytes()
    return Agreement.from_bytes(sent)


def test_the_runs_configuration_has_the_digest_of_frozen_parameters() -> None:
    assert agreement().config.task.model_dump()["digest"] == backbone().digest
    train, weight = train_task(agreement(), 1, SETTINGS)
    assert callable(train)
    assert weight == 1.0


def test_a_task_object_trains_a_client_of_its_run_only() -> None:
    task = backbone()
    assert train_with(task.training(2), agreement(), 2, SETTINGS)[1] == 1.0
    with pytest.raises(DataError, match="frozen parameters"):
        train_with(backbone(2.0).training(2), agreement(), 2, SETTINGS)
    with pytest.raises(ConfigError, match="146 parameters, expected 34"):
        train_with(made().training(2), agreement(), 2, SETTINGS)
    with pytest.raises(ConfigError, match="client 1"):
        train_with(task.training(1), agreement(), 2, SETTINGS)
    with pytest.raises(ConfigError, match="from 0 to 3"):
        train_with(task.training(4), agreement(), 4, SETTINGS)


def test_a_run_resumes_with_its_frozen_parameters_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(**CONFIG.arguments(), out=tmp_path / "run")
    longer = CONFIG.model_copy(update={"stop": CONFIG.stop.model_copy(update={"server_steps": 4})})
    with pytest.raises(DataError, match="another configuration"):
        simulate(**longer.arguments(backbone(2.0)), out=tmp_path / "run", resume=True)
    assert simulate(**longer.arguments(), out=tmp_path / "run", resume=True).summary["server_steps"] == 4
    text = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert backbone().digest in text
    other = Config.from_toml(text.replace(backbone().digest, "0" * 64), "a copy")
    with pytest.raises(DataError, match="frozen parameters"):
        other.task.make()
