"""Every shipped task adds `local.correction` to each gradient, after clipping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qafel import ClientRule, Needs, Trained, method, simulate
from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError, PartFailed
from qafel.rng import Stream
from qafel.tasks import Mushrooms, Quadratic, SyntheticLogistic, convex
from qafel.tasks.convex import steps as plain
from qafel.tasks.protocol import train_from

STREAM = Stream.named(1, "train")
TASKS = [Mushrooms(100), Quadratic(5, 40, noise=0.0), SyntheticLogistic(5, 40)]
LOCALS = [LocalTraining(0.3, 7), LocalTraining(0.3, 7, weight_decay=0.1, clip_norm=0.05)]


@pytest.mark.parametrize("loops", ["compiled", "plain"])
@pytest.mark.parametrize("local", LOCALS, ids=["not clipped", "clipped"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_corrected_step_is_a_step_and_the_correction(
    task: Any, local: LocalTraining, loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision from one step to the next; a single step's gradient comes from the task itself."""
    if loops == "plain":
        monkeypatch.setattr(convex, "kernels", plain, raising=False)
    start, correction = np.random.default_rng(1).normal(scale=0.3, size=(2, task.layout.size)).astype(np.float32)
    expected = start.astype(np.float64)
    for _ in range(7):
        stepped = train_from(task, 3, expected.astype(np.float32), replace(local, steps=1), STREAM)
        expected = stepped.astype(np.float64) - local.lr * correction
    found = train_from(task, 3, start, replace(local, correction=correction), STREAM)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(found - train_from(task, 3, start, local, STREAM)).max() > 0.1


class Pull(ClientRule):
    """Corrects each gradient by a constant."""

    needs = Needs(correction=True)

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def local(self, local: LocalTraining, start: Any, memory: Any) -> LocalTraining:
        return replace(local, correction=np.full(self.size or start.vector.size, 0.01, np.float32))

    def vector(self, start: Any, trained: Trained, memory: Any) -> Any:
        return start.vector - trained.model


class Undeclared(Pull):
    needs = Needs()


def test_a_rule_corrects_in_a_run_and_a_wrong_or_undeclared_correction_is_refused() -> None:
    task = Mushrooms(10)

    def end(rule: ClientRule | str) -> str:
        algorithm = method("fedbuff", client_rule=rule, client_lr=0.5, buffer_size=2)
        return str(simulate(task, algorithm, server_steps=3).summary["model_sha256"])

    assert end(Pull()) != end("update")
    with pytest.raises(PartFailed, match="correction"):
        end(Pull(5))
    with pytest.raises(ConfigError, match="correction=True"):
        end(Undeclared())
