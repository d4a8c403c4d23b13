"""Containers of Docker or Podman, by the Engine API on their Unix socket."""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
from yarl import URL

from lightningbus.runners.workspaces.containers.api_errors import ConflictError, NotFoundError, build_refusal
from lightningbus.runners.workspaces.containers.engine import LABEL, LEFTOVER_SECONDS, ContainerSpec
from lightningbus.runners.workspaces.containers.pulled_images import PulledImages
from lightningbus.runners.workspaces.containers.registry_login import read_login
from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.schemas.text import shorten_line

log = logging.getLogger(__name__)

SOCKETS = ("/var/run/docker.sock", "{runtime}/podman/podman.sock", "/run/podman/podman.sock")
REQUEST_SECONDS = 60.0
PULL_SECONDS = 1800.0
MAX_HEAD_BYTES = 64 * 1024
FRAME_HEADER_BYTES = 8
STDOUT, STDERR = 1, 2
OWN_PROCESSES = 16
"""Processes and threads of ours in a container."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
HTTP_SWITCHING = (101, 200)
"""Statuses after which a connection is a stream: Docker says 101, older versions of Podman 200."""


def find_socket(chosen: Path | None, environment: Mapping[str, str]) -> Path:
    """Find the socket of an engine; raise `WorkspaceFailedError` where there is none."""
    if chosen is not None:
        return chosen
    host = environment.get("DOCKER_HOST", "")
    if host and not host.startswith("unix://"):
        raise WorkspaceFailedError(f"DOCKER_HOST is {host}: a runner reaches Docker by a Unix socket alone")
    if host:
        return Path(host.removeprefix("unix://"))
    runtime = environment.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    places = [Path(place.format(runtime=runtime)) for place in SOCKETS]
    for place in places:
        if place.is_socket() and os.access(place, os.W_OK):
            return place
    raise WorkspaceFailedError(
        f"neither Docker nor Podman listens here for this user (looked at {', '.join(map(str, places))}): start one, "
        "or set workspace.docker_socket of the runner"
    )


class DockerEngine:
    """See `Engine`."""

    can_mount = True

    def __init__(self, socket: Path, name: str, max_image_bytes: int) -> None:
        """Prepare; ``name`` is the runner's. Images that it pulls take ``max_image_bytes`` at most."""
        self._socket, self._name = socket, name
        self._images = PulledImages(max_image_bytes)
        self._session: aiohttp.ClientSession

    def trial_command(self, spec: ContainerSpec) -> Sequence[str]:
        """See `Engine`."""
        return ["/bin/true"]

    async def open(self) -> str:
        """See `Engine`."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket)), timeout=timeout)
        try:
            version = await self.request("GET", "/version")
            await self._sweep()
        except BaseException:
            await self._session.close()
            raise
        name = next((part.get("Name") for part in version.get("Components") or ()), "Docker")
        return f"{name} {version.get('Version')} at {self._socket}"

    async def close(self) -> None:
        """See `Engine`."""
        await self._session.close()

    async def start(self, spec: ContainerSpec) -> "DockerContainer":
        """See `Engine`."""
        body = container_body(spec, self._name)
        try:
            created = await self.request("POST", "/containers/create", body)
        except NotFoundError:
            await self._pull(spec.image)
            created = await self.request("POST", "/containers/create", body)
            await self._count_image(spec.image)
        self._images.use(spec.image)
        container = DockerContainer(self, str(created["Id"]), spec)
        try:
            await self.request("POST", f"/containers/{container.id}/start")
        except BaseException:
            with contextlib.suppress(WorkspaceFailedError):
                await container.remove()
            raise
        return container

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        seconds: float = REQUEST_SECONDS,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Any:
        """Send a request; return the answer's JSON. Raises `WorkspaceFailedError`, and `NotFoundError` for a 404."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(
                method, f"http://docker{path}", json=body, timeout=timeout, headers=headers
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            reason = str(error) or f"no answer in {seconds:g} s"
            raise WorkspaceFailedError(f"the container engine at {self._socket} does not answer: {reason}") from error
        if response.status >= 400:
            sentence = f"the container engine refuses {method} {path.partition('?')[0]}"
            raise build_refusal(sentence, response.status, text)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            return text

    async def hijack(self, path: str, body: Any) -> "DockerStream":
        """Send a request whose connection becomes a stream; raise `WorkspaceFailedError`."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\nConnection: Upgrade\r\n"
        head += f"Upgrade: tcp\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=MAX_HEAD_BYTES)
                try:
                    writer.write(head.encode() + content)
                    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    if int(answer.split()[1]) not in HTTP_SWITCHING:
                        raise WorkspaceFailedError(
                            f"the container engine refuses POST {path}: {answer.splitlines()[0]}"
                        )
                except BaseException:
                    writer.close()
                    raise
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            raise WorkspaceFailedError(f"the container engine does not answer POST {path}: {error}") from error
        return DockerStream(reader, writer)

    async def _pull(self, image: str) -> None:
        """Fetch an image that is not there; raise `WorkspaceRefusedError` if nobody has it."""
        name, _, tag = image.rpartition(":")
        if not name or "/" in tag or "@" in image:
            name, tag = image, "" if "@" in image else "latest"
        query = str(URL.build(path="/images/create", query={"fromImage": name, "tag": tag}))
        log.info("pulling the image %s", image)
        try:
            login = await read_login(image, os.environ)
            headers = {"X-Registry-Auth": login} if login else NO_HEADERS
            progress = await self.request("POST", query, seconds=PULL_SECONDS, headers=headers)
        except NotFoundError as error:
            raise WorkspaceRefusedError(f"there is no image {image}: {error}") from error
        last = progress if isinstance(progress, dict) else _last_object(str(progress or ""))
        if reason := last.get("error"):
            raise WorkspaceFailedError(f"the image {image} cannot be pulled: {shorten_line(str(reason), 300)}")

    async def _count_image(self, image: str) -> None:
        """Count an image that was pulled, and remove those that the bound on their disk leaves no room for."""
        details = await self.request("GET", f"/images/{image}/json")
        self._images.add(image, int(details["Size"]))
        for surplus in self._images.find_surplus():
            try:
                await self.request("DELETE", f"/images/{surplus}")
            except ConflictError:  # a container of another rollout is made of the image
                continue
            except NotFoundError:
                log.info("somebody else removed the image %s", surplus)
            else:
                log.info("removed the image %s: pulled images fill more than workspace.max_image_gib", surplus)
            self._images.forget(surplus)

    async def _sweep(self) -> None:
        """Remove containers that do not run and are not about to; one that runs ends with its runner by itself."""
        filters = json.dumps({"label": [LABEL]})
        query = str(URL.build(path="/containers/json", query={"all": "true", "filters": filters}))
        for leftover in await self.request("GET", query):
            is_old = time.time() - float(leftover["Created"]) > LEFTOVER_SECONDS
            if is_old and leftover["State"] in ("created", "exited", "dead"):
                with contextlib.suppress(NotFoundError):
                    await self.request("DELETE", f"/containers/{leftover['Id']}?force=true&v=true")
                log.info("removed a container that a runner which is gone left: %s", leftover["Id"][:12])


@dataclass
class DockerContainer:
    """See `Container`."""

    engine: DockerEngine
    id: str
    spec: ContainerSpec
    exec_id: str = ""

    async def serve(self) -> "DockerStream":
        """See `Container`."""
        body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": False}
        execution = await self.engine.request(
            "POST", f"/containers/{self.id}/exec", {**body, "Cmd": self.spec.serve_command}
        )
        self.exec_id = str(execution["Id"])
        return await self.engine.hijack(f"/exec/{self.exec_id}/start", {"Detach": False, "Tty": False})

    async def find_agents_fault(self) -> str:
        """See `Container`."""
        with contextlib.suppress(WorkspaceFailedError):
            state = (await self.engine.request("GET", f"/containers/{self.id}/json"))["State"]
            if state.get("OOMKilled"):
                return self.spec.limits.memory_sentence
            served = await self.engine.request("GET", f"/exec/{self.exec_id}/json")
            if state.get("Running") and not served.get("Running") and (served.get("ExitCode") or 0) > 128:
                return "the agent ended the process that runs it in its container"
        return ""

    async def remove(self) -> None:
        """See `Container`."""
        with contextlib.suppress(NotFoundError, ConflictError):  # it is gone, or on its way
            await self.engine.request("DELETE", f"/containers/{self.id}?force=true&v=true")


class DockerStream:
    """The streams of a process: what it prints comes in frames with the number of the stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._errors = b""
        """The last of what it printed on standard error."""

    async def read(self) -> bytes:
        """See `GuestStream`."""
        while True:
            try:
                header = await self._reader.readexactly(FRAME_HEADER_BYTES)
                data = await self._reader.readexactly(int.from_bytes(header[4:], "big"))
            except asyncio.IncompleteReadError:
                if self._errors:
                    raise OSError(self._errors.decode(errors="replace").strip()[-300:]) from None
                return b""
            if header[0] == STDOUT and data:
                return data
            if header[0] == STDERR:
                self._errors = (self._errors + data)[-4096:]

    async def write(self, data: bytes) -> None:
        """See `GuestStream`."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """See `GuestStream`."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def container_body(spec: ContainerSpec, runner_name: str) -> dict[str, Any]:
    """Build the body of the request for a container, whose only way out is the standard input and output. Pure."""
    limits: dict[str, Any] = {}
    if spec.mount is not None:
        source, target = spec.mount
        limits["Mounts"] = [{"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}]
    if spec.memory_bytes is not None:
        limits |= {"Memory": spec.memory_bytes, "MemorySwap": spec.memory_bytes}
    if spec.cpus is not None:
        limits["NanoCpus"] = round(spec.cpus * 1e9)
    if spec.limits.max_processes is not None:
        limits["PidsLimit"] = spec.limits.max_processes + OWN_PROCESSES
    return {
        "Image": spec.image,
        "Entrypoint": spec.first_command,
        "Cmd": [],
        "StopSignal": "SIGKILL",
        "Labels": {LABEL: runner_name},
        "HostConfig": {
            "NetworkMode": "none",
            "AutoRemove": True,
            "SecurityOpt": ["no-new-privileges"],
            **limits,
        },
    }


def _last_object(text: str) -> dict[str, Any]:
    """Return the last of the objects that a pull tells its progress by, a line each."""
    with contextlib.suppress(ValueError):
        value: Any = json.loads((text.strip().splitlines() or ["{}"])[-1])
        return value if isinstance(value, dict) else {}
    return {}
