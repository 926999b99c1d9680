"""The files of deploy/: they parse, what they call exists, and they agree with each other."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError

from mx_rmq import MessageQueue
from mx_rmq.cli import main
from mx_rmq.embedded import find_binary
from mx_rmq.settings import QueueSettings, WorkerSettings
from mx_rmq.store.keys import Keys
from tests.lab.ports import free_ports
from tests.tour.pages import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEPLOY = ROOT / "deploy"
DOCKER = DEPLOY / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
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
        command = main.get_command(click.Context(main), name)
        assert command is not None
        parent = click.Context(main, **main.context_settings)  # click keeps the help option
        return command.make_context(name, rest, parent=parent)


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
    assert compose()["services"]["worker"]["build"]["dockerfile"] == "deploy/docker/Dockerfile"


def pins(path: Path) -> dict[str, str]:
    """Return what a file of requirements pins, each with the line that it begins with."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", path.read_text(), re.MULTILINE))


def test_everything_in_the_image_is_pinned_by_a_hash_to_what_we_are_tested_with() -> None:
    tested = pins(ROOT / "requirements-dev.txt")
    for name in ("requirements.txt", "build.txt"):
        text = (DOCKER / name).read_text()
        assert pins(DOCKER / name).items() <= tested.items()
        assert len(re.findall(r"^\S+==.* \\\n    --hash=sha256:", text, re.MULTILINE)) == len(
            pins(DOCKER / name)
        )
        assert "://" not in text
    installs = re.findall(r"pip (?:install|wheel) (.+?)(?: \\)?$", DOCKERFILE, re.MULTILINE)
    assert len(installs) == 4
    assert all("--require-hashes" in one or "--no-deps" in one for one in installs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"--extra (\w+)", (ROOT / "scripts" / "setup").read_text())
    brought_by_applications = {"django", "embedded", "sqlalchemy"}
    assert set(extras) == set(project["optional-dependencies"]) - brought_by_applications
    wanted = [*project["dependencies"]]
    wanted += [one for extra in extras for one in project["optional-dependencies"][extra]]
    assert {re.split(r"[\[><=]", one)[0] for one in wanted} <= pins(
        DOCKER / "requirements.txt"
    ).keys()


def test_the_server_of_compose_has_the_users_of_its_services_and_no_administrator(
    short_path: Path,
) -> None:
    """Its command, with paths and the server of this machine put in, on a real server."""
    (port,) = free_ports(1)
    script: str = compose()["services"]["valkey"]["command"][-1].replace("$$", "$")
    (short_path / "secrets").mkdir()
    for name in ("worker", "operator"):
        (short_path / "secrets" / name).write_text(f"{name}-password\n")
    for here, there in (
        ("/run/secrets/", f"{short_path}/secrets/"),
        ("/acl/", f"{DEPLOY}/acl/"),
        ("/tmp/users.acl", f"{short_path}/users.acl"),
        ("--dir /data", f"--dir {short_path} --port {port} --bind 127.0.0.1 --loglevel warning"),
        ("valkey-server", find_binary()),
    ):
        assert here in script
        script = script.replace(here, there)
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.DEVNULL) as server:
        try:
            health = Redis(port=port, username="health", password="any")
            deadline = time.monotonic() + 30
            while not answers(health):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for forbidden in (health.info, health.keys, health.acl_list):
                with pytest.raises(NoPermissionError):
                    forbidden()
            with pytest.raises(AuthenticationError):
                Redis(port=port).ping()
            for name in ("worker", "operator"):
                service = {"worker": "worker", "operator": "dashboard"}[name]
                words = compose()["services"][service]["environment"]
                assert words["MX_RMQ_URL"] == f"redis://{name}@valkey:6379/0"
                assert words["MX_RMQ_PASSWORD_FILE"] == f"/run/secrets/{name}"
                assert name in compose()["services"][service]["secrets"]
                file = short_path / "secrets" / name
                mq = MessageQueue(f"redis://{name}@127.0.0.1:{port}", password_file=str(file))
                mq.sync.produce("order.created", 1)
                mq.sync.close()
                with (
                    Redis(port=port, username=name, password=f"{name}-password") as client,
                    pytest.raises(NoPermissionError),
                ):
                    client.config_get("*")
            health.close()
            assert (short_path / "users.acl").stat().st_mode & 0o077 == 0
            assert "password" not in (short_path / "users.acl").read_text()
        finally:
            server.terminate()
            server.wait(30)


def answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except ConnectionError:
        return False


def test_the_network_lets_through_what_is_needed_and_names_the_pods_that_there_are() -> None:
    policies = {
        one["metadata"]["name"]: one["spec"] for one in manifests() if "Policy" in one["kind"]
    }
    assert policies.keys() == {"shop-worker", "mx-rmq-dashboard", "valkey"}
    served = {"valkey": 6379}
    for name in ("shop-worker", "mx-rmq-dashboard"):
        (container,) = pod(name)["containers"]
        (port,) = container["ports"]
        served[name] = port["containerPort"]
        labels = the("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert policies[name]["podSelector"]["matchLabels"].items() <= labels.items()
        (url,) = [one["value"] for one in container["env"] if one["name"] == "MX_RMQ_URL"]
        assert url.endswith("@valkey:6379/0")
        server, names = policies[name]["egress"]
        assert server["to"] == [{"podSelector": policies["valkey"]["podSelector"]}]
        assert [one["port"] for one in server["ports"]] == [6379]
        assert {(one["protocol"], one["port"]) for one in names["ports"]} == {
            ("UDP", 53),
            ("TCP", 53),
        }
        assert {"podSelector": policies[name]["podSelector"]} in policies["valkey"]["ingress"][0][
            "from"
        ]
    for name, policy in policies.items():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        (way,) = policy["ingress"]
        assert way["from"]
        assert way["ports"] == [{"protocol": "TCP", "port": served[name]}]


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
    done = subprocess.run(
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
    assert done.stdout.split() == ["order.created", "cron.report"]
