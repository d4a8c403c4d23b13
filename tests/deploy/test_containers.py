"""Dockerfile, Compose file and the broker's settings: valid, and true to the command line and ports here."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import dockerfile
import pytest
import yaml

from lightningbus.bus.embedded.nats_server import find_server, server_config
from lightningbus.bus.security.secrets import CONF, INFERENCE_API_KEY, SERVER_DIR
from lightningbus.cli.commands.roles.store import ADMIN_VARIABLE, READER_VARIABLE, URL_VARIABLE, WRITER_VARIABLE
from lightningbus.common.role_settings import parse_address
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.run_data.run_data import SQL_VARIABLE
from lightningbus.run.run_directory.discovery import API_KEY_VARIABLE
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.task_handler import NAK_DELAY_SECONDS
from lightningbus.store.clickhouse.users import READER, WRITER
from tests.deploy.commands import DEPLOY, ROLES, ROOT, Commands, Document
from tests.polling import HANG_SECONDS

COMPOSE: Document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Document] = COMPOSE["services"]
TARGETS = {"runner", "calculator", "store", "learner", "inference"}
HEALTHY = {name for name, service in SERVICES.items() if "--health-address" in service.get("command", [])}
"""The services that have metrics to scrape."""
VARIABLE = re.compile(r"\$\{\w+(:[?-][^}]*)?\}")
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|API_KEY$")


def stages() -> dict[str, list[Any]]:
    """The Dockerfile's stages by name, each a list of parsed commands; the first says what it is made from."""
    by_name: dict[str, list[Any]] = {}
    for command in dockerfile.parse_file(str(DEPLOY / "Dockerfile")):
        if command.cmd == "FROM":
            name = command.value[2]
            by_name[name] = [command]
        elif by_name:
            by_name[name].append(command)
    return by_name


def settings_of(service: Document) -> dict[str, str]:
    """Text of the settings files a service has mounted, by their paths."""
    return {
        item["target"]: COMPOSE["configs"][item["source"]].get("content", "") for item in service.get("configs", [])
    }


def secrets_of(service: Document) -> set[str]:
    """Where a service finds its secrets."""
    return {f"/run/secrets/{name}" for name in service.get("secrets", [])}


def begun(commands: Commands, name: str) -> Any:
    """The settings a service's role begins with."""
    service = SERVICES[name]
    key = None
    if API_KEY_VARIABLE in service["environment"]:
        assert service["environment"][API_KEY_VARIABLE] in secrets_of(service)
        key = commands.secrets / "inference" / INFERENCE_API_KEY
    words = service["command"]
    assert not any(VARIABLE.search(word) for word in words), "arguments are seen by everybody on a machine"
    url = service["environment"].get(URL_VARIABLE)
    return commands.begun(words, settings_of(service), key=key, url=url and VARIABLE.sub("secret", url))


@pytest.mark.integration
def test_the_compose_files_are_valid() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    files = [DEPLOY / "compose.yaml", DEPLOY / "compose.gpu.yaml"]
    done = subprocess.run([*check, *files], capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(yaml.safe_load(files[1].read_text())["services"]) <= set(SERVICES)


@pytest.mark.parametrize("name", sorted(ROLES))
def test_a_services_command_is_one_of_ours_and_its_health_is_asked_where_it_answers(
    commands: Commands, name: str
) -> None:
    settings = begun(commands, name)
    host, port = parse_address(settings.health_address)
    (question,) = (word for word in SERVICES[name]["healthcheck"]["test"] if "urlopen" in word)
    assert host == "0.0.0.0" and f"127.0.0.1:{port}/readyz" in question
    (scraping, vllm) = yaml.safe_load((DEPLOY / "otel.yaml").read_text())["receivers"]["prometheus"]["config"][
        "scrape_configs"
    ]
    (actual,) = scraping["dns_sd_configs"]
    assert actual["port"] == port and set(actual["names"]) == HEALTHY
    if isinstance(settings, InferenceSettings):
        assert settings.advertise_url == f"http://inference:{settings.port}"
        assert vllm["static_configs"] == [{"targets": [f"inference:{settings.port}"]}]
        assert vllm["authorization"]["credentials_file"] in secrets_of(SERVICES["otel"])
    if isinstance(settings, InferenceSettings | RunnerSettings):
        assert settings.inference_api_key_file is not None
    if isinstance(settings, RunnerSettings):
        grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace >= settings.drain_timeout_seconds + 2 * NAK_DELAY_SECONDS + 10


def test_the_other_commands_are_ours_too_and_nothing_is_open_to_others(commands: Commands) -> None:
    assert begun(commands, "provision") is begun(commands, "ui") is begun(commands, "users") is None
    users = SERVICES["users"]["environment"]
    assert users.keys() == {ADMIN_VARIABLE, WRITER_VARIABLE, READER_VARIABLE}
    assert begun(commands, "store").url == f"http://{WRITER}:secret@clickhouse:8123"
    assert SERVICES["ui"]["environment"][SQL_VARIABLE].startswith(f"http://{READER}:{users[READER_VARIABLE]}@")
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published and all(port.startswith("127.0.0.1:") for port in published)
    assert f":{4222}" in SERVICES["store"]["environment"]["LIGHTNINGBUS_BUS"]


def test_every_file_image_and_password_of_the_compose_file_comes_from_somewhere() -> None:
    for name, service in SERVICES.items():
        if service["image"].startswith("lightningbus-"):
            assert service["build"]["target"] == service["image"].removeprefix("lightningbus-"), name
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
        for variable, value in service.get("environment", {}).items():
            assert not SECRET.search(variable) or VARIABLE.fullmatch(value), f"{name} holds {variable}"
    assert all((DEPLOY / item["file"]).exists() for item in COMPOSE["configs"].values() if "file" in item)
    assert {name for name, service in SERVICES.items() if "secrets" in service} == {"inference", "runner", "otel"}
    ((secret, source),) = COMPOSE["secrets"].items()
    for text in ((DEPLOY / "compose.yaml").read_text(), (ROOT / "docs" / "deployment.md").read_text()):
        assert f"{source['environment']}=$(openssl rand -hex 32)" in text, secret


@pytest.mark.integration
@pytest.mark.parametrize("path", [DEPLOY / "nats.conf", DEPLOY / "kubernetes" / "settings" / "nats.conf"], ids=str)
def test_a_server_in_a_container_is_set_up_as_our_own(path: Path, secrets: Path, tmp_path: Path) -> None:
    """With what the Secret of the server has beside it, and nothing else of where that was made."""
    for file in (secrets / SERVER_DIR).iterdir():
        shutil.copy(file, tmp_path)
    users = (secrets / CONF).read_text()
    (tmp_path / CONF).write_text(users.replace(str(secrets), "/nowhere"))
    config = tmp_path / path.name
    config.write_text(path.read_text().replace("/etc/nats", str(tmp_path)))
    env = {**os.environ, "POD_NAME": "nats-0"}
    done = subprocess.run(
        [find_server(), "-t", "-c", config], env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    (tls,) = re.findall(r"^tls \{.*?^\}$", users, re.M | re.S)
    if path.parent.name == "settings":
        assert f'include "{CONF}"' in path.read_text()
        assert tls.replace(str(secrets / SERVER_DIR), "/etc/nats") in path.read_text()
    local = server_config("0.0.0.0", 4222, Path("/data"), Path("/ports"))
    stated = re.compile(
        r"^ *(max_payload|max_memory_store|max_file_store|sync_interval|feature_flags|store_dir)\b(.*)$", re.M
    )
    assert stated.findall(path.read_text()) == stated.findall(local)


def test_each_target_is_built_of_what_is_there_and_runs_as_nobody_in_particular() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    actual = stages()
    assert set(actual) >= TARGETS
    for target in TARGETS:
        assert [command.value for command in actual[target] if command.cmd == "USER"][-1] == ("10001:10001",)
    copied = set()
    for commands in actual.values():
        for command in commands:
            assert not (command.cmd in ("ENV", "ARG") and SECRET.search(" ".join(command.value)))
            if command.cmd == "COPY" and not command.flags:
                copied |= set(command.value[:-1])
    assert copied == {".", "lightningbus/examples/calculator"}
    allowed = {
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert all((ROOT / name).exists() for name in allowed)
    package = ROOT / "lightningbus"
    assert {path.resolve().name for path in package.iterdir() if path.is_symlink()} < allowed, "a folder is left out"
    assert set(project["tool"]["importlinter"]["root_packages"]) <= allowed
    text = (DEPLOY / "Dockerfile").read_text()
    extras = set(re.findall(r"\.\[(\w+)\]", text))
    assert extras <= set(project["project"]["optional-dependencies"])
    assert re.findall(r"torch==[\d.]+", text) == re.findall(r"torch==[\d.]+", (ROOT / "Makefile").read_text())
    assert {f"requirements/{name}.lock" for name in ("cpu", "gpu")} <= {
        str(p.relative_to(ROOT)) for p in ROOT.glob("requirements/*")
    }
