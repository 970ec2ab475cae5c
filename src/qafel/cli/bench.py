"""`qafel bench`: run a benchmark, print its table, write its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track
from rich.table import Table

from qafel.bench.speed import ROTATED, SIZES, all_cases, measure_simulator, time_quantizer
from qafel.cli import new_app, output
from qafel.cli.client import require_extra
from qafel.cli.console import console, errors, figures_table
from qafel.errors import ConfigError
from qafel.files import write_atomically
from qafel.lazy import require_installed
from qafel.quantizers import make_quantizer
from qafel.quantizers.measure import SHOWN
from qafel.text import counted, human_bytes

bench = new_app("Run a benchmark. Each reports ratios within one run.", no_args_is_help=True)
JsonFile = Annotated[Path | None, output("--json", metavar="FILE", help="Write the figures to this JSON file.")]


@bench.command("quantizers")
def bench_quantizers(
    specs: Annotated[
        list[str] | None, typer.Argument(metavar="SPEC", help="Quantizers. Default: a list of common ones.")
    ] = None,
    sizes: Annotated[
        list[int] | None, typer.Option("--size", metavar="N", help="Length of the vector. Repeatable.", min=1)
    ] = None,
    thread_counts: Annotated[
        list[int] | None, typer.Option("--threads", metavar="N", help="Number of threads. Repeatable.", min=1)
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare encoding and decoding with memcpy of the same float32 vector, and trellis with rotated:4.

    Example: qafel bench quantizers --json quantizers.json
    """
    cases = [(s, d, t) for d in sizes or SIZES for s in specs or SHOWN for t in thread_counts or [1, 2]]
    for spec in specs or SHOWN:
        make_quantizer(spec)  # fail before minutes of measuring
    rows = [time_quantizer(*case) for case in track(cases, "measuring", console=errors, transient=True)]
    console.print(_quantizer_table(rows))
    if any("rotated_4_encode_s" in row for row in rows):
        console.print(_trellis_table(rows))
    _write(json_file, rows)


def _trellis_table(rows: list[dict[str, Any]]) -> Table:
    headings = ("quantizer", "size", "thr", f"{ROTATED}", "encode", "encode, mean", "decode")
    table = figures_table(f"time relative to encoding with {ROTATED}", *headings)
    for row in rows:
        if base := row.get("rotated_4_encode_s"):
            ratios = (f"{row[key] / base:.2f}" for key in ("encode_s", "encode_mean_s", "decode_s"))
            table.add_row(row["quantizer"], f"{row['size']:.3g}", str(row["threads"]), f"{base * 1e6:,.0f} µs", *ratios)
    return table


def _quantizer_table(rows: list[dict[str, Any]]) -> Table:
    headings = ("quantizer", "size", "thr", "memcpy", "encode", "decode", "add", "bytes", "NMSE")
    table = figures_table("time relative to memcpy with as many threads", *headings)
    for row in rows:
        copy = row["memcpy_s"]
        ratios = (f"{row[key] / copy:.2f}" for key in ("encode_s", "decode_s", "add_decoded_s"))
        cells = (f"{row['size']:.3g}", str(row["threads"]), f"{copy * 1e6:,.0f} µs", *ratios)
        table.add_row(row["quantizer"], *cells, f"{row['bytes']:,}", f"{row['nmse']:.1g}")
    return table


@bench.command("simulator")
def bench_simulator(json_file: JsonFile = None) -> None:
    """Compare the simulator with a bare loop that only trains, with 4 bits both ways.

    With the extra `torch`, this includes the paper's networks.

    Example: qafel bench simulator --json simulator.json
    """
    headings = ("task", "clients", "d", "updates/s", "bare/s", "ratio", "over µs", "MiB")
    table = figures_table("the simulator, and a bare loop that only trains", *headings)
    rows, cases = [], all_cases()
    with errors.status("measuring") as status:
        for number, row in enumerate(measure_simulator(cases), start=1):
            rows.append(asdict(row))
            status.update(f"measured {number} of {len(cases)}: {row.task}, {counted(row.clients, 'client')}")
            name = row.task if row.batch_size is None else f"{row.task}, batch {row.batch_size}"
            rates = (f"{row.updates_per_s:,.0f}", f"{row.bare_updates_per_s:,.0f}", f"{row.ratio:.2f}")
            cells = (f"{row.clients:,}", f"{row.dimension:,}", *rates, f"{row.overhead_us:.1f}", f"{row.peak_mib:,.0f}")
            table.add_row(name, *cells)
    console.print(table)
    _write(json_file, rows)


@bench.command("training")
def bench_training(
    json_file: JsonFile = None,
) -> None:
    """Compare training of the paper's networks with plain PyTorch, on one thread and random data.

    Example: qafel bench training --json training.json
    """
    require_installed("this benchmark", "torch", torch="PyTorch")
    from qafel.bench.training import measure_training  # noqa: PLC0415  (torch is an extra)

    with errors.status("measuring"):
        figures = measure_training()
    for speed in figures.speeds:
        name = f"{speed.model:14} batch {speed.batch_size:3}  {speed.trainer:16}"
        console.print(f"{name} {speed.updates_per_s:8.1f} a second", highlight=False)
    for name, ratio in figures.ratios().items():
        console.print(f"{name:56} {ratio:6.2f}", highlight=False)
    if not figures.bfloat16:
        console.print("PyTorch cannot use bfloat16 on this CPU: the LSTM trains in float32")
    _write(json_file, figures.as_dict())


@bench.command("deployment")
def bench_deployment(
    cases: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Measure only this case. Repeatable.")
    ] = None,
    updates: Annotated[
        int, typer.Option(metavar="N", help="Accepted updates. Use 100,000 to measure memory.", min=500)
    ] = 20_000,
    clients: Annotated[int, typer.Option(metavar="N", help="Client processes. They do not train.", min=1)] = 10,
    json_file: JsonFile = None,
) -> None:
    """Measure a broker, a server and client processes, with 4 bits both ways and file storage.

    Cases: `default`, `secured`, `always` (sync per message), `paced`, `listeners` (200 of them), `mutants` (damaged
    messages), `made` and `made-secured` (one process sends prepared uploads of four times as many clients, and the
    broker is also measured alone), and `starts` (one process asks for linked starts of 500 times as many clients).

    Example: qafel bench deployment --json deployment.json
    """
    require_extra()
    from qafel.bench.deployment import measure  # noqa: PLC0415
    from qafel.bench.load import DeploymentCase as Case  # noqa: PLC0415

    known = {
        "made": Case(updates, 4 * clients, made=True),
        "made-secured": Case(updates, 4 * clients, made=True, secured=True),
        "default": Case(updates, clients),
        "always": Case(updates, clients, sync="always"),
        "paced": Case(max(500, updates // 10), clients, min_interval_s=clients / 200),
        "listeners": Case(max(500, updates // 10), 2, listeners=200, min_interval_s=0.01),
        "secured": Case(updates, clients, secured=True),
        "mutants": Case(updates, clients, mutants=updates // 2),
        "starts": Case(4, 500 * clients, dimension=31_594, buffer_size=1, starts=3),
    }
    if unknown := set(cases or ()) - known.keys():
        raise ConfigError(f"unknown case {min(unknown)!r}; choose from {', '.join(known)}")
    found: dict[str, Any] = {}
    for name in cases or known:
        errors.print(f"measuring {name} …")
        found[name] = measure(known[name])
    console.print(_deployment_table(found))
    _write(json_file, found)


def _deployment_table(found: dict[str, Any]) -> Table:
    table = figures_table("a real broker, a server and client processes", "", *found)
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "accepted updates/s": lambda f: f"{f['updates_per_s']:,.0f}",
        "bytes per update": lambda f: f"{f['upload_bytes']:,.0f}",
        "processor time per update: server": lambda f: f"{1e3 * f['server_cpu_s_per_update']:.3f} ms",
        "  broker": lambda f: f"{1e3 * f['broker_cpu_s_per_update']:.3f} ms",
        "  clients": lambda f: f"{1e3 * f['client_cpu_s_per_update']:.3f} ms",
        "broker alone, messages/s": lambda f: f"{f['broker_alone']['messages_per_s']:,.0f}",
        "updates/s relative to that": lambda f: f"{f['share_of_broker']:.2f}",
        "upload to broadcast, median": lambda f: f"{1e3 * f['latency_median_s']:.1f} ms",
        "99th percentile": lambda f: f"{1e3 * f['latency_p99_s']:.1f} ms",
        "wire over payload, uploads": lambda f: f"{f['upload_wire_over_payload']:.3f}",
        "wire over payload, all": lambda f: f"{f['all_wire_over_payload']:.3f}",
        "memory of the server": lambda f: human_bytes(f["server_bytes"]),
        "  its growth": lambda f: human_bytes(f["server_growth_bytes"]),
        "memory of an uploading process": lambda f: human_bytes(f["client_bytes"]),
        "memory of a small client": lambda f: human_bytes(f["light_client"]["resident_bytes"]),
        "  its start": lambda f: f"{f['light_client']['cold_start_s']:.2f} s",
        "memory of the broker": lambda f: human_bytes(f["broker_bytes"]),
        "deliveries/s to listeners": lambda f: f"{f['listening']['deliveries_per_s']:,.0f}",
        "first to last, 99th percentile": lambda f: f"{f['listening']['spread_p99_s']:.3f} s",
        "linked starts/s": lambda f: f"{f['starts_per_s']:,.0f}",
        "bytes per start": lambda f: f"{f['bytes_per_start']:,.0f}",
        "processor time per start: server": lambda f: f"{1e3 * f['server_cpu_s_per_start']:.3f} ms",
        "disk for start points": lambda f: human_bytes(f["link_bytes"]),
        "mutants sent": lambda f: f"{f['mutants']['sent']:,}",
        "mutants accepted": lambda f: f"{f['mutants']['accepted']:,}",
        "updates/s without mutants": lambda f: f"{f['mutants']['updates_per_s_without']:,.0f}",
    }
    for label, show in rows.items():
        cells = []
        for figures in found.values():
            try:
                cells.append(show(figures))
            except (KeyError, TypeError):  # this case does not measure it
                cells.append("")
        table.add_row(label, *cells)
    return table


def _write(json_file: Path | None, figures: object) -> None:
    if json_file is not None:
        write_atomically(json_file, (json.dumps(figures, indent=2) + "\n").encode())
        errors.print(f"figures in {json_file}", highlight=False)
