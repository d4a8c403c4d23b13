"""Images of containers: from private registries, by the logins of the user, and on a bounded disk."""

import base64
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.workspaces.containers.docker import DockerEngine
from lightningbus.runners.workspaces.containers.engine import ContainerSpec
from lightningbus.runners.workspaces.containers.manifests import job
from lightningbus.runners.workspaces.containers.pulled_images import PulledImages
from lightningbus.runners.workspaces.containers.registry_login import DOCKER_HUB, find_registry, read_login
from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from tests.runners.fake_docker import IMAGE_BYTES, LOGIN
from tests.runners.test_containers import FAKE, docker

__all__ = ["docker"]
REGISTRY, IMAGE = "private.example.com", "private.example.com/team/agent:1"
AUTH = base64.b64encode(":".join(LOGIN).encode()).decode()


def spec(image: str) -> ContainerSpec:
    return ContainerSpec(image, ResourceLimits(), cpus=None, max_seconds=60.0, python="python3")


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("python:3.12", DOCKER_HUB),
        ("library/python", DOCKER_HUB),
        ("docker.io/library/python", DOCKER_HUB),
        (IMAGE, REGISTRY),
        ("localhost/agent", "localhost"),
        ("host:5000/agent@sha256:0", "host:5000"),
    ],
)
def test_the_registry_of_an_image_is_the_host_in_its_name(image: str, registry: str) -> None:
    assert find_registry(image) == registry


def write_helper(directory: Path, answer: str) -> None:
    """Write a program that keeps the login of the private registry alone."""
    program = directory / "docker-credential-kept"
    program.write_text(f"#!/bin/sh\n[ $(cat) = {REGISTRY} ] || exit 1\necho '{answer}'\n")
    program.chmod(0o755)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("file", "config"),
    [
        (".docker/config.json", {"auths": {REGISTRY: {"auth": AUTH}}}),
        (".docker/config.json", {"auths": {f"https://{REGISTRY}/v2/": {"auth": AUTH}}}),
        (".docker/config.json", {"credHelpers": {REGISTRY: "kept"}}),
        (".docker/config.json", {"credsStore": "kept", "auths": {REGISTRY: {}}}),
        ("runtime/containers/auth.json", {"auths": {REGISTRY: {"auth": AUTH}}}),
    ],
)
async def test_a_login_is_read_where_docker_and_podman_keep_it(
    file: str, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_helper(tmp_path, json.dumps({"Username": LOGIN[0], "Secret": LOGIN[1]}))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(json.dumps(config))
    environment = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    login = json.loads(base64.urlsafe_b64decode(await read_login(IMAGE, environment)))
    assert login == {"username": LOGIN[0], "password": LOGIN[1], "serveraddress": REGISTRY}
    assert await read_login("other.example.com/agent", environment) == ""
    assert await read_login("python:3.12", environment) == ""


@pytest.mark.integration
@pytest.mark.parametrize("answer", ["no JSON", '{"Username": "ann"}', "[]"])
async def test_a_login_that_cannot_be_read_is_named_and_not_shown(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_helper(tmp_path, answer)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "kept"}))
    with pytest.raises(WorkspaceFailedError, match="docker-credential-kept gave no login") as caught:
        await read_login(IMAGE, {"DOCKER_CONFIG": str(tmp_path)})
    assert answer not in str(caught.value)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WorkspaceFailedError, match=r"config\.json cannot be read"):
        await read_login(IMAGE, {"DOCKER_CONFIG": str(tmp_path)})


@pytest.fixture
async def engine(docker: dict[str, Any]) -> AsyncIterator[DockerEngine]:
    engine = DockerEngine(Path(docker["docker_socket"]), "runner", 2 * IMAGE_BYTES)
    await engine.open()
    yield engine
    await engine.close()


@pytest.mark.integration
@pytest.mark.skipif(bool(FAKE), reason=FAKE)
async def test_an_image_of_a_private_registry_is_pulled_with_the_login(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(WorkspaceRefusedError, match="there is no image private"):
        await engine.start(spec(IMAGE))
    (tmp_path / "config.json").write_text(json.dumps({"auths": {REGISTRY: {"auth": AUTH}}}))
    await (await engine.start(spec(IMAGE))).remove()
    await (await engine.start(spec("remote:1"))).remove()  # a public image, without a login of another registry
    assert LOGIN[1] not in caplog.text and AUTH not in caplog.text


@pytest.mark.integration
@pytest.mark.skipif(bool(FAKE), reason=FAKE)
async def test_the_least_recently_used_image_goes_first_and_none_that_is_in_use(engine: DockerEngine) -> None:
    async def is_there(image: str) -> bool:
        try:
            await engine.request("GET", f"/images/{image}/json")
        except WorkspaceFailedError:
            return False
        return True

    images = [f"remote-{letter}:1" for letter in "abcd"]
    first = await engine.start(spec(images[0]))
    for image in images[1:3]:
        await (await engine.start(spec(image))).remove()
    assert [await is_there(image) for image in images[:3]] == [True, False, True], "a container is made of the first"
    await first.remove()
    await (await engine.start(spec(images[0]))).remove()
    await (await engine.start(spec(images[3]))).remove()
    assert [await is_there(image) for image in images] == [True, False, False, True]
    await (await engine.start(spec(images[1]))).remove()
    assert await is_there(images[1]), "it is pulled again"


def test_an_image_larger_than_the_bound_stays_until_another_is_used() -> None:
    images = PulledImages(10)
    images.add("large", 20)
    assert not list(images.find_surplus())
    images.add("small", 1)
    assert list(images.find_surplus()) == ["large"]


def test_a_job_names_the_secret_of_the_cluster() -> None:
    pod = job(spec(IMAGE), "name", "runner", "registry-login")["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry-login"}]
    assert "imagePullSecrets" not in job(spec(IMAGE), "name", "runner")["spec"]["template"]["spec"]
