"""The folder of one search: one process at a time works in it, and it holds no other search."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from qafel.errors import DataError, OutputError
from qafel.results.run_directory import write_atomically

_NOTHING = "nothing"


@final
class SearchFolder:
    """A context in which one process, and no other, searches in a folder."""

    def __init__(self, path: Path, setup: Mapping[str, Any]) -> None:
        self.path = path
        self.setup = setup

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("ab")
        except OSError as error:
            raise OutputError(f"cannot write results to {self.path}: {error.strerror}; choose another --out") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._refuse_another_search()
        except BlockingIOError:
            self._lock.close()
            raise OutputError(f"a search goes on in {self.path}: wait for its end, or choose another --out") from None
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def trial(self, number: int) -> Path:
        """Where a trial's runs are."""
        return self.path / "trials" / f"{number:04d}"

    @property
    def journal(self) -> Path:
        return self.path / "study.journal"

    def _refuse_another_search(self) -> None:
        path = self.path / "search.json"
        if not path.exists():
            if self.journal.exists():
                raise DataError(f"{path} is missing, so what was searched there is unknown: choose another --out")
            write_atomically(path, (json.dumps(self.setup, indent=2, ensure_ascii=False) + "\n").encode())
            return
        try:
            there = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): choose another --out") from None
        before, now = _flat(there), _flat(json.loads(json.dumps(self.setup)))
        for key in [*now, *before]:
            if before.get(key, _NOTHING) != now.get(key, _NOTHING):
                raise OutputError(
                    f"{self.path} holds another search ({key}: {before.get(key, _NOTHING)} there, "
                    f"{now.get(key, _NOTHING)} here): choose another --out"
                )


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{before}{key} ") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat
