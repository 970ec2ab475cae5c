"""Finished runs in a few kB each, to be kept in a repository: `results/NAME-seedN.json.gz`.

A kept run has its configuration and summary as they are, and of every evaluation the columns that entries read. Models,
checkpoints and the other columns are left out.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from qafel.errors import DataError
from qafel.files import write_atomically
from qafel.runs.directory import state_of
from qafel.runs.reading import read_rows
from qafel.sweeps.making import Planned

COLUMNS = (
    "version",
    "uploads",
    "virtual_time",
    "upload_bytes_total",
    "broadcast_bytes_total",
    "metric",
    "gradient_norm_squared",
)
"""What entries read of an evaluation."""

FILES = ("config.toml", "summary.json")


def keep(planned: Iterable[Planned], runs: Path, results: Path) -> None:
    """Write those of the `planned` runs to `results` that are finished in `runs`; those that are there stay."""
    for run in planned:
        file = _file(results, run)
        if not file.exists() and state_of(runs / run.folder, run.config) == "finished":
            write_atomically(file, _packed(runs / run.folder), make_folder=True)


def take_back(planned: Iterable[Planned], runs: Path, results: Path) -> None:
    """Make run directories in `runs` of those of the `planned` runs that are kept in `results`, unless there is one."""
    for run in planned:
        if _file(results, run).exists() and state_of(runs / run.folder, run.config) == "absent":
            _unpack(_file(results, run), runs / run.folder)


def _file(results: Path, run: Planned) -> Path:
    return results / f"{run.folder}.json.gz"


def _packed(run: Path) -> bytes:
    """One JSON object, compressed; the same run gives the same bytes."""
    rows = read_rows(run / "metrics.jsonl")
    columns = {key: [row.get(key) for row in rows] for key in COLUMNS if any(key in row for row in rows)}
    content = {name: (run / name).read_text(encoding="utf-8") for name in FILES} | {"columns": columns}
    return gzip.compress(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0)


def _unpack(file: Path, run: Path) -> None:
    try:
        content = json.loads(gzip.decompress(file.read_bytes()))
        columns = content["columns"]
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        texts = {"metrics.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}
        texts |= {name: content[name] for name in FILES}
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is damaged ({error}): restore it, or delete it and repeat the run") from None
    for name, text in texts.items():  # the summary last: it says that the run is whole
        write_atomically(run / name, text.encode(), make_folder=True)
