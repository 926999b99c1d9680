"""The files of deploy/: they parse, what they call exists, and they agree with each other."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from mx_rmq.cli import main
from mx_rmq.core.config import QueueSettings, WorkerSettings
from mx_rmq.store.keys import Keys
from tests.tour.pages import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import click

DEPLOY = ROOT / "deploy"
DOCKER = DEPLOY / "docker"
FILES = [
    path
    for path in sorted(DEPLOY.rglob("*"))
    if path.is_file() and not {"__pycache__", "secrets"} & set(path.parts)
]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
TYPED = re.compile(r"^(?:#  )? *(?:docker compose exec worker )?mx-rmq (.+)$", re.MULTILINE)
AFTER_GRACE = 30
"""Seconds that a worker may need beyond its grace, and a little more."""


class Unit(configparser.RawConfigParser):
    """A systemd unit."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, comment_prefixes="#", inline_comment_prefixes=None)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string(path.read_text())


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text())
    return document


def kubernetes_scrapes() -> dict[str, Any]:
    path = DEPLOY / "prometheus" / "prometheus-kubernetes.yml"
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def manifests() -> list[dict[str, Any]]:
    return [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]


def the(kind: str, name: str) -> dict[str, Any]:
    (one,) = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return one


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = the("Deployment", name)["spec"]["template"]["spec"]
    return spec


class Command(NamedTuple):
    """A command line of mx-rmq, and how long it has to stop."""

    where: str
    words: list[str]
    stop: float | None

    @property
    def context(self) -> click.Context:
        """What the real command makes of it."""
        name, *rest = self.words
        return main.commands[name].make_context(name, rest)


def commands() -> Iterator[Command]:
    """Yield every command that the files start or tell people to type."""
    for path in UNITS:
        service = Unit(path)["Service"]
        program, *words = shlex.split(service["ExecStart"])
        assert program.endswith("/mx-rmq")
        yield Command(path.name, words, float(service["TimeoutStopSec"]))
    for name, service in compose()["services"].items():
        if service["image"].startswith("mx-rmq:"):
            stop = service.get("stop_grace_period")
            yield Command(name, service["command"], stop and float(stop.removesuffix("s")))
    for one in manifests():
        if one["kind"] == "Deployment":
            spec = one["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            line: list[str] = container["command"] + container["args"]
            assert line[0] == "mx-rmq"
            stop = spec.get("terminationGracePeriodSeconds")
            yield Command(one["metadata"]["name"], line[1:], stop)
    for path in FILES:
        for typed in TYPED.findall(path.read_text()):
            yield Command(path.name, shlex.split(typed), None)


@pytest.mark.parametrize("command", list(commands()), ids=lambda one: f"{one.where}-{one.words[0]}")
def test_a_command_is_one_that_mx_rmq_takes(command: Command) -> None:
    with command.context as context:
        assert context.info_name == command.words[0]


def test_whoever_stops_a_worker_waits_longer_than_its_grace() -> None:
    workers = [one for one in commands() if one.words[0] == "worker"]
    assert len(workers) == 3
    for one in workers:
        assert one.stop is not None
        assert one.stop >= one.context.params["grace"] + AFTER_GRACE, one.where


def test_a_signal_reaches_a_worker_once() -> None:
    service = Unit(DEPLOY / "systemd" / "mx-rmq-worker.service")["Service"]
    assert service["KillMode"] == "mixed"  # its supervisor passes the signal on
    assert 'ENTRYPOINT ["mx-rmq"]' in (DOCKER / "Dockerfile").read_text()  # and no shell


def test_every_setting_in_the_environment_exists() -> None:
    known = {one.name for cls in (QueueSettings, WorkerSettings) for one in fields(cls)}
    known |= {"log_level", "log_format"}
    for path in FILES:
        for name in re.findall(r"MX_RMQ_([A-Z_]+)", path.read_text()):
            assert name.lower() in known, (path, name)


def test_probes_and_scrapes_go_to_the_port_that_is_served() -> None:
    (worker,) = pod("shop-worker")["containers"]
    context = next(one for one in commands() if one.where == "shop-worker").context
    (port,) = worker["ports"]
    assert port["containerPort"] == context.params["metrics_port"]
    assert context.params["metrics_host"] == "0.0.0.0"  # or no probe reaches it
    probed = {name: worker[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert probed == {
        "livenessProbe": {"path": "/healthz", "port": port["name"]},
        "readinessProbe": {"path": "/readyz", "port": port["name"]},
    }
    scrapes = {one["job_name"]: one for one in kubernetes_scrapes()["scrape_configs"]}
    keep = scrapes["mx-rmq-worker"]["relabel_configs"][0]
    labels = the("Deployment", "shop-worker")["spec"]["template"]["metadata"]["labels"]
    assert keep["regex"] == f"{labels['app.kubernetes.io/component']};{port['name']}"
    (asked,) = scrapes["mx-rmq-depth"]["static_configs"]
    service = the("Service", "shop-worker")["spec"]
    assert asked["targets"] == [f"shop-worker.default.svc:{service['ports'][0]['port']}"]
    assert service["publishNotReadyAddresses"] is True  # or nobody tells that the server is away
    (dashboard,) = pod("mx-rmq-dashboard")["containers"]
    (port,) = dashboard["ports"]
    assert str(port["containerPort"]) == dashboard["args"][dashboard["args"].index("--port") + 1]
    assert dashboard["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert dashboard["livenessProbe"]["tcpSocket"] == {"port": port["name"]}
    for name, target in (("shop-worker", "metrics"), ("mx-rmq-dashboard", "http")):
        service = the("Service", name)["spec"]
        labels = the("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()
        assert [one["targetPort"] for one in service["ports"]] == [target]


def test_the_services_of_compose_are_asked_at_their_own_ports() -> None:
    services = compose()["services"]
    for name, option in (("worker", "--metrics-port"), ("dashboard", "--port")):
        words = services[name]["command"]
        port = words[words.index(option) + 1]
        check = " ".join(services[name]["healthcheck"]["test"])
        assert re.search(rf"http://127\.0\.0\.1:{port}/(healthz|readyz)'", check), name
        assert services[name]["depends_on"] == {"valkey": {"condition": "service_healthy"}}
    assert services["dashboard"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert "ports" not in services["valkey"]
    server = services["valkey"]["command"][-1]
    assert "--appendonly yes" in server
    assert "--maxmemory-policy noeviction" in server


def test_everybody_names_the_same_things() -> None:
    labels = the("Deployment", "shop-worker")["spec"]["template"]["metadata"]["labels"]
    budget = the("PodDisruptionBudget", "shop-worker")["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    scaled = the("ScaledObject", "shop-worker")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "shop-worker"
    for name in ("shop-worker", "mx-rmq-dashboard"):
        spec = pod(name)
        mounted = {one["name"] for one in spec["containers"][0]["volumeMounts"]}
        assert mounted == {one["name"] for one in spec["volumes"]}
    document = compose()
    for service in document["services"].values():
        assert set(service.get("secrets", ())) <= set(document["secrets"])


def test_keda_asks_for_metrics_that_there_are_of_topics_that_there_are() -> None:
    (trigger,) = the("ScaledObject", "shop-worker")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    names = set(re.findall(r"mx_rmq_\w+", query))
    documented = "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert names == {"mx_rmq_depth"}
    assert all(f"`{name}" in documented for name in names)
    (topics,) = re.findall(r'topic=~"([^"]+)"', query)
    assert re.fullmatch(topics, "order.created")
    listed = re.search(r'listName: "([^"]+)"', (DEPLOY / "kubernetes" / "keda.yaml").read_text())
    assert listed is not None
    assert listed[1] == Keys().of("order.created").pending


def test_keda_takes_no_worker_away_because_nobody_can_tell_how_much_there_is() -> None:
    spec = the("ScaledObject", "shop-worker")["spec"]
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    assert spec["triggers"][0]["metadata"]["ignoreNullValues"] == "false"


def test_nothing_runs_as_root_or_writes_beside_its_data() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    for name in ("shop-worker", "mx-rmq-dashboard"):
        spec = pod(name)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == int(user)
        rights = spec["containers"][0]["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
    for service in compose()["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    for path in UNITS:
        service = Unit(path)["Service"]
        assert (service["DynamicUser"], service["ProtectSystem"]) == ("yes", "strict")


def test_the_image_is_made_of_what_there_is() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
    (extras,) = re.findall(r"\.\[([\w,]+)\]", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert compose()["services"]["worker"]["build"]["dockerfile"] == "deploy/docker/Dockerfile"


def test_images_are_named_with_a_version_and_ours_with_our_own() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = "".join(path.read_text() for path in FILES)
    ours = re.findall(r"(?:image:|FROM|-t) (mx-rmq\b\S*?)[,.]?\s", text)
    assert set(ours) == {f"mx-rmq:{version}"}
    assert len(ours) == 4
    for name in re.findall(r"^ +image: (\S+)", text, re.MULTILINE):
        assert re.fullmatch(r"[\w/-]+:\d+\.\d+(\.\d+)?", name), name
    for service in compose()["services"].values():  # a name of ours in a registry is not ours
        assert service["image"].startswith("valkey/") or service["pull_policy"] == "build"


def test_nothing_gets_to_the_builder_but_what_the_image_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    first, *rules = [line for line in lines if not line.startswith("#")]
    assert first == "*"
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE
    )
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert allowed == {name for line in copied for name in line.split()}


def test_the_application_of_the_example_is_one() -> None:
    code = "import shop; print(*shop.mq.handlers)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=DOCKER,
        env={
            "MX_RMQ_URL": "redis://nowhere:1",
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["order.created", "cron.report"]
