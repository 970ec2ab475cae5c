"""Trackers without the user's settings: tests write to their own stores only, and send rows without delay."""

import os
import shutil

import pytest

from qafel.runs import trackers


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setattr(trackers, "BETWEEN_S", 0.02)


@pytest.fixture(scope="session")
def with_mlflow():
    """Import it here, and not in a module of tests: every process that collects tests would wait for seconds."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    return pytest.importorskip("mlflow", reason="no mlflow: pip install 'qafel[mlflow]'")


@pytest.fixture(scope="session")
def with_wandb():
    """Import it here: see `with_mlflow`."""
    return pytest.importorskip("wandb", reason="no wandb: pip install 'qafel[wandb]'")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory, with_mlflow):
    """A new MLflow database, with all its tables: to make them takes seconds, to copy them nothing."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    with_mlflow.MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def store(empty_store, tmp_path):
    """A client of the store in which runs in folders of `tmp_path` are kept."""
    from mlflow import MlflowClient

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
