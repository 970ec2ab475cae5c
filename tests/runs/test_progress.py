"""What both drivers agree on: when to measure, what a row holds, when a run ends."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from qafel.algorithm import Client, Message, Server, method
from qafel.config import Evaluation, Limits
from qafel.errors import ConfigError
from qafel.runs.live import summarise
from qafel.runs.progress import Progress, Traffic, meets
from qafel.tasks import Mushrooms

ALGORITHM = method("fedbuff", server_lr=0.1, client_lr=1.0, local_steps=1, buffer_size=2)


def server_after(uploads: int) -> tuple[Server, Traffic]:
    server = Server(np.zeros(113, np.float32), ALGORITHM, 0)
    traffic = Traffic(received_bytes=0, received_by_all_bytes=0)
    for sequence in range(uploads):
        client = Client(0, server.hidden_state, ALGORITHM, 0, sequence=sequence)
        frame = client.update(lambda start, *_: start.vector + np.float32(1)).upload
        accepted = server.receive(Message.from_bytes(frame))
        traffic.count_upload(frame, accepted.staleness)
        if accepted.batch is not None:
            traffic.count_broadcast(server.step(accepted.batch), 10)
    return server, traffic


@pytest.mark.parametrize(("unit", "expected"), [("server_steps", [0, 6, 12]), ("uploads", [0, 3, 6, 9, 12])])
def test_evaluations_are_due_at_every_multiple_of_steps_or_uploads(unit, expected):
    progress, measured = Progress(Evaluation(every=3, unit=unit), "min"), []
    for uploads in range(14):
        server, traffic = server_after(uploads)
        if progress.due(server.version, traffic.uploads):
            progress.take(server, traffic, 0.0)
            measured.append(uploads)
    assert measured == expected


def test_a_rows_staleness_is_that_of_the_updates_since_the_row_before():
    progress = Progress(Evaluation(), "min")
    server, traffic = server_after(4)
    traffic.staleness_counts[:] = [3, 1]
    assert progress.row(progress.take(server, traffic, 0.0), {"metric": 1.0}).staleness_histogram == [3, 1]
    traffic.staleness_counts[:] = [5, 1, 0, 1]
    row = progress.row(progress.take(server, traffic, 1.0), {"metric": 0.5})
    assert (row.staleness_histogram, row.staleness_mean, row.staleness_max) == ([2, 0, 0, 1], 1.0, 3)


def test_a_model_taken_for_an_evaluation_keeps_the_counts_of_its_moment():
    progress = Progress(Evaluation(), "min")
    server, traffic = server_after(2)
    standing = progress.take(server, traffic, 0.0)
    traffic.count_upload(b"later", 7)
    row = progress.row(standing, {"metric": 1.0})
    assert (row.uploads, row.staleness_max) == (2, 0)


def test_a_row_has_no_nan_in_json():
    progress = Progress(Evaluation(), "min")
    server, traffic = server_after(2)
    row = progress.row(progress.take(server, traffic, 0.0), {"metric": math.nan, "loss": math.inf})
    values = json.loads(json.dumps(row.to_json(), allow_nan=False))
    assert values["metric"] is None
    assert values["loss"] is None


def test_a_summary_has_no_infinity_in_json():
    progress = Progress(Evaluation(), "min")
    server, traffic = server_after(2)
    summary = summarise("finished", Mushrooms(10), server, traffic, progress, math.inf)
    values = json.loads(json.dumps(summary, allow_nan=False))
    assert values["virtual_time"] is None


@pytest.mark.parametrize(
    ("status", "metric", "said"),
    [("finished", math.nan, "diverged"), ("finished", 0.5, "finished"), ("stopped", math.nan, "stopped")],
)
def test_a_run_whose_metric_is_nan_does_not_say_finished(status, metric, said):
    progress = Progress(Evaluation(), "min")
    server, traffic = server_after(2)
    progress.row(progress.take(server, traffic, 0.0), {"metric": metric})
    assert summarise(status, Mushrooms(10), server, traffic, progress, 0.0)["status"] == said


def test_a_loss_or_a_model_that_is_nan_is_a_run_that_diverged():
    server, traffic = server_after(2)
    standing = Progress(Evaluation(), "min").take(server, traffic, 0.0)
    for figures, model in (({"loss": math.nan}, standing.model), ({}, standing.model * np.float32(math.nan))):
        progress = Progress(Evaluation(), "min")
        progress.take(server, traffic, 0.0)
        row = progress.row(standing._replace(model=model), {"metric": 0.5, **figures})
        assert (row.metric, progress.diverged) == (0.5, True)


def test_the_first_row_that_meets_the_target_counts_in_both_directions():
    for goal, metrics in (("min", [3.0, math.nan, 1.0, 2.0, 0.5]), ("max", [0.1, math.nan, 0.9, 0.5, 0.95])):
        progress = Progress(Evaluation(target=metrics[2]), goal)
        for number, metric in enumerate(metrics):
            progress.see(metric, 10 * number, float(number))
        assert (progress.uploads_to_target, progress.virtual_time_to_target) == (20, 2.0)
        assert progress.best == metrics[4]


def test_nothing_meets_no_target():
    assert not meets(0.0, None, "min")
    assert not meets(math.nan, 1.0, "min")
    assert not meets(math.nan, 1.0, "max")


def test_a_run_ends_at_whichever_limit_comes_first():
    server, traffic = server_after(6)
    reached = {
        "server_steps": (3, 4),
        "uploads": (6, 7),
        "virtual_time": (1.5, 1.6),
        "total_bytes": (traffic.total_bytes, traffic.total_bytes + 1),
    }
    for name, (now, later) in reached.items():
        so_far = server.version, traffic.uploads, traffic.total_bytes, 1.5
        assert Limits(**{name: now}).reached(*so_far), name
        assert Limits(**{name: now}).share_done(*so_far) == 1, name
        assert not Limits(**{name: later}).reached(*so_far), name
        assert Limits(**{name: later}).share_done(*so_far) < 1, name
    assert Limits(server_steps=100, uploads=6).reached(server.version, traffic.uploads, traffic.total_bytes)
    with pytest.raises(ConfigError, match="set at least one of server_steps"):
        Limits(at_target=True)


def test_what_all_clients_would_receive_is_unknown_where_nobody_counts_it():
    _, traffic = server_after(4)
    assert traffic.received_by_all_bytes == 10 * traffic.broadcast_bytes > 0
    traffic.count_download(7)
    assert traffic.received_bytes == 7
    blind = Traffic()
    blind.count_broadcast(b"message")
    assert blind.received_by_all_bytes is None
