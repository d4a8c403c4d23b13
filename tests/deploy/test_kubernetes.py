"""The Kustomize base: valid by Kubernetes' own schemas, and true to the command line, the ports and the times here."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lightningbus.cli.commands.roles.store import URL_VARIABLE
from lightningbus.common.role_settings import parse_address
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.run_directory.discovery import CREDENTIALS_VARIABLE
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.task_handler import NAK_DELAY_SECONDS
from lightningbus.schemas import subjects
from lightningbus.store.settings import StoreSettings
from tests.deploy.commands import DEPLOY, ROLES, ROOT, Commands, Document
from tests.polling import HANG_SECONDS

BASE = DEPLOY / "kubernetes"
KUSTOMIZATION: Document = yaml.safe_load((BASE / "kustomization.yaml").read_text())
DOCUMENTS = [
    document
    for path in sorted(BASE.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
KUBERNETES = "1.37"
EXPANDED = {"POD_IP": "10.0.0.1"}
CLICKHOUSE = "http://user:secret@clickhouse:8123"
USERS = {
    "nats": "server", "provision": "admin", "store": "store", "learner": "learner", "inference": "inference",
    "runner": "runner", "auditor": "auditor",
}  # fmt: skip
"""Whose directory of `bus create-users` each pod is given."""
KEDA = {
    "spec": {
        "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "advanced",
        "triggers",
    },
    "metadata": {"natsServerMonitoringEndpoint", "account", "stream", "consumer", "lagThreshold"},
}  # fmt: skip
"""The fields used here, as https://keda.sh/docs/2.19/scalers/nats-jetstream and its page on ScaledObjects name them."""


def of(kind: str) -> dict[str, Document]:
    """The documents of a kind, by name."""
    return {document["metadata"]["name"]: document for document in DOCUMENTS if document["kind"] == kind}


def pods() -> Iterator[tuple[str, Document]]:
    """Every pod template, with the name of what makes it."""
    for kind in ("Deployment", "StatefulSet", "Job"):
        for name, document in of(kind).items():
            yield name, document["spec"]["template"]["spec"]


def container(name: str) -> Document:
    """The one container of a pod."""
    ((actual,),) = [pod["containers"] for other, pod in pods() if other == name]
    return dict(actual)


def ports(document: Document) -> dict[str, int]:
    """A container's ports by name."""
    return {port["name"]: port["containerPort"] for port in document.get("ports", [])}


def sources(volume: Document) -> list[Document]:
    """What a volume is made of."""
    return list(volume["projected"]["sources"]) if "projected" in volume else [volume]


def secrets_of(pod: Document) -> dict[str, Document]:
    """The volumes with secrets in them, by the name of the Secret."""
    return {
        source["secret"].get("secretName") or source["secret"]["name"]: volume
        for volume in pod.get("volumes", [])
        for source in sources(volume)
        if "secret" in source
    }


def mounted_at(document: Document, volume: Document) -> str:
    """Where a container has a volume."""
    (mount,) = (mount for mount in document["volumeMounts"] if mount["name"] == volume["name"])
    return str(mount["mountPath"])


def begun(commands: Commands, name: str) -> Any:
    """The settings a container's role begins with, let in by the Secret it has mounted."""
    actual = container(name)
    ((secret, volume),) = [entry for other, pod in pods() if other == name for entry in secrets_of(pod).items()]
    assert {"name": CREDENTIALS_VARIABLE, "value": mounted_at(actual, volume)} in actual["env"]
    access = commands.secrets / secret.removeprefix("lightningbus-")
    known = {entry["name"] for entry in actual["env"]}
    words = []
    for word in actual["args"]:
        for variable in re.findall(r"\$\((\w+)\)", word):
            assert variable in known
            word = word.replace(f"$({variable})", EXPANDED[variable])
        words.append(word)
    mounted = BASE / "settings" / f"{name}.yaml"
    settings = {f"/etc/lightningbus/{name}.yaml": mounted.read_text()} if mounted.exists() else {}
    url = CLICKHOUSE if URL_VARIABLE in known else None
    return commands.begun(words, settings, access, url=url)


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_each_document_is_valid(document: Document) -> None:
    if document["kind"] == "ScaledObject":
        assert document["apiVersion"] == "keda.sh/v1alpha1" and set(document["spec"]) <= KEDA["spec"]
        return
    assert kubernetes_validate.validate(document, KUBERNETES, strict=True) == KUBERNETES


def test_the_base_names_every_file_once_and_every_name_leads_somewhere() -> None:
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert sorted(KUSTOMIZATION["resources"]) == sorted(files)
    generated = {entry["name"]: entry["files"] for entry in KUSTOMIZATION["configMapGenerator"]}
    assert all((BASE / file).exists() for listed in generated.values() for file in listed)
    for _, pod in pods():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        parts = [source for volume in volumes.values() for source in sources(volume)]
        assert {part["configMap"]["name"] for part in parts if "configMap" in part} <= set(generated)
        claimed = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
        assert claimed <= set(of("PersistentVolumeClaim"))
    used = {container["image"] for _, pod in pods() for container in pod["containers"]}
    assert {image["name"] for image in KUSTOMIZATION["images"]} == {name for name in used if ":" not in name}


@pytest.mark.integration
def test_kustomize_builds_the_base(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, and nothing else builds a Kustomize base")
    done = subprocess.run(
        ["kubectl", "kustomize", BASE], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    built = [document for document in yaml.safe_load_all(done.stdout) if document["kind"] != "ScaledObject"]
    assert len(built) > len(DOCUMENTS)
    for document in built:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_page_lists_every_file_of_the_base() -> None:
    (table,) = re.findall(r"\| file \| what \|\n(.*?)\n\n", (ROOT / "docs" / "deployment.md").read_text(), re.S)
    listed = set(re.findall(r"`([a-z]+\.yaml)`", table))
    assert listed == set(KUSTOMIZATION["resources"])
    assert container("auditor")["resources"]["requests"] == {"cpu": "1", "memory": "32Gi"} and "32 GiB" in table


@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_roles_command_is_one_of_ours_and_its_probes_ask_where_it_answers(commands: Commands, role: str) -> None:
    actual, settings = container(role), begun(commands, role)
    if isinstance(settings, StoreSettings):
        assert settings.url == CLICKHOUSE
    host, port = parse_address(settings.health_address)
    assert (host, port) == ("0.0.0.0", ports(actual)["health"])
    request = {probe: actual[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {get["port"] for get in request.values()} == {"health"}
    assert request["livenessProbe"]["path"] == request["startupProbe"]["path"] == "/healthz"
    assert request["readinessProbe"]["path"] == "/readyz"
    template = {**of("Deployment"), **of("StatefulSet")}[role]["spec"]["template"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    gpus = actual["resources"]["limits"].get("nvidia.com/gpu")
    assert gpus == ("1" if role in ("learner", "inference") else None)


def test_the_job_provisions_and_the_nodes_listen_where_runners_are_let_through(commands: Commands) -> None:
    assert begun(commands, "provision") is None
    assert of("Job")["provision"]["spec"]["ttlSecondsAfterFinished"] == 3600, "the page says an hour"
    node = begun(commands, "inference")
    assert isinstance(node, InferenceSettings) and node.inference_api_key_file is not None
    assert (node.host, node.port) == (EXPANDED["POD_IP"], ports(container("inference"))["gateway"])
    (rule,) = of("NetworkPolicy")["inference"]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [node.port]


def test_a_runner_has_the_time_it_says_it_needs_and_is_scaled_by_its_queue(commands: Commands) -> None:
    settings = begun(commands, "runner")
    assert isinstance(settings, RunnerSettings) and settings.inference_api_key_file is not None
    (grace,) = (pod["terminationGracePeriodSeconds"] for name, pod in pods() if name == "runner")
    assert grace >= settings.drain_timeout_seconds + 2 * NAK_DELAY_SECONDS + 10
    scaled = of("ScaledObject")["runner"]["spec"]
    assert scaled["scaleTargetRef"]["name"] in of("Deployment") and "replicas" not in of("Deployment")["runner"]["spec"]
    monitor = ports(container("nats"))["monitor"]
    for mode, trigger in zip(("train", "eval"), scaled["triggers"], strict=True):
        assert trigger["type"] == "nats-jetstream" and set(trigger["metadata"]) == KEDA["metadata"]
        request = trigger["metadata"]
        assert (request["stream"], request["consumer"]) == (
            subjects.TASKS,
            subjects.runner_durable(settings.agent_name, mode),
        )
        assert int(request["lagThreshold"]) == settings.concurrency, "a runner for as many tasks as it has slots"
        assert (
            request["natsServerMonitoringEndpoint"] == f"nats.{KUSTOMIZATION['namespace']}.svc.cluster.local:{monitor}"
        )


def test_no_pod_runs_as_root_or_holds_a_secret_of_its_own() -> None:
    assert not of("Secret")
    for _, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        for actual in pod["containers"]:
            assert actual["securityContext"]["allowPrivilegeEscalation"] is False
            assert {entry["name"] for entry in actual.get("env", []) if "value" in entry} <= {CREDENTIALS_VARIABLE}


def test_each_pod_has_the_secrets_of_its_role_and_no_other() -> None:
    documented = (ROOT / "docs" / "deployment.md").read_text()
    for name, pod in pods():
        user = USERS[name]
        ((secret, volume),) = secrets_of(pod).items()
        assert secret == f"lightningbus-{user}"
        assert f"secret generic {secret} --from-file=secrets/{user}" in documented
        content = volume.get("secret") or volume["projected"]
        assert content["defaultMode"] == 0o440 and pod["securityContext"]["fsGroup"] == 10001
        (actual,) = pod["containers"]
        references = [entry.get("valueFrom", {}).get("secretKeyRef") for entry in actual["env"]]
        named = {reference["name"] for reference in references if reference}
        assert named <= {"lightningbus-bus", *(["lightningbus-clickhouse"] if name == "store" else [])}
        assert all(f"secret generic {item} --from-literal url=" in documented for item in named)
        if name == "nats":
            assert mounted_at(actual, volume) == "/etc/nats"


def ends(selectors: list[Document]) -> set[str]:
    """Who is named by the peers of a rule, or the pods a policy is for: roles, or namespaces in brackets."""
    actual = set()
    for selector in selectors:
        label: Any = selector.get("podSelector", selector.get("namespaceSelector", {}))
        if "matchLabels" in label:
            names = label["matchLabels"].values()
        else:
            (expression,) = label["matchExpressions"]
            names = expression["values"]
        actual |= {f"[{name}]" if "namespaceSelector" in selector else name for name in names}
    return actual


def test_these_pods_talk_to_each_other_and_no_others() -> None:
    """Every arrow that is let through, from where it begins and from where it ends."""
    policies = of("NetworkPolicy")
    nothing = policies.pop("nothing")["spec"]
    assert nothing["podSelector"] == {} and set(nothing["policyTypes"]) == {"Ingress", "Egress"}
    assert "ingress" not in nothing and {port["port"] for rule in nothing["egress"] for port in rule["ports"]} == {53}
    everybody = {name for name, _ in pods()}
    roles = everybody - {"nats"}
    into: set[tuple[str, str, int]] = set()
    out: set[tuple[str, str, int]] = set()
    for policy in policies.values():
        spec = policy["spec"]
        local = ends([spec]) if spec["podSelector"] else everybody
        assert {kind.lower() for kind in spec["policyTypes"]} == {
            kind for kind in ("ingress", "egress") if kind in spec
        }
        into |= {
            (peer, item, port["port"])
            for rule in spec.get("ingress", []) for item in local
            for peer in ends(rule["from"]) for port in rule["ports"]
        }  # fmt: skip
        out |= {
            (item, peer, port["port"])
            for rule in spec.get("egress", [])
            for item in local
            for peer in (ends(rule["to"]) if "to" in rule else {"anywhere"})
            for port in rule["ports"]
        }
    inside = {("nats", "nats", 6222), ("runner", "inference", 8000), *((role, "nats", 4222) for role in roles)}
    watching = {("[monitoring]", item, port) for item in everybody for port in (9464, 8000, 8222)}
    assert into == inside | watching | {("[keda]", "nats", 8222)}
    assert out == inside | {("store", "anywhere", 8123), ("store", "anywhere", 8443)}


def test_the_loader_may_run_in_the_namespace_and_holds_the_models() -> None:
    (pod,) = yaml.safe_load_all((BASE / "loader" / "loader.yaml").read_text())
    assert kubernetes_validate.validate(pod, KUBERNETES, strict=True) == KUBERNETES
    assert pod["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
    (actual,), (volume,) = pod["spec"]["containers"], pod["spec"]["volumes"]
    assert pod["spec"]["securityContext"] == next(pod for name, pod in pods() if name == "learner")["securityContext"]
    assert actual["securityContext"] == container("learner")["securityContext"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models"} and mounted_at(actual, volume) == "/models"


def test_policies_and_budgets_select_pods_that_exist_and_ports_they_have() -> None:
    names = {name for name, _ in pods()}
    for policy in of("NetworkPolicy").values():
        text = yaml.safe_dump(policy)
        assert set(re.findall(r"app\.kubernetes\.io/name: (\w+)", text)) <= names
    open_to = {port for name in names for port in ports(container(name)).values()}
    for policy in of("NetworkPolicy").values():
        for rule in policy["spec"].get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= open_to
    many = {
        name
        for name in names
        if (of("Deployment") | of("StatefulSet")).get(name, {}).get("spec", {}).get("replicas") != 1
    }
    assert set(of("PodDisruptionBudget")) == many - {"provision"}
    for service in of("Service").values():
        (label,) = service["spec"]["selector"].values()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports(container(label)))
