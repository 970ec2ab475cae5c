"""Finished runs in a few kB each, to be kept in a repository: `results/NAME-seedN.json.gz`.

A kept run has its configuration and summary as they are, and of every evaluation the columns that entries read. Models,
checkpoints and the other columns are left out.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from qafel.errors import DataError, OutputError
from qafel.files import read_regular, write_atomically, writing
from qafel.runs.directory import RunDirectory, read_toml, state_of
from qafel.runs.reading import Run, read_rows
from qafel.search.runner import RunSpec

ALWAYS = ("version", "uploads", "virtual_time", "upload_bytes_total", "broadcast_bytes_total", "metric")
COLUMNS = (*ALWAYS, "gradient_norm_squared")
"""What entries read of an evaluation; the last is not in every run."""

FILES = ("config.toml", "summary.json")
_MOST_BYTES = 64 << 20


def keep(planned: Iterable[RunSpec], runs: Path, results: Path) -> None:
    """Write those of the `planned` runs to `results` that are finished in `runs`; those that are there stay."""
    for run in planned:
        file = _file(results, run)
        if not file.exists() and state_of(runs / run.folder, run.config) == "finished":
            write_atomically(file, _packed(runs / run.folder), make_folder=True)


def require_writable(results: Path) -> None:
    """Raise OutputError if runs cannot be kept in `results`: before they are made."""
    with writing(f"to {results}", "; choose another folder with --results"):
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results) as probe:
            probe.write(bytes(4096))


def take_back(planned: Iterable[RunSpec], runs: Path, results: Path) -> None:
    """Make run directories in `runs` of those of the `planned` runs that are kept in `results`, unless finished there.

    What is there of such a run is moved aside; one that another process is making is left to it. A kept run that is not
    the planned one is an error: it would be made again every time.
    """
    if not results.is_dir():
        raise DataError(f"{results} is no folder of kept runs")
    for run in planned:
        path = runs / run.folder
        if _file(results, run).exists() and state_of(path, run.config) != "finished":
            _unpack(_file(results, run), run, path)


def whole_run(path: Path) -> Run:
    """The finished run in the folder `path`; DataError if its rows do not reach to the end that its summary states."""
    run, file = Run.load(path), path / "metrics.jsonl"
    if missing := [name for name in ALWAYS if name not in run.history]:
        raise DataError(f"{file} is damaged: it has no {', '.join(missing)}")
    ended, last = run.number("uploads"), float(run.column("uploads")[-1])
    if run.summary.get("status") == "finished" and ended != last:
        raise DataError(f"{file} is damaged: it ends after {last:,g} uploads, and the run did after {ended:,g}")
    return run


def _file(results: Path, run: RunSpec) -> Path:
    return results / f"{run.folder}.json.gz"


def _packed(run: Path) -> bytes:
    """One JSON object, compressed; the same run gives the same bytes."""
    whole_run(run)
    rows = read_rows(run / "metrics.jsonl")
    columns = {key: [row.get(key) for row in rows] for key in COLUMNS if any(key in row for row in rows)}
    content = {name: (run / name).read_text(encoding="utf-8") for name in FILES} | {"columns": columns}
    return gzip.compress(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0)


def _unpack(file: Path, run: RunSpec, path: Path) -> None:
    """Make the run directory `path` of a kept file, all of it or nothing."""
    texts = _read(file)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(str(path), "; choose another folder with --out"):
            made.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (made / name).write_bytes(text)
        _require_planned(made, file, run)
        with suppress(OutputError), RunDirectory(path) as directory:  # else another process is at work in it
            if state_of(path, run.config) != "finished":
                directory.move_aside()
                made.rename(path)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _require_planned(made: Path, file: Path, run: RunSpec) -> None:
    """Raise DataError unless what was `made` of a kept file is the planned run, and whole."""
    read_toml(made)
    if state_of(made, run.config) != "finished":
        raise DataError(f"{file} is another run than {run.folder} is now: delete it, and the run is made again")
    try:
        whole_run(made)
    except DataError as error:
        raise DataError(f"{file} is damaged ({error}): restore it, or delete it and repeat the run") from None


def _read(file: Path) -> dict[str, bytes]:
    """The files of a kept run, by name."""
    try:
        content = json.loads(gzip.decompress(read_regular(file, _MOST_BYTES)))
        columns = content["columns"]
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        texts = {"metrics.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}
        return {name: text.encode() for name, text in (texts | {name: content[name] for name in FILES}).items()}
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise DataError(f"{file} is damaged ({error}): restore it, or delete it and repeat the run") from None
