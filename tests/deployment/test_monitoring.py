"""The example's dashboard and alerts fit the server: every expression is PromQL, of metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from qafel.deployment.server.evaluation import ServerMetrics
from qafel.runs.live import LiveState
from qafel.runs.progress import Traffic

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
LIMITS = ("0.0", "2.0", "5.0", "+Inf")
OF_PROMETHEUS = {"up": {"job", "instance"}}


def metrics_of(traffic: Traffic) -> ServerMetrics:
    state = LiveState(status="running", at=0.0, version=3, metric=0.75, hidden_state_lag=0.1, rejected={"stale": 1})
    counts = {"clipped": 0, "failed_trainings": 0, "starts": 0, "refused_starts": 0, "sessions": 1}
    return ServerMetrics("run", traffic, lambda: {**asdict(state), **counts})


def exposed() -> dict[str, set[str]]:
    """Every series that a server exposes, with the labels that tell it apart."""
    metrics = metrics_of(Traffic())
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_figures_of_the_state_are_metrics_and_an_unknown_one_is_left_out() -> None:
    registry = metrics_of(Traffic()).registry
    assert registry.get_sample_value("qafel_metric", {"run": "run"}) == 0.75
    assert registry.get_sample_value("qafel_version", {"run": "run"}) == 3
    assert registry.get_sample_value("qafel_rejected_updates_total", {"run": "run", "reason": "stale"}) == 1
    unknown = asdict(LiveState(status="running", at=0.0, version=0))
    counts = {"clipped": 0, "failed_trainings": 0, "starts": 0, "refused_starts": 0, "sessions": 0}
    metrics = ServerMetrics("run", Traffic(), lambda: {**unknown, **counts})
    assert metrics.registry.get_sample_value("qafel_metric", {"run": "run"}) is None


def test_staleness_is_a_histogram_of_the_runs_counts() -> None:
    registry = metrics_of(Traffic(staleness_counts=[3, 2, 0, 0, 4])).registry
    found = {
        limit: registry.get_sample_value("qafel_staleness_bucket", {"run": "run", "le": limit}) for limit in LIMITS
    }
    assert found == {"0.0": 3, "2.0": 5, "5.0": 9, "+Inf": 9}
    assert registry.get_sample_value("qafel_staleness_sum", {"run": "run"}) == 18


def dashboard() -> dict:
    return json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))


def rules() -> list[dict]:
    return [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for number, target in enumerate(panel["targets"]):
            yield f"{panel['title']} {number}", target["expr"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


def selectors(node: object) -> Iterator[object]:
    """The series that a parsed expression asks for."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif isinstance(node, promql_parser.AggregateExpr | promql_parser.ParenExpr):
        yield from selectors(node.expr)


@pytest.mark.parametrize(("name", "expression"), list(expressions()), ids=[name for name, _ in expressions()])
def test_an_expression_is_promql_of_series_and_labels_that_there_are(name, expression):
    known = exposed() | OF_PROMETHEUS
    asked = list(selectors(promql_parser.parse(expression)))
    assert asked, "an expression asks for something"
    for selector in asked:
        assert selector.name in known
        matched = {matcher.name for matcher in selector.matchers.matchers} - {"__name__"}
        assert matched <= known[selector.name] | {"job", "instance"}
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
    assert grouped <= set().union(*(known[selector.name] for selector in asked))


def test_a_metric_that_there_is_not_is_found():
    with pytest.raises(AssertionError):
        test_an_expression_is_promql_of_series_and_labels_that_there_are("x", "rate(qafel_acepted_updates_total[5m])")
    with pytest.raises(AssertionError):
        test_an_expression_is_promql_of_series_and_labels_that_there_are("x", 'qafel_version{client="3"}')


def test_every_metric_is_on_the_dashboard_and_in_the_document():
    families = {
        re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed() if not name.endswith("_created")
    }
    shown = " ".join(target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    document = DOCUMENT.read_text(encoding="utf-8")
    assert {name for name in families if name not in shown} == set()
    assert {name for name in families if name not in document} == set()


def test_the_dashboard_can_be_imported():
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "run"}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert all(re.search(r"\$run\b", target["expr"]) for target in panel["targets"])


def test_every_alert_says_what_happened_and_what_to_do():
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys() <= {*rule.keys(), "for"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()
    files = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"]
    assert all((FOLDER / file).is_file() for file in files)
