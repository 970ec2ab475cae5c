"""Training below one bit a coordinate: a quarter of a bit from clients, half a bit from the server."""

from __future__ import annotations

import warnings

import numpy as np

from qafel import Quadratic, method, simulate
from qafel.quantizers import parse

TASK = Quadratic(clients=40, dimension=4096, heterogeneity=0.1, noise=0.1)
STEPS = {"buffer_size": 10, "client_lr": 0.2, "local_steps": 2, "server_lr": 0.3}
UPLOADS = 2000


def gaps(name: str, **quantizers: str) -> np.ndarray:
    """f(x) − f* over the start's, after every twenty server steps; infinite from where the run broke off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = simulate(
            TASK,
            method(name, **STEPS, **quantizers),
            uploads=UPLOADS,
            evaluate_every=20,
            check=False,
        )
    found = np.asarray(result.history["metric"], float)
    return found / found[0]


def test_a_quarter_of_a_bit_up_and_half_a_bit_down_learn() -> None:
    """A hundredth of the bytes of FedBuff's uploads, the same step sizes, and the gap falls to a fiftieth and stays."""
    fedbuff = gaps("fedbuff")
    ours = gaps("qafel", client_quantizer="trellis:0.25", server_quantizer="trellis:0.5,scale=least")
    assert fedbuff[-1] < 0.005
    assert ours[len(ours) // 2 :].max() < 0.02
    size = TASK.layout.size
    assert parse("trellis:0.25").max_payload_bytes(size) < 0.012 * 4 * size


def test_half_a_bit_down_needs_the_least_scale() -> None:
    """The unbiased scale has an error above one there, so nothing makes the hidden state follow the model."""
    size = TASK.layout.size
    assert parse("trellis:0.5").delta(size) < 0 < parse("trellis:0.5,scale=least").delta(size)
    lost = gaps("qafel", client_quantizer="trellis:0.25", server_quantizer="trellis:0.5")
    assert not lost[-1] < 1
