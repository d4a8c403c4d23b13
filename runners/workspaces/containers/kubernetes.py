"""Containers as jobs of a cluster of Kubernetes, by its API."""

import asyncio
import contextlib
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from lightningbus.runners.workspaces.containers.api_errors import ConflictError, NotFoundError, build_refusal
from lightningbus.runners.workspaces.containers.cluster import ClusterAccess, connect, find_cluster
from lightningbus.runners.workspaces.containers.engine import LABEL, ContainerSpec
from lightningbus.runners.workspaces.containers.manifests import (
    CONTAINER,
    HAS_NO_NETWORK,
    job,
    network_policy,
    read_pod,
    read_status,
)
from lightningbus.runners.workspaces.errors import WorkspaceFailedError

log = logging.getLogger(__name__)

REQUEST_SECONDS = 60.0
WATCH_SECONDS = 60
WATCH_PAUSE_SECONDS = 1.0
HEARTBEAT_SECONDS = 20.0
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3


class KubernetesEngine:
    """See `Engine`."""

    can_mount = False

    def __init__(self, namespace: str | None, name: str, start_seconds: float, pull_secret: str | None = None) -> None:
        """Prepare; ``name`` is the runner's, which may have ``start_seconds`` for each container.

        ``pull_secret``: see `job`.
        """
        self._namespace, self._name, self._start_seconds = namespace, name, start_seconds
        self._pull_secret = pull_secret
        self._access: ClusterAccess
        self._session: aiohttp.ClientSession

    def trial_command(self, spec: ContainerSpec) -> Sequence[str]:
        """See `Engine`."""
        return [spec.python, "-I", "-c", HAS_NO_NETWORK]

    async def open(self) -> str:
        """See `Engine`."""
        self._access = find_cluster(os.environ)
        self._namespace = self._namespace or self._access.namespace
        self._session = connect(self._access)
        try:
            version = await self.request("GET", "/version")
            with contextlib.suppress(ConflictError):
                await self.request("POST", self._path("networking.k8s.io/v1", "networkpolicies"), network_policy())
            await self._sweep()
        except BaseException:
            await self._session.close()
            raise
        return f"Kubernetes {version['gitVersion']} at {self._access.server}, namespace {self._namespace}"

    async def close(self) -> None:
        """See `Engine`."""
        await self._session.close()

    async def start(self, spec: ContainerSpec) -> "KubernetesContainer":
        """See `Engine`."""
        name = f"lightningbus-{uuid.uuid4().hex[:20]}"
        await self.request("POST", self._path("batch/v1", "jobs"), job(spec, name, self._name, self._pull_secret))
        container = KubernetesContainer(self, name, spec)
        try:
            container.pod = await self._wait_for_pod(name, spec.image)
        except BaseException:
            with contextlib.suppress(WorkspaceFailedError):
                await container.remove()
            raise
        return container

    async def remove(self, name: str) -> None:
        """Remove a job with its pod, if it is there."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        with contextlib.suppress(NotFoundError):
            await self.request("DELETE", f"{self._path('batch/v1', 'jobs')}/{name}", body)

    async def get_pod(self, name: str) -> dict[str, Any]:
        """Get a pod."""
        pod: dict[str, Any] = await self.request("GET", f"{self._path('v1', 'pods')}/{name}")
        return pod

    async def execute(self, pod: str, command: Sequence[str]) -> "KubernetesStream":
        """Start a process in a pod; raise `WorkspaceFailedError`."""
        query = [("container", CONTAINER), *((name, "true") for name in ("stdin", "stdout", "stderr"))]
        url = self._url(f"{self._path('v1', 'pods')}/{pod}/exec").with_query(
            [*query, *(("command", word) for word in command)]
        )
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                socket = await self._session.ws_connect(
                    url,
                    protocols=PROTOCOLS,
                    headers=self._access.headers(),
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=0,
                )
        except (aiohttp.ClientError, OSError) as error:
            raise WorkspaceFailedError(f"no program can be started in the pod {pod}: {error}") from error
        return KubernetesStream(socket)

    async def request(self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        """Send a request; return the answer. Raises `WorkspaceFailedError`, `NotFoundError`, `ConflictError`."""
        try:
            timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
            async with self._session.request(
                method, self._url(path).with_query(query), json=body, headers=self._access.headers(), timeout=timeout
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            reason = str(error) or f"no answer in {REQUEST_SECONDS:g} s"
            raise WorkspaceFailedError(f"the cluster at {self._access.server} does not answer: {reason}") from error
        if response.status >= 400:
            raise build_refusal(f"the cluster refuses {method} {path}", response.status, text)
        return json.loads(text)

    async def _wait_for_pod(self, job_name: str, image: str) -> str:
        """Wait until the container of a job runs; return the name of its pod."""
        last = f"no pod was made: see the events of job {job_name}"
        try:
            async with asyncio.timeout(self._start_seconds):
                while True:
                    async for pod in self._watch(job_name):
                        name, problem = read_pod(pod, image)
                        if name:
                            return name
                        last = problem or last
                    await asyncio.sleep(WATCH_PAUSE_SECONDS)
        except TimeoutError:
            raise WorkspaceFailedError(f"the job did not run in {self._start_seconds:g} s: {last}") from None

    async def _watch(self, job_name: str) -> AsyncIterator[dict[str, Any]]:
        query = {"labelSelector": f"job-name={job_name}", "watch": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=2 * WATCH_SECONDS)
        url = self._url(self._path("v1", "pods")).with_query(query)
        try:
            async with self._session.get(url, headers=self._access.headers(), timeout=timeout) as response:
                if response.status >= 400:
                    raise build_refusal("the cluster refuses to list pods", response.status, await response.text())
                buffer = b""
                async for data in response.content.iter_any():
                    *lines, buffer = (buffer + data).split(b"\n")
                    for line in filter(None, lines):
                        event = json.loads(line)
                        if event["type"] in ("ADDED", "MODIFIED"):
                            yield event["object"]
        except (aiohttp.ClientError, OSError) as error:
            raise WorkspaceFailedError(f"the cluster at {self._access.server} does not answer: {error}") from error

    async def _sweep(self) -> None:
        """Remove jobs that have ended; one that runs ends with its runner by itself."""
        jobs = await self.request("GET", self._path("batch/v1", "jobs"), query={"labelSelector": LABEL})
        for leftover in jobs["items"]:
            conditions = leftover.get("status", {}).get("conditions") or ()
            if any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions):
                await self.remove(leftover["metadata"]["name"])
                log.info("removed a job that a runner which is gone left: %s", leftover["metadata"]["name"])

    def _path(self, group: str, kind: str) -> str:
        root = "/api" if group == "v1" else "/apis"
        return f"{root}/{group}/namespaces/{self._namespace}/{kind}"

    def _url(self, path: str) -> URL:
        return URL(f"{self._access.server}{path}")


@dataclass
class KubernetesContainer:
    """See `Container`."""

    engine: KubernetesEngine
    name: str
    spec: ContainerSpec
    pod: str = ""
    stream: "KubernetesStream | None" = field(default=None)

    async def serve(self) -> "KubernetesStream":
        """See `Container`."""
        self.stream = await self.engine.execute(self.pod, self.spec.serve_command)
        return self.stream

    async def find_agents_fault(self) -> str:
        """See `Container`."""
        with contextlib.suppress(WorkspaceFailedError):
            (status, *_) = (await self.engine.get_pod(self.pod)).get("status", {}).get("containerStatuses") or [{}]
            if status.get("state", {}).get("terminated", {}).get("reason") == "OOMKilled":
                return self.spec.limits.memory_sentence
            if "running" in status.get("state", {}) and self.stream is not None and self.stream.exit_code > 128:
                return "the agent ended the process that runs it in its container"
        return ""

    async def remove(self) -> None:
        """See `Container`."""
        await self.engine.remove(self.name)


class KubernetesStream:
    """The streams of a process as messages of a websocket, whose first byte is the number of the stream."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._errors = b""
        self.exit_code = 0
        """Exit status of the process, once it has ended."""

    async def read(self) -> bytes:
        """See `GuestStream`."""
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                if self._errors:
                    raise OSError(self._errors.decode(errors="replace").strip()[-300:])
                return b""
            kind, data = message.data[0], message.data[1:]
            if kind == STDOUT and data:
                return bytes(data)
            if kind == STDERR:
                self._errors = (self._errors + data)[-4096:]
            if kind == STATUS:
                self.exit_code, reason = read_status(data)
                self._errors = self._errors or reason

    async def write(self, data: bytes) -> None:
        """See `GuestStream`."""
        try:
            await self._socket.send_bytes(bytes([STDIN]) + data)
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error

    async def close(self) -> None:
        """See `GuestStream`."""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()
