from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qafel.deployment.broker import LocalBroker
from qafel.deployment.keys import Access


@pytest.fixture
def local_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def access(local_broker: LocalBroker) -> Access:
    return Access((local_broker.url,))
