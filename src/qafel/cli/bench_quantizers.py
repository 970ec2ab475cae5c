"""Time of every quantizer, as a ratio to copying the same vector in the same run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.progress import Progress
from rich.table import Table

from qafel.cli.progress import console
from qafel.errors import OutputError
from qafel.params import Vector
from qafel.quantizers import parse, threads
from qafel.quantizers.samples import SHOWN, gaussian
from qafel.rng import Stream

_SIZES: Final = [29_282, 1_000_000, 25_000_000]
_BUDGET_S: Final = 0.4  # per figure; the median of at least five rounds


def bench_quantizers(
    specs: Annotated[list[str] | None, typer.Argument(help="Specs to time instead of the usual ones.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
    sizes: Annotated[list[int] | None, typer.Option("--size", help="Coordinates; may be repeated.", min=1)] = None,
    thread_counts: Annotated[list[int] | None, typer.Option("--threads", help="May be repeated.", min=1)] = None,
) -> None:
    """Time encode, decode and add_decoded_ against memcpy of the same float32 vector.

    Example: qafel bench quantizers --json quantizers.json
    """
    cases = [(s, d, t) for d in sizes or _SIZES for s in specs or SHOWN for t in thread_counts or [1, 2]]
    for spec in specs or SHOWN:
        parse(spec)  # a typing mistake shows before minutes of measuring
    rows = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(cases))
        for spec, size, count in cases:
            progress.update(task, description=f"{spec} at {size}, {count} threads")
            rows.append(benchmark_row(spec, size, count))
            progress.advance(task)
    console.print(_table(rows))
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {json_file}: {error.strerror}") from error


def benchmark_row(spec: str, size: int, thread_count: int) -> dict[str, Any]:
    """Median times of one quantizer, interleaved with memcpy so that all see the same machine."""
    quantizer, stream = parse(spec), Stream.named(0, "benchmark")
    vector = gaussian(size)
    target, copy = np.zeros_like(vector), np.empty_like(vector)
    with threads(thread_count):
        payload = quantizer.encode(vector, stream)
        decoded = quantizer.decode(payload, size)
        memcpy_s, encode_s, decode_s, add_s = _medians(
            lambda: np.copyto(copy, vector),
            lambda: quantizer.encode(vector, stream),
            lambda: quantizer.decode(payload, size),
            lambda: quantizer.add_decoded_(target, payload),
        )
    return {
        "quantizer": quantizer.spec,
        "size": size,
        "threads": thread_count,
        "encode_s": encode_s,
        "decode_s": decode_s,
        "add_decoded_s": add_s,
        "memcpy_s": memcpy_s,
        "bytes": len(payload),
        "nmse": _nmse(vector, decoded),
    }


def _medians(*works: Callable[[], object]) -> list[float]:
    """The median time of each, in rounds over all, after one unmeasured round."""
    times: list[list[float]] = [[] for _ in works]
    begin = time.perf_counter()
    for turn in range(2000):
        for work, measured_s in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            measured_s.append(time.perf_counter() - start)
        if turn >= 5 and time.perf_counter() - begin > _BUDGET_S * len(works):
            break
    return [float(np.median(measured_s[1:])) for measured_s in times]


def _nmse(vector: Vector, decoded: Vector) -> float:
    error = decoded - vector
    return float(np.vdot(error, error) / np.vdot(vector, vector))


def _table(rows: list[dict[str, Any]]) -> Table:
    title = "time over memcpy's, at so many threads"
    table = Table(box=None, header_style="bold", title=title, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("quantizer", no_wrap=True)
    for name in ("size", "thr", "memcpy", "encode", "decode", "add", "bytes", "NMSE"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        copy = row["memcpy_s"]
        ratios = (f"{row[key] / copy:.2f}" for key in ("encode_s", "decode_s", "add_decoded_s"))
        cells = (f"{row['size']:.3g}", str(row["threads"]), f"{copy * 1e6:,.0f} µs", *ratios)
        table.add_row(row["quantizer"], *cells, f"{row['bytes']:,}", f"{row['nmse']:.1g}")
    return table
