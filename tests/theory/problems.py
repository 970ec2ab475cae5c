"""Problems and runs that the tests of theorem, corollary and proof share."""

import numpy as np
from hypothesis import strategies as st

from qafel import Evaluation, Limits, Timing, method, simulate
from qafel.theory import Constants, Setting

PROBLEM = Constants(smoothness=2.0, gradient_noise=3.0, heterogeneity=5.0, initial_gap=7.0)
SETTING = Setting(local_steps=2, buffer_size=4, server_steps=100, max_staleness=3, client_delta=0.5, server_delta=0.5)
positive = st.floats(1e-3, 1e3)
problems = st.builds(Constants, positive, positive, positive, positive)
settings_of_runs = st.builds(
    Setting,
    local_steps=st.integers(1, 50),
    buffer_size=st.integers(1, 1000),
    server_steps=st.integers(1, 10**6),
    max_staleness=st.integers(0, 1000),
    client_delta=st.floats(-10_000, 1),
    server_delta=st.floats(1e-3, 1),
)


def run(setting, step_sizes, client="none", server="none", *, task, **timing):
    """A run's mean ‖∇f(xᵗ)‖² over t = 0 … T − 1, and its summary."""
    algorithm = method(
        "qafel",
        client_quantizer=client,
        server_quantizer=server,
        buffer_size=setting.buffer_size,
        local_steps=setting.local_steps,
        client_lr=step_sizes[0],
        server_lr=step_sizes[1],
    )
    limits = Limits(server_steps=setting.server_steps)
    result = simulate(task, algorithm, Timing(**timing), limits=limits, evaluation=Evaluation())
    rows = [row for row in result.history.rows if row["version"] < setting.server_steps]
    assert [row["version"] for row in rows] == list(range(setting.server_steps))
    return float(np.mean([row["gradient_norm_squared"] for row in rows])), result.summary
