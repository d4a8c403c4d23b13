"""Components of an overlay: page, Grafana, Ingress, backups and grader, valid by two versions of Kubernetes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import aiohttp
import kubernetes_validate
import pytest
import yaml

from lightningbus.cli.commands.results.ui import HOSTS_VARIABLE
from lightningbus.cli.commands.roles.store import ADMIN_VARIABLE, BACKUP_KEYS, BACKUP_VARIABLE
from lightningbus.common.role_settings import parse_address
from lightningbus.graders.settings import GraderSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.run_directory.discovery import CREDENTIALS_VARIABLE
from lightningbus.runners.settings import RunnerSettings
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve
from tests.deploy.commands import DEPLOY, ROOT, Commands, Document
from tests.polling import HANG_SECONDS

COMPONENTS = [
    DEPLOY / "kubernetes" / "page",
    DEPLOY / "grafana",
    DEPLOY / "kubernetes" / "ingress",
    DEPLOY / "kubernetes" / "backups",
]
"""Those of the overlay that the page shows first."""
WEIGHTS = DEPLOY / "kubernetes" / "weights"
GRADER = DEPLOY / "kubernetes" / "grader"
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()
NAMESPACE = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["namespace"]
OVERLAYS: list[Document] = [
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(# kustomization.yaml.*?)```", DEPLOYMENT, re.S)
]
VERSIONS = ("1.37", "1.33")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
GRAFANA = COMPOSE["grafana"]


def documents_of(component: Path) -> list[Document]:
    """The documents that a component adds."""
    listed = yaml.safe_load((component / "kustomization.yaml").read_text())["resources"]
    return [document for name in listed for document in yaml.safe_load_all((component / name).read_text())]


DOCUMENTS = [document for component in (*COMPONENTS, WEIGHTS, GRADER) for document in documents_of(component)]


def of(kind: str) -> dict[str, Document]:
    """The documents of a kind, by name."""
    return {document["metadata"]["name"]: document for document in DOCUMENTS if document["kind"] == kind}


def pods() -> dict[str, Document]:
    """The pods of Deployments and CronJobs, by name."""
    specs = {name: document["spec"] for name, document in of("Deployment").items()}
    specs |= {name: document["spec"]["jobTemplate"]["spec"] for name, document in of("CronJob").items()}
    return {name: spec["template"]["spec"] for name, spec in specs.items()}


def container(name: str) -> Document:
    """The one container of a Deployment or CronJob."""
    (actual,) = pods()[name]["containers"]
    return dict(actual)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_each_document_is_valid_by_two_versions(document: Document, version: str) -> None:
    assert kubernetes_validate.validate(document, version, strict=True) == version


def build(overlay: Document, directory: Path) -> list[Document]:
    """Build an overlay, whose paths are those of a checkout; skips the test without kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, and nothing else builds a Kustomize overlay")
    for field in ("resources", "components"):
        overlay[field] = [os.path.relpath(ROOT / path, directory) for path in overlay[field]]
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run(
        ["kubectl", "kustomize", directory], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.integration
@pytest.mark.parametrize("version", VERSIONS)
def test_the_documented_overlay_of_base_and_components_is_built_in_one_namespace(tmp_path: Path, version: str) -> None:
    overlay = OVERLAYS[1]
    assert [ROOT / path for path in overlay["components"]] == COMPONENTS
    built = build({**overlay}, tmp_path)
    for document in built:
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, version, strict=True)
    names = {(document["kind"], document["metadata"]["name"]) for document in built}
    named = {document["metadata"].get("namespace") for document in built if document["kind"] != "Namespace"}
    assert named == {NAMESPACE}
    expected = {(each["kind"], each["metadata"]["name"]) for path in COMPONENTS for each in documents_of(path)}
    assert expected <= names
    templates = [document["spec"]["template"] for document in built if "template" in document.get("spec", {})]
    assert all(":" in actual["image"] for template in templates for actual in template["spec"]["containers"])
    configured = {name for kind, name in names if kind == "ConfigMap"}
    for name in re.findall(r"configMap:\n\s+name: (\S+)", yaml.safe_dump_all(built)):
        assert name in configured


@pytest.mark.integration
def test_the_documented_overlay_of_ones_own_registry_names_the_class_of_the_models_volume(tmp_path: Path) -> None:
    built = build({"components": [], **OVERLAYS[0]}, tmp_path)
    for document in built:
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, VERSIONS[0], strict=True)
    (claim,) = (each["spec"] for each in built if each["kind"] == "PersistentVolumeClaim")
    assert claim["accessModes"] == ["ReadWriteMany"] and claim["storageClassName"] == "nfs-client"


@pytest.mark.integration
def test_the_documented_overlay_for_large_models_shares_a_volume(tmp_path: Path) -> None:
    overlay = OVERLAYS[2]
    assert [ROOT / path for path in overlay["components"]] == [WEIGHTS]
    settings = (DEPLOY / "kubernetes" / "settings" / "learner.yaml").read_text()
    (added,) = re.findall(r"with `(weights: .*?)` added", DEPLOYMENT)
    (tmp_path / "learner.yaml").write_text(f"{settings}{added}\n")
    built = build({**overlay}, tmp_path)
    for document in built:
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, VERSIONS[0], strict=True)
    mounts = {
        document["metadata"]["name"]: mount
        for document in built
        if document["kind"] in ("Deployment", "StatefulSet")
        for mount in document["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == "weights"
    }
    assert {name: mount.get("readOnly", False) for name, mount in mounts.items()} == {
        "learner": False, "inference": True, "auditor": True,
    }  # fmt: skip
    (learner,) = (d for d in built if d["kind"] == "ConfigMap" and d["metadata"]["name"].startswith("learner-"))
    weights = LearnerSettings.model_validate(yaml.safe_load(learner["data"]["learner.yaml"])).weights
    assert weights.transport == "file" and {mount["mountPath"] for mount in mounts.values()} == {weights.location}
    (volume,) = (d for d in built if d["kind"] == "PersistentVolumeClaim" and d["metadata"]["name"] == "weights")
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    (claim,) = next(d for d in built if (d["kind"], d["metadata"]["name"]) == ("StatefulSet", "learner"))["spec"][
        "volumeClaimTemplates"
    ]
    assert claim["spec"]["resources"]["requests"]["storage"] in overlay["patches"][0]["patch"]


@pytest.mark.integration
def test_the_documented_overlay_with_a_grader_leaves_rewards_to_it(tmp_path: Path, commands: Commands) -> None:
    overlay = OVERLAYS[3]
    assert [ROOT / path for path in overlay["components"]] == [GRADER]
    settings = (GRADER / "settings.yaml").read_text()
    (tmp_path / "grader.yaml").write_text(settings)
    built = build({**overlay}, tmp_path)
    for document in built:
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, VERSIONS[0], strict=True)
    templates = {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]["containers"][0]
        for document in built
        if document["kind"] == "Deployment"
    }
    runner = commands.begun(
        templates["runner"]["args"],
        {"/etc/lightningbus/runner.yaml": (DEPLOY / "kubernetes" / "settings" / "runner.yaml").read_text()},
        commands.secrets / "runner",
    )
    assert isinstance(runner, RunnerSettings) and runner.graded
    assert templates["grader"]["image"] == templates["runner"]["image"]
    (config,) = (d for d in built if d["kind"] == "ConfigMap" and d["metadata"]["name"].startswith("grader-"))
    assert config["data"] == {"grader.yaml": settings} and config["metadata"]["namespace"] == NAMESPACE
    (mounted,) = (
        volume["configMap"]["name"]
        for document in built
        if (document["kind"], document["metadata"]["name"]) == ("Deployment", "grader")
        for volume in document["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    )
    assert mounted == config["metadata"]["name"]


def test_a_grader_is_a_role_of_ours_with_its_own_secret_and_reaches_bus_and_judges(commands: Commands) -> None:
    grader, pod = container("grader"), pods()["grader"]
    text = (GRADER / "settings.yaml").read_text()
    settings = commands.begun(grader["args"], {"/etc/lightningbus/grader.yaml": text}, commands.secrets / "grader")
    assert isinstance(settings, GraderSettings)
    assert parse_address(settings.health_address or "") == ("0.0.0.0", grader["ports"][0]["containerPort"])
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_timeout_seconds + 10
    mounts = {mount["name"]: mount["mountPath"] for mount in grader["volumeMounts"]}
    assert {"name": CREDENTIALS_VARIABLE, "value": mounts["access"]} in grader["env"]
    assert settings.cache is not None and str(settings.cache.parent) == mounts["work"]
    (access,) = (volume["secret"] for volume in pod["volumes"] if volume["name"] == "access")
    assert access == {"secretName": "lightningbus-grader", "defaultMode": 0o440}
    assert "create secret generic lightningbus-grader --from-file=secrets/grader " in DEPLOYMENT
    policies = of("NetworkPolicy")
    to_bus, to_judges = policies["grader"]["spec"]["egress"]
    (from_grader,) = policies["nats-grader"]["spec"]["ingress"]
    assert [to_bus["to"], from_grader["from"]] == [
        [{"podSelector": policies["nats-grader"]["spec"]["podSelector"]}],
        [{"podSelector": policies["grader"]["spec"]["podSelector"]}],
    ]
    assert to_bus["ports"] == from_grader["ports"] == [{"port": 4222}] and to_judges == {"ports": [{"port": 443}]}


def test_each_component_is_in_the_namespace_of_the_base() -> None:
    for component in (*COMPONENTS, WEIGHTS, GRADER):
        assert yaml.safe_load((component / "kustomization.yaml").read_text())["namespace"] == NAMESPACE


def test_the_pages_command_is_one_of_ours_and_listens_where_it_is_asked(commands: Commands) -> None:
    page = container("page")
    assert commands.begun(page["args"], {}) is None
    assert page["args"][page["args"].index("--host") + 1] == "0.0.0.0"
    (published,) = COMPOSE["ui"]["ports"]
    assert published.endswith(f":{page['ports'][0]['containerPort']}")


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
async def test_the_page_answers_its_probes_at_the_address_of_a_pod_without_a_clickhouse(probe: str) -> None:
    get = container("page")[probe]["httpGet"]
    (port,) = (port["containerPort"] for port in container("page")["ports"] if port["name"] == get["port"])
    pages = UiServer(Reader(), "0.0.0.0", list)
    headers = {"Host": f"10.1.2.3:{port}"}
    async with (
        serve(pages, "127.0.0.1", 0) as url,
        aiohttp.ClientSession(url) as session,
        session.get(get["path"], headers=headers) as response,
    ):
        assert response.status == 200, await response.text()


def test_each_component_that_stays_up_is_restarted_when_it_hangs() -> None:
    for name in of("Deployment"):
        actual = container(name)
        served = {port["name"] for port in actual["ports"]}
        assert {actual[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe")} <= served, name


@pytest.mark.integration
def test_the_documented_grafana_without_internet_fetches_no_plugin(tmp_path: Path) -> None:
    built = build({**OVERLAYS[4]}, tmp_path)
    (grafana,) = (each for each in built if (each["kind"], each["metadata"]["name"]) == ("Deployment", "grafana"))
    (actual,) = grafana["spec"]["template"]["spec"]["containers"]
    assert actual["image"].startswith("registry.example/")
    (plugins,) = re.findall(r"--pluginsDir (\S+) plugins install grafana-clickhouse-datasource", DEPLOYMENT)
    assert actual["env"] == [{"name": "GF_PATHS_PLUGINS", "value": plugins}]
    assert not any(plugins.startswith(mount["mountPath"]) for mount in actual["volumeMounts"])
    assert f"FROM {container('grafana')['image']}\n" in DEPLOYMENT


def test_a_backup_is_a_command_of_ours_with_the_variables_that_it_reads(commands: Commands) -> None:
    backups = container("backups")
    assert commands.begun(backups["args"], {}) is None
    assert {entry["name"] for entry in backups["env"]} == {ADMIN_VARIABLE, BACKUP_VARIABLE, *BACKUP_KEYS}
    (policy,) = (each for name, each in of("NetworkPolicy").items() if name == "backups")
    assert [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]] == [8123, 8443]


def test_no_pod_runs_as_root_or_holds_a_secret_of_its_own() -> None:
    assert not of("Secret")
    for name, pod in pods().items():
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        assert container(name)["securityContext"]["allowPrivilegeEscalation"] is False
    secrets = set(re.findall(r"(?:secretRef|secretKeyRef): \{name: ([\w-]+)", "".join(
        path.read_text() for component in (*COMPONENTS, GRADER) for path in component.glob("*.yaml")
    )))  # fmt: skip
    secrets |= {ingress["spec"]["tls"][0]["secretName"] for ingress in of("Ingress").values()}
    secrets |= {of("Ingress")["page"]["metadata"]["annotations"]["nginx.ingress.kubernetes.io/auth-secret"]}
    assert secrets and all(re.search(rf"create secret \w+ {secret} ", DEPLOYMENT) for secret in secrets)


def test_grafana_has_what_it_has_under_compose() -> None:
    grafana = container("grafana")
    assert grafana["image"] == GRAFANA["image"]
    generated = yaml.safe_load((DEPLOY / "grafana" / "kustomization.yaml").read_text())["configMapGenerator"]
    literals = {literal.partition("=")[0] for entry in generated for literal in entry.get("literals", [])}
    named = {entry["name"] for entry in grafana["env"]} | literals
    assert all(variable in named or f"--from-literal {variable}=" in DEPLOYMENT for variable in GRAFANA["environment"])
    assert [*map(list, grafana["envFrom"])] == [["configMapRef"], ["secretRef"]], "the last one counts"
    files = {file for entry in generated for file in entry.get("files", [])}
    directory = DEPLOY / "grafana"
    assert files == {
        str(path.relative_to(directory)) for folder in ("dashboards", "provisioning")
        for path in (directory / folder).rglob("*.*")
    }  # fmt: skip


def test_services_ingresses_and_policies_lead_to_ports_that_are_open() -> None:
    for name, service in of("Service").items():
        (port,) = service["spec"]["ports"]
        assert service["spec"]["selector"] == {"app.kubernetes.io/name": name}
        assert port["targetPort"] == container(name)["ports"][0]["name"]
        (rule,) = of("NetworkPolicy")[name]["spec"]["ingress"]
        assert [item["port"] for item in rule["ports"]] == [container(name)["ports"][0]["containerPort"]]
    for ingress in of("Ingress").values():
        (rule,) = ingress["spec"]["rules"]
        assert [rule["host"]] == ingress["spec"]["tls"][0]["hosts"]
        backend = rule["http"]["paths"][0]["backend"]["service"]
        assert backend["port"]["name"] in {port["name"] for port in of("Service")[backend["name"]]["spec"]["ports"]}
    component = yaml.safe_load((DEPLOY / "kubernetes" / "ingress" / "kustomization.yaml").read_text())
    patched = yaml.safe_load(component["patches"][0]["patch"])["spec"]["template"]["spec"]["containers"]
    (name,) = (rule["host"] for rule in of("Ingress")["page"]["spec"]["rules"])
    assert patched == [{"name": "page", "env": [{"name": HOSTS_VARIABLE, "value": name}]}], "it refuses other names"
