"""ECS task definition, Kubernetes manifests and the sidecar's forwarder: valid, and fit for a graceful stop."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel
from botocore.validate import ParamValidator
from cloudcoil.models.keda.v1alpha1 import ScaledObject, TriggerAuthentication
from pydantic import BaseModel

from kcl_client import RecordProcessor
from kcl_client.testing import Report, drive
from kcl_daemon.cli.capacity import capacity
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.load import interpret
from kcl_daemon.config.properties import normal
from kcl_daemon.config.settings import KEYS
from tests.documents.blocks import blocks_of
from tests.packaging.dockerfile import ROOT, stages
from tools.metrics_reference import FAMILIES

PACKAGING: Final = ROOT / "packaging"
MANIFESTS: Final = sorted((PACKAGING / "kubernetes").glob("*.yaml"))
WATCH: Final = PACKAGING / "watch" / "kubernetes.yaml"
KEDA: Final = [path for path in MANIFESTS if path.name.startswith("keda")]
SIDECAR: Final = PACKAGING / "sidecar"
# The first in which a sidecar may be what our example makes of it, and the last that the schemas know.
VERSIONS: Final = ("1.29", kubernetes_validate.latest_version())
LONGEST_STOP_S: Final = (
    ChildSettings(command=()).shutdown_grace_ms + 2 * ChildSettings(command=()).exit_grace_ms
) / 1000
PROBE: Final = ["python", "-m", "kcl_daemon.admin.probe"]
USER: Final = int(stages()[-1].last("USER").partition(":")[0])
# Any: manifests are trees of whatever YAML and JSON have.
Tree = dict[str, Any]


def documents(path: Path) -> list[Tree]:
    return [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each]


def of_kind(path: Path, kind: str) -> Tree:
    (found,) = [each for each in documents(path) if each["kind"] == kind]
    return dict(found)


def pods() -> Iterator[Tree]:
    for path in MANIFESTS:
        for each in documents(path):
            if each["kind"] == "Deployment" and not each["metadata"]["name"].endswith("-capacity"):
                yield each["spec"]["template"]["spec"]


def task() -> Tree:
    return dict(json.loads((PACKAGING / "ecs" / "task-definition.json").read_text("utf-8")))


def daemon_of(containers: list[Tree]) -> Tree:
    (found,) = [each for each in containers if each["name"] == "kcl-daemon"]
    return found


def test_there_are_manifests_to_look_at() -> None:
    assert [path.name for path in MANIFESTS] == [
        "deployment.yaml",
        "hpa.yaml",
        "keda-prometheus.yaml",
        "keda.yaml",
        "sidecar.yaml",
    ]
    assert len(list(pods())) == 2


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", [*MANIFESTS, WATCH], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_manifests_fit_their_schemas(path: Path, version: str) -> None:
    for document in documents(path):
        if document["apiVersion"] == "keda.sh/v1alpha1":
            assert fits_keda(document)
        else:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_watcher_of_a_schedule_runs_only_instead_of_the_one_that_stays() -> None:
    once = of_kind(WATCH, "CronJob")["spec"]
    (container,) = once["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert once["suspend"] is True
    assert (container["args"][0], "--once" in container["args"]) == ("watch", True)
    (stays,) = of_kind(WATCH, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert (stays["args"][0], "--serve" in stays["args"]) == ("watch", True)


def fits_keda(document: Tree) -> bool:
    """Whether the types made of KEDA's own definitions know every word of it."""
    kinds: dict[str, type[BaseModel]] = {
        "ScaledObject": ScaledObject,
        "TriggerAuthentication": TriggerAuthentication,
    }
    read = kinds[document["kind"]].model_validate(document)
    return read.model_dump(mode="json", by_alias=True, exclude_unset=True) == document


@pytest.mark.parametrize("path", KEDA, ids=lambda path: path.name)
def test_a_word_that_keda_does_not_know_does_not_pass(path: Path) -> None:
    scaled = of_kind(path, "ScaledObject")
    scaled["spec"]["maxReplicas"] = 8
    assert not fits_keda(scaled)


def test_keda_asks_for_what_there_is() -> None:
    (by_api,) = of_kind(KEDA[1], "ScaledObject")["spec"]["triggers"]
    (by_prometheus,) = of_kind(KEDA[0], "ScaledObject")["spec"]["triggers"]
    # As many pods as the value: a target of one for each pod.
    assert (by_api["metricType"], by_api["metadata"]["targetValue"]) == ("AverageValue", "1")
    assert (by_prometheus["metricType"], by_prometheus["metadata"]["threshold"]) == ("AverageValue", "1")
    assert "kcl_workers_wanted" in by_prometheus["metadata"]["query"]
    assert "kcl_workers_wanted" in {name for family in FAMILIES for name in family.sample_names}
    service, port = of_kind(KEDA[1], "Service"), of_kind(KEDA[1], "Deployment")["spec"]["template"]["spec"]
    url = urlsplit(by_api["metadata"]["url"])
    assert url.path == "/capacity.json"
    assert (url.hostname or "").split(".")[0] == service["metadata"]["name"]
    assert (
        url.port == service["spec"]["ports"][0]["port"] == port["containers"][0]["ports"][0]["containerPort"]
    )


def test_whoever_answers_without_workers_is_told_as_the_command_takes_it() -> None:
    (container,) = of_kind(KEDA[1], "Deployment")["spec"]["template"]["spec"]["containers"]
    command, *words = container["args"]
    assert command == "capacity"
    context = capacity.make_context(command, list(words))
    assert context.params["serve"] == "0.0.0.0:9464"


def test_a_manifest_with_a_wrong_word_does_not_pass() -> None:
    deployment = of_kind(MANIFESTS[0], "Deployment")
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


def test_pods_have_time_to_pass_their_leases_on() -> None:
    for pod in pods():
        assert pod["terminationGracePeriodSeconds"] > LONGEST_STOP_S + 5


def test_pods_ask_the_daemon_how_it_is() -> None:
    for pod in pods():
        container = daemon_of(pod["containers"])
        questions = {
            name: container[f"{name}Probe"]["exec"]["command"]
            for name in ("startup", "liveness", "readiness")
        }
        assert questions == {
            "startup": [*PROBE, "livez"],
            "liveness": [*PROBE, "livez"],
            "readiness": [*PROBE, "readyz"],
        }
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables["KCL_ADMIN_PORT"] == str(container["ports"][0]["containerPort"])
        # Whoever can reach the port must know the token.
        assert variables["KCL_ADMIN_TOKEN_FILE"].startswith("/var/run/kcl-daemon/")


def test_services_of_the_namespace_do_not_become_properties() -> None:
    assert [pod["enableServiceLinks"] for pod in pods()] == [False, False]


def test_the_documents_show_the_probes_of_the_manifests() -> None:
    """A pod's port on loopback is not reached by `httpGet`, and a pod whose probe fails is started again and again."""
    text = (ROOT / "docs" / "status-page.md").read_text("utf-8")
    (shown,) = [
        yaml.safe_load(each.body) for each in blocks_of(text, "status-page.md") if each.language == "yaml"
    ]
    for pod in pods():
        container = daemon_of(pod["containers"])
        assert shown == {name: container[name] for name in shown}
        assert {"livenessProbe", "readinessProbe"} <= set(shown)


def test_pods_have_no_right_that_they_do_not_need() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == USER
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert daemon_of(pod["containers"])["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_program_is_there_before_the_daemon_and_after_it() -> None:
    pod = of_kind(PACKAGING / "kubernetes" / "sidecar.yaml", "Deployment")["spec"]["template"]["spec"]
    (program,) = pod["initContainers"]
    assert program["restartPolicy"] == "Always"
    assert "startupProbe" in program
    # ECS stops what depends on others before those.
    (dependency,) = daemon_of(task()["containerDefinitions"])["dependsOn"]
    assert dependency == {"containerName": "orders", "condition": "HEALTHY"}


def test_the_program_beside_the_daemon_does_not_get_the_pods_role() -> None:
    template = of_kind(PACKAGING / "kubernetes" / "sidecar.yaml", "Deployment")["spec"]["template"]
    (program,) = template["spec"]["initContainers"]
    assert template["metadata"]["annotations"]["eks.amazonaws.com/skip-containers"] == program["name"]
    assert not template["spec"].get("shareProcessNamespace")  # or /proc would have it


def test_the_autoscaler_scales_the_deployment() -> None:
    hpa = of_kind(PACKAGING / "kubernetes" / "hpa.yaml", "HorizontalPodAutoscaler")
    scalers = [hpa, *(of_kind(path, "ScaledObject") for path in KEDA)]
    deployment = of_kind(PACKAGING / "kubernetes" / "deployment.yaml", "Deployment")
    for scaler in scalers:
        target = scaler["spec"]["scaleTargetRef"]
        names = (deployment["apiVersion"], deployment["kind"], deployment["metadata"]["name"])
        assert names == (target["apiVersion"], target["kind"], target["name"])
    assert [each["external"]["metric"]["name"] for each in hpa["spec"]["metrics"]] == ["kcl_workers_wanted"]


def test_the_task_definition_is_what_ecs_takes() -> None:
    model = ServiceModel(Loader().load_service_model("ecs", "service-2"))
    operation: OperationModel = model.operation_model("RegisterTaskDefinition")
    assert operation.input_shape is not None
    assert ParamValidator().validate(task(), operation.input_shape).generate_report() == ""
    wrong = {**task(), "containerDefinitions": [{"name": 1}]}
    assert ParamValidator().validate(wrong, operation.input_shape).has_errors()


def test_the_task_is_healthy_where_the_daemon_is_and_has_time_to_stop() -> None:
    daemon = daemon_of(task()["containerDefinitions"])
    assert daemon["healthCheck"]["command"] == ["CMD", *PROBE]
    assert LONGEST_STOP_S + 5 < daemon["stopTimeout"] <= 120  # Fargate's most
    assert daemon["user"].startswith(f"{USER}:")
    assert daemon["readonlyRootFilesystem"] is True


def test_the_variables_of_tasks_and_pods_are_properties() -> None:
    known = {normal(spelling) for key in KEYS for spelling in (key.name, *key.aliases)}
    containers = [
        daemon_of(task()["containerDefinitions"]),
        *(daemon_of(pod["containers"]) for pod in pods()),
    ]
    for container in containers:
        variables = container.get("env") or container["environment"]
        names = [each["name"] for each in variables if each["name"].startswith("KCL_")]
        assert [name for name in names if normal(name.removeprefix("KCL_")) not in known] == []


def property_files() -> list[str]:
    documents_of_all = [each for path in MANIFESTS for each in documents(path)]
    maps = [each for each in documents_of_all if each["kind"] == "ConfigMap"]
    assert len(maps) == 2
    return [
        (SIDECAR / "app.properties").read_text("ascii"),
        *(each["data"]["app.properties"] for each in maps),
    ]


@pytest.mark.parametrize("text", property_files())
def test_the_properties_are_complete_and_without_a_remark(text: str) -> None:
    loaded = interpret(text.encode("latin-1"), file="app.properties", default_worker_id="worker-1")
    assert loaded.warnings == ()


class _Program(BaseHTTPRequestHandler):
    """Takes records, and answers as it is told."""

    got: ClassVar[list[Tree]] = []
    status: ClassVar[int] = 204

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.extend(json.loads(line) for line in body.splitlines())
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
        pass


@contextmanager
def program(status: int) -> Generator[str]:
    _Program.got.clear()
    _Program.status = status
    with HTTPServer(("127.0.0.1", 0), _Program) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/records"
        finally:
            server.shutdown()
            thread.join()


def forwarded(monkeypatch: pytest.MonkeyPatch, url: str) -> Report:
    """What the forwarder does with three records."""
    monkeypatch.setenv("FORWARD_URL", url)
    spec = importlib.util.spec_from_file_location("forward", SIDECAR / "forward.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    processor: RecordProcessor = module.Forwarder()
    return drive(processor, ["one", "two", "three"], batch_size=2)


def test_the_forwarder_hands_every_record_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with program(204) as url:
        report = forwarded(monkeypatch, url)
    assert report.exception is None
    assert [base64.b64decode(each["data"]) for each in _Program.got] == [b"one", b"two", b"three"]
    assert all(each["partitionKey"] and each["sequenceNumber"] for each in _Program.got)
    assert report.last_checkpoint is not None


def test_the_forwarder_checkpoints_nothing_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with program(503) as url:
        report = forwarded(monkeypatch, url)
    assert isinstance(report.exception, HTTPError)
    report.exception.close()  # it is the answer, with its connection
    assert report.last_checkpoint is None


def test_the_forwarder_speaks_http_only(monkeypatch: pytest.MonkeyPatch) -> None:
    report = forwarded(monkeypatch, "file:///etc/passwd")
    assert "not a URL of HTTP" in str(report.exception)
