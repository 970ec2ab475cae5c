from __future__ import annotations

from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(autouse=True)
def _sockets_close_before_their_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python warns of the others only when it collects them: in a later test."""
    left, close = list[str](), BaseSelectorEventLoop.close

    def look_and_close(loop: Any) -> None:
        watched = loop._selector.get_map() if loop._selector is not None else {}
        left.extend(str(key.data) for key in watched.values() if key.fd != loop._ssock.fileno())
        left.extend(str(line) for line in loop._transports.values() if getattr(line, "_sock", None) is not None)
        close(loop)

    monkeypatch.setattr(BaseSelectorEventLoop, "close", look_and_close)
    yield
    assert left == []
