"""A fake of a cluster's API server: jobs, pods, a watch, and exec over a websocket with numbered channels.

``python -m tests.runners.fake_kubernetes FOLDER PROTOCOL`` serves HTTP on a free port and writes a kubeconfig
into FOLDER. Manifests are checked by the schemas of Kubernetes. Each job is run once;
images are those whose name begins with ``here``. With
``no-policies`` in FOLDER pods have a network.
"""

import asyncio
import contextlib
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from aiohttp import WSMsgType, web

from tests.runners.fake_containers import FakeContainer

TOKEN, NAMESPACE, VERSION = "secret", "agents", "1.37"


class FakeKubernetes:
    def __init__(self, protocol: str, enforces_policies: bool) -> None:
        self.protocol, self.enforces_policies = protocol, enforces_policies
        self.port = 0
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, tuple[FakeContainer, dict[str, Any]]] = {}
        self.policies: set[str] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def routes(self, app: web.Application) -> None:
        jobs, pods = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", f"/api/v1/namespaces/{NAMESPACE}/pods"
        app.router.add_get("/version", self.version)
        app.router.add_post(f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies", self.make_policy)
        app.router.add_get(jobs, self.list_jobs)
        app.router.add_post(jobs, self.make_job)
        app.router.add_delete(f"{jobs}/{{name}}", self.delete_job)
        app.router.add_get(pods, self.watch)
        app.router.add_get(f"{pods}/{{name}}", self.get_pod)
        app.router.add_get(f"{pods}/{{name}}/exec", self.execute)

    @web.middleware
    async def authenticate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return status(401, "Unauthorized")
        return await handler(request)

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.37.0"})

    async def make_policy(self, request: web.Request) -> web.Response:
        body = await read_manifest(request)
        name = body["metadata"]["name"]
        if name in self.policies:
            return status(409, f'networkpolicies "{name}" already exists')
        self.policies.add(name)
        return web.json_response(body, status=201)

    async def list_jobs(self, request: web.Request) -> web.Response:
        selector = request.query["labelSelector"]
        return web.json_response(
            {"items": [job for job in self.jobs.values() if selector in job["metadata"]["labels"]]}
        )

    async def make_job(self, request: web.Request) -> web.Response:
        body = await read_manifest(request)
        name, template = body["metadata"]["name"], body["spec"]["template"]
        self.jobs[name] = {**body, "status": {}}
        (container,) = template["spec"]["containers"]
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}
        container_of_pod = FakeContainer(container["command"], environment, has_network=not self.enforces_policies)
        pod: dict[str, Any] = {"metadata": {"name": f"{name}-{uuid.uuid4().hex[:5]}", "labels": {"job-name": name}}}
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        if not container["image"].startswith("here"):
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": f"no {container['image']}"}}
        pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": container["name"], "state": waiting}]}
        self.pods[pod["metadata"]["name"]] = (container_of_pod, pod)
        if container["image"].startswith("here"):
            task = asyncio.create_task(self.run(name, container_of_pod, pod))
            self.tasks.add(task)
        return web.json_response(body, status=201)

    async def run(self, name: str, container: FakeContainer, pod: dict[str, Any]) -> None:
        """Run a pod to its end; the cluster then removes its job."""
        await container.start()
        pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "workspace", "state": {"running": {}}}]}
        await container.process.wait()
        pod["status"] = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}
        self.jobs.pop(name, None)

    async def delete_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if (await request.json())["propagationPolicy"] != "Background":
            return status(422, "its pods would be left")
        if name not in self.jobs:
            return status(404, f'jobs.batch "{name}" not found')
        job = self.jobs.pop(name)
        for pod_name, (container, pod) in list(self.pods.items()):
            if pod["metadata"]["labels"]["job-name"] == name:
                await container.kill()
                del self.pods[pod_name]
        return web.json_response(job)

    async def watch(self, request: web.Request) -> web.StreamResponse:
        key, _, value = request.query["labelSelector"].partition("=")
        if request.query.get("watch") != "true":
            return status(400, "this fake has a watch alone")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        reported: dict[str, str] = {}
        for _ in range(20 * int(request.query["timeoutSeconds"])):
            for name, (_, pod) in self.pods.items():
                text = json.dumps(pod)
                if pod["metadata"]["labels"].get(key) == value and reported.get(name) != text:
                    kind = "MODIFIED" if name in reported else "ADDED"
                    reported[name] = text
                    await response.write(json.dumps({"type": kind, "object": pod}).encode() + b"\n")
            await asyncio.sleep(0.05)
        return response

    async def get_pod(self, request: web.Request) -> web.Response:
        if request.match_info["name"] not in self.pods:
            return status(404, "pods not found")
        return web.json_response(self.pods[request.match_info["name"]][1])

    async def execute(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["name"] not in self.pods or not self.pods[request.match_info["name"]][0].is_running:
            return status(404, "pods not found")
        if request.query["container"] != "workspace" or any(
            request.query[key] != "true" for key in ("stdin", "stdout")
        ):
            return status(400, "container, stdin and stdout are wanted")
        socket = web.WebSocketResponse(protocols=[self.protocol])
        await socket.prepare(request)
        if socket.ws_protocol != self.protocol:
            await socket.close()
            return socket
        process = await self.pods[request.match_info["name"]][0].execute(request.query.getall("command"))

        async def pump(stream: asyncio.StreamReader, number: int) -> None:
            while data := await stream.read(32768):
                await socket.send_bytes(bytes([number]) + data)

        async def feed() -> None:
            async for message in socket:
                assert message.type is WSMsgType.BINARY and message.data[0] == 0, message
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
            process.stdin.close()

        feeding = asyncio.create_task(feed())
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(process.stdout, 1), pump(process.stderr, 2))
            code = await process.wait()
            end: dict[str, Any] = {"metadata": {}, "status": "Success"}
            if code:
                cause = {"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}
                end = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
            await socket.send_bytes(b"\3" + json.dumps(end).encode())
        await socket.close()
        feeding.cancel()
        return socket


async def read_manifest(request: web.Request) -> dict[str, Any]:
    """Read a manifest, refused where the schemas of Kubernetes do."""
    body: dict[str, Any] = await request.json()
    try:
        kubernetes_validate.validate(body, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise web.HTTPUnprocessableEntity(text=json.dumps({"kind": "Status", "message": str(error)})) from error
    return body


def status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code)


async def main(folder: Path, protocol: str) -> None:
    fake = FakeKubernetes(protocol, not (folder / "no-policies").exists())
    app = web.Application(middlewares=[fake.authenticate])
    fake.routes(app)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.port = runner.addresses[0][1]
    server = f"http://127.0.0.1:{fake.port}"
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "b", "user": "c", "namespace": NAMESPACE}}],
        "clusters": [{"name": "b", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {"token": TOKEN}}],
    }
    draft = folder / "draft"
    draft.write_text(yaml.safe_dump(config))
    draft.rename(folder / "kubeconfig")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
