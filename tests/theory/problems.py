"""Problems and runs that the tests of theorem and corollary share."""

from hypothesis import strategies as st

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
    client_delta=st.floats(-10, 1),
    server_delta=st.floats(1e-3, 1),
)
