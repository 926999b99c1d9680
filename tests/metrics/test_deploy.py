"""What deploy/ says about metrics is true: each one exists, and Prometheus' own tool is content."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mx_rmq import MessageQueue, Worker
from mx_rmq.core.events import CronFired, OutboxMeasured
from mx_rmq.doctor.topics import OVERDUE
from mx_rmq.metrics import Endpoint
from tests.metrics.asking import get, parsed
from tests.runtime.stage import on_a_server, queue
from tests.tour.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

TOOLS = ROOT / ".tools"
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "mx-rmq.json"
ALERTS_TEST = ROOT / "tests" / "metrics" / "alerts_test.yml"
DOCS = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"\b(?:mx_rmq|process)_\w+")
LABEL = re.compile(r'([a-z]+)="([^"]+)"|([a-z]+)=~"([^"$]+)"')
EXPRESSION = re.compile(r"^ +expr: (?:>-\n)?(.+?)\n +(?:for|labels):", re.MULTILINE | re.DOTALL)
RULE = re.compile(r"^ +- alert: ", re.MULTILINE)


@pytest.fixture
async def exposed(raw: Redis, server: Server) -> str:
    """All that a worker tells."""
    async with queue(server.url) as mq:
        declare(mq)
        await mq.produce("t", 1)
        await mq.produce("waiting", 1, key="a")
        await mq.admin.limit("waiting", running=1)
        worker = Worker(mq, metrics_keys=1)
        async with Endpoint(worker, port=0) as endpoint, worker:
            mq.events.emit(CronFired("t", "cron-1@s", 1.0, "s"))
            mq.events.emit(OutboxMeasured("shop", 1, 1.0, 0))
            pages = [await get(endpoint.port, path) for path in ("/metrics", "/metrics/depth")]
    return "".join(page.body for page in pages)


def declare(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    @mq.cron("0 0 29 2 *")
    async def leap_day() -> None: ...


def panels() -> Iterator[dict[str, Any]]:
    dashboard = json.loads(DASHBOARD.read_text())
    yield from (panel for panel in dashboard["panels"] if panel["type"] != "row")


def queries() -> list[str]:
    """Return each query of the dashboard and each expression of the alerts."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    found += EXPRESSION.findall((PROMETHEUS / "alerts.yml").read_text())
    assert len(found) > 50
    return found


@on_a_server
async def test_every_metric_that_is_named_exists(exposed: str) -> None:
    samples = {sample.partition("{")[0] for sample in parsed(exposed)}
    for query in queries():
        assert set(NAME.findall(query)) <= samples, query
        assert NAME.search(query) or re.fullmatch(r'up{job="mx-rmq-(worker|depth)"} == 0', query)
    families = {family.name for family in text_string_to_metric_families(exposed)}
    for page in (DASHBOARD, DOCS, *PROMETHEUS.iterdir()):
        assert set(NAME.findall(page.read_text())) <= samples | families, page


@on_a_server
async def test_every_label_that_is_asked_for_exists(exposed: str) -> None:
    known = {
        (label, value)
        for family in text_string_to_metric_families(exposed)
        for sample in family.samples
        for label, value in sample.labels.items()
    } | {("job", "mx-rmq-worker"), ("job", "mx-rmq-depth")}
    for query in queries():
        for label, value, matched, values in LABEL.findall(query):
            asked = {(label, value)} if label else {(matched, one) for one in values.split("|")}
            assert asked <= known, query


@on_a_server
async def test_every_metric_of_ours_is_in_the_docs(exposed: str) -> None:
    documented = set(NAME.findall(DOCS.read_text()))
    for family in text_string_to_metric_families(exposed):
        if family.name.startswith("mx_rmq"):
            assert documented & {family.name, f"{family.name}_total"}, family.name


def test_the_dashboard_can_be_imported_anywhere() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "topic"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels():
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])
        assert panel["title"]
        assert panel["description"]
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    cells = [(x + i, y + j) for h, w, x, y in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)), "panels lie on each other"


def test_the_alert_for_what_is_overdue_has_the_threshold_of_doctor_and_dashboard() -> None:
    rule = (PROMETHEUS / "alerts.yml").read_text().partition("MxRmqOverdue")[2]
    (expression,) = EXPRESSION.findall(rule.partition("- alert:")[0])
    assert re.findall(r"overdue_seconds\) > (\d+)", expression) == [f"{OVERDUE:g}"] * 2


def test_every_alert_says_what_is_the_matter_and_what_to_do() -> None:
    rules = RULE.split((PROMETHEUS / "alerts.yml").read_text())[1:]
    assert len(rules) > 20
    for rule in rules:
        for part in ("expr:", "severity:", "summary:", "description:"):
            assert rule.count(part) == 1, rule


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    rules = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule["expr"] for group in rules for rule in group["rules"]}
    tests = yaml.safe_load(ALERTS_TEST.read_text())["tests"]
    well, wrong = tests[-2:]
    everything = wrong["promql_expr_test"][-1]
    assert everything["expr"] == 'count by (alertname) (ALERTS{alertstate="firing"})'
    fire = {sample["labels"]: sample["value"] for sample in everything["exp_samples"]}
    assert fire == {f'{{alertname="{name}"}}': 1 for name in alerts}
    quiet = [test["exp_samples"] for test in well["promql_expr_test"]]
    assert quiet == [[]] * 4
    told = {series["series"].partition("{")[0] for series in well["input_series"]}
    for name, expression in alerts.items():  # it is quiet because of what it sees
        assert set(NAME.findall(expression)) <= told, name


# Prometheus' own tool


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool") or shutil.which("promtool", path=str(TOOLS))
    assert path is not None, "promtool is missing: make tools fetches it"
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "deploy/prometheus/alerts.yml"),
        ("check", "config", "deploy/prometheus/prometheus.yml"),
        ("test", "rules", "tests/metrics/alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(promtool: str, words: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [promtool, *words], cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_promtool_is_content_with_what_kubernetes_is_asked_for(
    promtool: str, tmp_path: Path
) -> None:
    text = (PROMETHEUS / "prometheus-kubernetes.yml").read_text()
    found = "kubernetes_sd_configs:\n      - role: pod\n"  # some builds know nothing of it
    assert text.count(found) == 1
    text = text.replace(found, "static_configs: []\n").replace("- alerts.yml", "[]")
    file = tmp_path / "prometheus.yml"
    file.write_text(text)
    ended = subprocess.run(
        [promtool, "check", "config", str(file)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_promtool_can_read_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(queries())
    ]
    file = tmp_path / "rules.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    ended = subprocess.run(
        [promtool, "check", "rules", str(file)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@on_a_server
async def test_promtool_finds_no_fault_with_what_is_exposed(promtool: str, exposed: str) -> None:
    ended = subprocess.run(
        [promtool, "check", "metrics"],
        input=exposed,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
