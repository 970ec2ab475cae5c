"""The arithmetic of the server's step, compiled. It loads Numba, so only a server imports it."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def step(following, model, total, mixed, divisor, memory, velocity, momentum, lr):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One pass, because NumPy's many small operations would cost a step more than ten small updates' decoding."""
    for j in range(model.size):
        update = (mixed * model[j] - total[j] if mixed else total[j]) / divisor
        if memory.size:
            update += memory[j]
        if velocity.size:
            update += velocity[j] * momentum
            velocity[j] = update
        following[j] = model[j] - lr * update
