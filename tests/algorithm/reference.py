"""Plain, slow readings of the papers, one line per line of pseudocode: the oracles for the fast code."""

from __future__ import annotations

import numpy as np

F = np.float32


def qafel(x0, updates, *, buffer_size, server_lr, momentum, quantize_server, staleness_weight):
    """Algorithms 1 to 3 of the QAFeL paper (with x − η_g Δ̄, as its equation (2) has it).

    `updates` yields functions from the hidden state's history to (decoded update, version it is based on, weight).
    Returns every (x, x̂) by version.
    """
    x, hidden = F(x0).copy(), F(x0).copy()
    velocity = np.zeros_like(x)
    history = [(x.copy(), hidden.copy())]
    buffer = []
    for update in updates:
        delta, version, weight = update([h for _, h in history])
        staleness = len(history) - 1 - version
        buffer.append((F(weight * staleness_weight(staleness)), delta))
        if len(buffer) < buffer_size:
            continue
        total = np.zeros_like(x)
        for weight, delta in buffer:
            total += weight * delta
        buffer = []
        velocity = F(momentum) * velocity + total / F(buffer_size)
        x = x - F(server_lr) * velocity
        hidden = hidden + quantize_server(x - hidden, len(history) - 1)
        history.append((x.copy(), hidden.copy()))
    return history


def fedbuff(x0, updates, *, buffer_size, server_lr):
    """Nguyen et al. 2022, Algorithm 1, without a hidden state: clients start from x itself."""
    x = np.float64(x0)
    history = [x]
    buffer = []
    for update in updates:
        delta, _, weight = update(history)
        buffer.append(weight * np.float64(delta))
        if len(buffer) == buffer_size:
            x = x - server_lr * np.mean(buffer, axis=0)
            history.append(x)
            buffer = []
    return history


def fedasync(x0, trained_models, *, alpha, staleness_weight):
    """Xie et al. 2019, Algorithm 1: x ← (1 − α_t)x + α_t x_new with α_t = α s(t − τ)."""
    x = np.float64(x0)
    history = [x]
    for model, version in trained_models:
        mixing = alpha * staleness_weight(len(history) - 1 - version)
        x = (1 - mixing) * x + mixing * np.float64(model(history[version]))
        history.append(x)
    return history
