"""Time of every quantizer, as a ratio to copying the same vector in the same run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from qafel.bench.simulator import all_cases, measure
from qafel.cli.broker import require_extra
from qafel.cli.console import console, errors
from qafel.errors import ConfigError, OutputError
from qafel.files import write_atomically
from qafel.params import Vector
from qafel.quantizers import parse, threads
from qafel.quantizers.measure import SHOWN, gaussian
from qafel.rng import Stream
from qafel.text import human_bytes

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


# `qafel bench simulator`.


def bench_simulator(
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")] = None,
) -> None:
    """Measure the simulator against a bare loop that only does the same training, with 4 bits both ways.

    With the extra torch, the paper's networks too; `python benchmarks/neural.py` compares those with plain PyTorch.

    Example: qafel bench simulator --json simulator.json
    """
    table = Table(box=None, header_style="bold")
    for name in ("task", "clients", "d", "updates/s", "bare loop/s", "ratio", "overhead µs", "peak MiB"):
        table.add_column(name, justify="left" if name == "task" else "right")
    rows, cases = [], all_cases()
    with errors.status("measuring") as status:
        for number, row in enumerate(measure(cases), start=1):
            rows.append(row)
            status.update(f"measured {number} of {len(cases)}: {row.task}, {row.clients:,} clients")
            table.add_row(
                row.task if row.batch_size is None else f"{row.task}, batch {row.batch_size}",
                f"{row.clients:,}",
                f"{row.dimension:,}",
                f"{row.updates_per_s:,.0f}",
                f"{row.bare_updates_per_s:,.0f}",
                f"{row.ratio:.2f}",
                f"{row.overhead_us:.1f}",
                f"{row.peak_mib:,.0f}",
            )
    console.print(table)
    if json_file is not None:
        write_atomically(json_file, (json.dumps([asdict(row) for row in rows], indent=2) + "\n").encode())
        console.print(f"rows in {json_file}", highlight=False)


# Speed, latency, wire bytes and memory of a deployment on this machine.


_CASES = ("default", "always", "paced", "listeners", "secured", "mutants")


def bench_deployment(
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
    updates: Annotated[
        int, typer.Option(help="Accepted updates per case; 100,000 for the memory figure.", min=500)
    ] = 20_000,
    clients: Annotated[int, typer.Option(help="Client processes, which do not train.", min=1)] = 10,
    dimension: Annotated[int, typer.Option(help="The model's parameters.", min=1)] = 29_282,
    listeners: Annotated[int, typer.Option(help="Clients that only receive, in the case `listeners`.", min=1)] = 200,
    only: Annotated[
        list[str] | None, typer.Option("--case", help=f"One of {', '.join(_CASES)}; may be repeated; all by default.")
    ] = None,
) -> None:
    """Measure a real broker, a server and client processes, d = 29,282, 4 bits both ways, file storage.

    Example: qafel bench deployment --json deployment.json
    """
    require_extra()
    from qafel.bench.deployment import measure  # noqa: PLC0415
    from qafel.bench.deployment_processes import Case  # noqa: PLC0415

    cases = {
        "default": Case(updates, clients, dimension),
        "always": Case(updates, clients, dimension, sync="always"),
        "paced": Case(max(500, updates // 10), clients, dimension, min_interval_s=clients / 200),
        "listeners": Case(max(500, updates // 10), 2, dimension, listeners=listeners, min_interval_s=0.01),
        "secured": Case(updates, clients, dimension, secured=True),
        "mutants": Case(updates, clients, dimension, mutants=updates // 2),
    }
    for name in only or ():
        if name not in cases:
            raise ConfigError(f"unknown case {name!r}; choose from {', '.join(cases)}")
    found: dict[str, Any] = {}
    for name in only or cases:
        typer.echo(f"measuring {name} …", err=True)
        found[name] = measure(cases[name])
    Console().print(_table_of_bench_deployment(found))
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {json_file}: {error.strerror}") from error


def _table_of_bench_deployment(found: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "accepted updates/s": lambda f: f"{f['updates_per_s']:,.0f}",
        "bytes an update": lambda f: f"{f['upload_bytes']:,.0f}",
        "upload to broadcast, median": lambda f: f"{1e3 * f['latency_median_s']:.1f} ms",
        "99th percentile": lambda f: f"{1e3 * f['latency_p99_s']:.1f} ms",
        "wire over payload, uploads": lambda f: f"{f['upload_wire_over_payload']:.3f}",
        "wire over payload, all": lambda f: f"{f['all_wire_over_payload']:.3f}",
        "server memory": lambda f: human_bytes(f["server_bytes"]),
        "its growth": lambda f: human_bytes(f["server_growth_bytes"]),
        "a client's memory": lambda f: human_bytes(f["client_bytes"]),
        "broker's memory": lambda f: human_bytes(f["broker_bytes"]),
        "deliveries/s to listeners": lambda f: _of(f, "listening", "deliveries_per_s", "{:,.0f}"),
        "first to last, 99th percentile": lambda f: _of(f, "listening", "spread_p99_s", "{:.3f} s"),
        "mutants sent": lambda f: _of(f, "mutants", "sent", "{:,}"),
        "of them accepted": lambda f: _of(f, "mutants", "accepted", "{:,}"),
        "updates/s without them": lambda f: _of(f, "mutants", "updates_per_s_without", "{:,.0f}"),
    }
    for label, show in rows.items():
        table.add_row(label, *(show(figures) for figures in found.values()))
    return table


def _of(figures: dict[str, Any], part: str, key: str, form: str) -> str:
    value = figures.get(part, {}).get(key)
    return "" if value is None else form.format(value)
