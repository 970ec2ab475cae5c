"""The deployment's speed: a real broker, a server process, client processes that do not train, file storage.

Figures are of this machine, all processes on it together: with two cores, broker, server and clients share them.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qafel.bench import deployment_processes as processes
from qafel.bench.deployment_processes import DeploymentCase, Figures, Results
from qafel.deployment.broker.folder import BrokerFolder
from qafel.deployment.broker.local import LocalBroker, free_port

Mark: TypeAlias = tuple[float, int, int]
"""A moment of the server: time, updates, bytes of memory."""


def measure(case: DeploymentCase) -> Figures:
    """Run one case to its end; with mutants, once more without them, to compare."""
    found = _measure(case)
    if case.mutants:
        without = _measure(replace(case, mutants=0))["updates_per_s"]
        found["mutants"] |= {"updates_per_s_without": without, "slower_by": without / found["updates_per_s"]}
    return found


def _measure(case: DeploymentCase) -> Figures:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="qafel-bench-") as name, _broker(Path(name) / "broker", case) as broker:
        results: Results = context.Queue()
        targets: list[Any] = [
            processes.serve_run,
            *(partial(processes.upload, number) for number in range(case.clients)),
        ]
        targets += [processes.listen] * (case.listeners > 0) + [processes.send_mutants] * (case.mutants > 0)
        works = [context.Process(target=target, args=(case, name, results), daemon=True) for target in targets]
        for work in works:
            work.start()
        try:
            found = [results.get(timeout=60 + case.updates / 20) for _ in works]
        finally:
            for work in works:
                work.join(20)
                if work.is_alive():
                    work.terminate()
        return _figures(case, found, processes.resident_bytes(broker.pid), processes.cpu_s(broker.pid))


@contextmanager
def _broker(folder: Path, case: DeploymentCase) -> Iterator[LocalBroker]:
    port = free_port()
    if case.secured:
        BrokerFolder.init(folder, case.all_clients, port=port, sync=case.sync or "2m")
    (folder.parent / "port").write_text(str(port))
    with LocalBroker(folder, port=port, sync=case.sync) as broker:
        yield broker


def _figures(case: DeploymentCase, found: list[tuple[str, Figures]], broker_bytes: int, broker_cpu_s: float) -> Figures:
    (server,) = (reported for kind, reported in found if kind == "server")
    clients = [reported for kind, reported in found if kind == "client"]

    def total(*keys: str) -> float:
        return float(sum(client[key] for client in clients for key in keys))

    begin, *_, end = _steady(server["marks"])
    latencies = np.array([latency for client in clients for latency in client["latencies_s"]] or [np.nan])
    # What had to cross: each upload twice (to the broker and on to the server), each broadcast once and per recipient.
    crossed = server["upload_bytes_total"] + server["broadcast_bytes_total"] + total("sent_bytes", "received_bytes")
    wire = server["wire_sent_bytes"] + server["wire_received_bytes"] + total("wire_sent_bytes", "wire_received_bytes")
    return {
        "sync_interval": case.sync or "default",
        "secured": case.secured,
        "clients": case.clients,
        "dimension": case.dimension,
        "quantizer": case.quantizer,
        "updates": server["uploads"],
        "upload_bytes": server["upload_bytes_mean"],
        "updates_per_s": (end[1] - begin[1]) / (end[0] - begin[0]),
        "latency_median_s": float(np.median(latencies)),
        "latency_p99_s": float(np.quantile(latencies, 0.99)),
        "upload_wire_over_payload": total("wire_sent_bytes") / total("sent_bytes"),
        "all_wire_over_payload": wire / crossed,
        "broker_cpu_s_per_update": broker_cpu_s / server["uploads"],
        "server_cpu_s_per_update": server["cpu_s"] / server["uploads"],
        "client_cpu_s_per_update": total("cpu_s") / server["uploads"],
        "server_bytes": server["marks"][-1][2],
        "server_growth_bytes": end[2] - begin[2],
        "client_bytes": int(total("resident") / len(clients)),
        "broker_bytes": broker_bytes,
        "rejected": server["rejected"],
        **{kind: reported for kind, reported in found if kind in ("listening", "mutants")},
    }


def _steady(marks: list[Mark]) -> list[Mark]:
    """Without the first tenth, in which processes start, and the wait after the last update."""
    last = marks[-1][1]
    steady = [mark for mark in marks if 0.1 * last <= mark[1] < last]
    return steady if len(steady) > 1 else marks
