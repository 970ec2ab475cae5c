"""The server's step: momentum, and steps that are far below the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qafel import HiddenState, LocalTraining, Server, ServerRule, method
from qafel.algorithm import Direction
from qafel.algorithm.server_rules import SGD, step_in_numpy, step_kernel
from qafel.errors import ConfigError
from tests.uploads import receive, upload_of

SIZE = 3
STEPS, STEP = 5000, 2e-8


def after_tiny_steps(rule: object, **settings: object) -> Server:
    """A server after many steps of −2·10⁻⁸ from 1, each less than half of what float32 can add to it."""
    algorithm = method("fedbuff", local=LocalTraining(1.0, 1), buffer_size=1, server_rule=rule, **settings)
    server = Server(np.ones(SIZE, np.float32), algorithm, 0)
    origin = HiddenState.of(np.zeros(SIZE, np.float32))
    update = np.full(SIZE, STEP, np.float32)
    for sequence in range(STEPS):
        start = HiddenState.of(origin.vector.copy(), server.version)
        receive(server, upload_of(start, -update, algorithm, sequence=sequence))
    assert server.version == STEPS
    return server


def test_a_compensated_step_moves_the_model_by_what_float32_would_lose() -> None:
    server = after_tiny_steps({"name": "sgd", "compensated": True}, server_lr=1.0)
    assert (1 - server.model >= 0.999 * STEPS * STEP).all()
    assert (1 - server.model <= 1.001 * STEPS * STEP).all()


def test_a_plain_step_leaves_the_model_where_it_is() -> None:
    assert (after_tiny_steps("sgd", server_lr=1.0).model == 1.0).all()


def test_the_compensated_step_is_a_setting_that_is_off_by_default_but_for_adaptive_rules() -> None:
    assert not method("qafel").server_rule.compensated
    assert method("qafel", server_rule={"name": "sgd", "compensated": True}).server_rule.compensated
    assert method("fedadam").server_rule.compensated


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mixed", [0.0, 2.5])
@pytest.mark.parametrize("remembers", [False, True])
def test_the_compensated_steps_in_numpy_and_compiled_give_equal_bits(
    momentum: float, mixed: float, remembers: bool
) -> None:
    def ended(kernel: Callable[..., None]) -> list[bytes]:
        random = np.random.default_rng(1)
        model = random.standard_normal(200, dtype=np.float32)
        velocity, rounded = np.zeros(200 if momentum else 0, np.float32), np.zeros(200, np.float32)
        memory = random.standard_normal(200 if remembers else 0, dtype=np.float32)
        for _ in range(50):
            total, following = random.standard_normal(200, dtype=np.float32) * np.float32(1e-6), np.empty_like(model)
            numbers = np.float32(mixed), np.float32(7.0)
            kernel(following, model, total, *numbers, memory, velocity, np.float32(momentum), np.float32(0.1), rounded)
            model = following
        return [array.tobytes() for array in (model, velocity, rounded)]

    assert ended(step_kernel()) == ended(step_in_numpy)


def test_compensation_changes_a_step_by_less_than_rounding_does() -> None:
    random = np.random.default_rng(0)
    model, total = (random.standard_normal(500, dtype=np.float32) for _ in range(2))
    found: list[np.ndarray] = []
    for compensated in (False, True):
        rule: ServerRule = SGD(0.1, compensated=compensated)
        rule.begin_(method("qafel"), 500, None)
        found.append(rule.step_(model, Direction(total, divisor=3.0)))
    np.testing.assert_allclose(*found, rtol=0, atol=np.spacing(np.abs(model).max()))


@pytest.mark.parametrize("mixed", [0.0, 2.0])
@pytest.mark.parametrize("remembers", [False, True])
def test_a_direction_is_the_update_that_the_step_makes(mixed: float, remembers: bool) -> None:
    random = np.random.default_rng(0)
    model, total, memory = (random.standard_normal(50, dtype=np.float32) for _ in range(3))
    direction = Direction(total, 4.0, mixed, memory if remembers else None)
    rule = SGD(0.3)
    rule.begin_(method("qafel"), 50, None)
    expected = model - np.float32(0.3) * direction.update(model)
    np.testing.assert_array_equal(rule.step_(model, direction), expected)
    exact = ((mixed * model - total) if mixed else total) / 4 + (memory if remembers else 0)
    np.testing.assert_allclose(direction.update(model), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "arguments", [{"lr": 0.0}, {"lr": "fast"}, {"momentum": 1.0}, {"momentum": True}, {"compensated": "yes"}]
)
def test_wrong_arguments_of_the_step_are_a_sentence(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments)).replace("lr", "learning rate")):
        method("qafel", server_rule={"name": "sgd", **arguments})
