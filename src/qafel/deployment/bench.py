"""The deployment's speed: a real broker, a server process, client processes that do not train, file storage.

Figures are of this machine, all processes on it together: with two cores, broker, server and clients share them.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from qafel.deployment.bench_case import Case, Figures, cpu_s, resident_bytes
from qafel.deployment.bench_figures import figures
from qafel.deployment.bench_processes import Results, listen, send_mutants, serve, upload
from qafel.deployment.broker_folder import BrokerFolder
from qafel.deployment.local_broker import LocalBroker, free_port

__all__ = ["Case", "Figures", "measure"]


def measure(case: Case) -> Figures:
    """Run one case to its end; with mutants, once more without them, to compare."""
    found = _measure(case)
    if case.mutants:
        without = _measure(replace(case, mutants=0))["updates_per_s"]
        found["mutants"] |= {"updates_per_s_without": without, "slower_by": without / found["updates_per_s"]}
    return found


def _measure(case: Case) -> Figures:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="qafel-bench-") as name, _broker(Path(name) / "broker", case) as broker:
        results: Results = context.Queue()
        works: list[Any] = [context.Process(target=serve, args=(case, name, results), daemon=True)]
        works += [
            context.Process(target=upload, args=(case, name, number, results), daemon=True)
            for number in range(case.clients)
        ]
        if case.listeners:
            works.append(context.Process(target=listen, args=(case, name, results), daemon=True))
        if case.mutants:
            works.append(context.Process(target=send_mutants, args=(case, name, results), daemon=True))
        for work in works:
            work.start()
        try:
            found = [results.get(timeout=60 + case.updates / 20) for _ in works]
        finally:
            for work in works:
                work.join(20)
                if work.is_alive():
                    work.terminate()
        return figures(case, found, resident_bytes(broker.pid), cpu_s(broker.pid))


@contextmanager
def _broker(folder: Path, case: Case) -> Iterator[LocalBroker]:
    port = free_port()
    if case.secured:
        BrokerFolder.init(folder, case.all_clients, port=port, sync=case.sync or "2m")
    (folder.parent / "port").write_text(str(port))
    with LocalBroker(folder, port=port, sync=case.sync) as broker:
        yield broker
