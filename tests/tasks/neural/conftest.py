"""Packages that take seconds to import."""

import pytest


@pytest.fixture(scope="session")
def with_transformers():
    """Import them here, and not in a module of tests: every process that collects tests would wait for seconds."""
    for name in ("transformers", "peft"):
        pytest.importorskip(name, reason="the extra transformers is not installed")
