"""A fake of Docker's Engine API on a Unix socket: HTTP, filters, hijacked connections, frames of a process's streams.

``python -m tests.runners.fake_docker SOCKET [elsewhere]``; elsewhere it lacks the directories of this machine. Images
are those whose name begins with ``here``. What begins with ``remote`` can be pulled, and with the login ``LOGIN`` the
images of ``private.example.com``.
A field that the API does not have, or of another type, is refused with 400.
"""

import asyncio
import base64
import contextlib
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.runners.fake_containers import FakeContainer

LOGIN = ("ann", "pass:word")
IMAGE_BYTES = 2 * 2**30
STRINGS, NUMBER = [str], (int, float)
HOST_CONFIG = {"NetworkMode": str, "AutoRemove": bool, "SecurityOpt": STRINGS, "Memory": int, "MemorySwap": int}
MOUNT = {"Type": str, "Source": str, "Target": str, "ReadOnly": bool}
HOST_CONFIG |= {"NanoCpus": int, "PidsLimit": int, "Mounts": [MOUNT]}
CREATE = {
    "Image": str,
    "Entrypoint": STRINGS,
    "Cmd": STRINGS,
    "StopSignal": str,
    "Labels": dict,
    "HostConfig": HOST_CONFIG,
}
EXEC = {"AttachStdin": bool, "AttachStdout": bool, "AttachStderr": bool, "Tty": bool, "Cmd": STRINGS}
EXEC_START = {"Detach": bool, "Tty": bool}


class RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message


def check(value: Any, schema: Any, name: str = "body") -> None:
    """Refuse what the API's definitions do not have."""
    if isinstance(schema, dict):
        if not isinstance(value, dict) or value.keys() - schema.keys():
            raise RefusedError(400, f"{name} has fields that are none: {value}")
        for key, each in value.items():
            check(each, schema[key], key)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise RefusedError(400, f"{name} is not a list")
        for each in value:
            check(each, schema[0], name)
    elif type(value) is not schema:
        raise RefusedError(400, f"{name} has another type")


class FakeDocker:
    def __init__(self, is_elsewhere: bool) -> None:
        self.is_elsewhere = is_elsewhere
        self.containers: dict[str, tuple[FakeContainer, dict[str, Any], float]] = {}
        self.executions: dict[str, dict[str, Any]] = {}
        self.images: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, target, _ = lines[0].split(" ")
                url = urlsplit(target)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                try:
                    path = url.path.strip("/").split("/")
                    if method == "POST" and path[0] == "exec" and path[2] == "start":
                        check(json.loads(body), EXEC_START)
                        if headers.get("upgrade") != "tcp":
                            raise RefusedError(400, "the connection is not to be upgraded")
                        await self.attach(self.execution(path[1]), reader, writer)
                        break
                    status, answer = await self.answer(method, path, query, json.loads(body or b"null"), headers)
                except RefusedError as error:
                    status, answer = error.status, {"message": error.message}
                content = b"" if answer is None else json.dumps(answer).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        writer.close()

    async def answer(
        self, method: str, path: list[str], query: dict[str, str], body: Any, headers: dict[str, str]
    ) -> tuple[int, Any]:
        match (method, *path):
            case ("GET", "version"):
                return 200, {"Version": "1.0", "ApiVersion": "1.41", "Components": [{"Name": "Fake Engine"}]}
            case ("GET", "containers", "json"):
                label = json.loads(query["filters"])["label"]
                matching = [(name, each) for name, each in self.containers.items() if label[0] in each[1]["Labels"]]
                states = {name: "running" if each[0].is_running else "created" for name, each in matching}
                return 200, [{"Id": name, "State": states[name], "Created": int(each[2])} for name, each in matching]
            case ("POST", "images", "create"):
                login = json.loads(base64.urlsafe_b64decode(headers.get("x-registry-auth", "e30=")))
                name = query["fromImage"]
                if name.startswith("private.example.com/"):
                    if (login.get("username"), login.get("password")) != LOGIN:
                        raise RefusedError(404, "pull access denied, may require 'docker login'")
                elif login or not name.startswith("remote"):
                    raise RefusedError(404, "pull access denied, repository does not exist")
                self.images.add(f"{name}:{query['tag']}")
                return 200, {"status": "Download complete"}
            case ("GET", "images", *name, "json"):
                if "/".join(name) not in self.images:
                    raise RefusedError(404, f"No such image: {'/'.join(name)}")
                return 200, {"Id": "sha256:0", "Size": IMAGE_BYTES}
            case ("DELETE", "images", *name):
                image = "/".join(name)
                if image not in self.images:
                    raise RefusedError(404, f"No such image: {image}")
                if any(body["Image"] == image for _, body, _ in self.containers.values()):
                    raise RefusedError(409, "conflict: unable to remove, a container uses it")
                self.images.remove(image)
                return 200, [{"Untagged": image}]
            case ("POST", "containers", "create"):
                check(body, CREATE if isinstance(body, dict) and isinstance(body.get("Labels"), dict) else {})
                return 201, {"Id": self.create(body), "Warnings": []}
            case ("POST", "containers", name, "start"):
                await self.container(name).start()
                task = asyncio.create_task(self.remove_at_end(name))
                self.executions.setdefault("tasks", {})[name] = task
                return 204, None
            case ("GET", "containers", name, "json"):
                return 200, {"State": {"Running": self.container(name).is_running, "OOMKilled": False}}
            case ("DELETE", "containers", name):
                if self.container(name).is_running and query.get("force") != "true":
                    raise RefusedError(409, "the container is running")
                await self.container(name).kill()
                self.containers.pop(name, None)
                return 204, None
            case ("POST", "containers", name, "exec"):
                check(body, EXEC)
                if not self.container(name).is_running:
                    raise RefusedError(409, f"container {name} is not running")
                key = uuid.uuid4().hex
                self.executions[key] = {"container": self.container(name), "command": body["Cmd"], "process": None}
                return 201, {"Id": key}
            case ("GET", "exec", key, "json"):
                code = self.execution(key)["process"].returncode
                return 200, {"Running": code is None, "ExitCode": code if code is None or code >= 0 else 128 - code}
        raise RefusedError(404, "page not found")

    def create(self, body: dict[str, Any]) -> str:
        if not body["Image"].startswith("here") and body["Image"] not in self.images:
            raise RefusedError(404, f"No such image: {body['Image']}")
        if body["HostConfig"]["NetworkMode"] != "none":
            raise RefusedError(400, "these containers have no network")
        mounts = body["HostConfig"].get("Mounts", [])
        for mount in mounts:
            if self.is_elsewhere or not Path(mount["Source"]).exists():
                reason = f"bind source path does not exist: {mount['Source']}"
                raise RefusedError(400, f'invalid mount config for type "bind": {reason}')
        binds = [word for mount in mounts for word in ("--ro-bind", mount["Source"], mount["Target"])]
        name = uuid.uuid4().hex
        self.containers[name] = (FakeContainer([*body["Entrypoint"], *body["Cmd"]], binds=binds), body, time.time())
        return name

    def container(self, name: str) -> FakeContainer:
        if name not in self.containers:
            raise RefusedError(404, f"No such container: {name}")
        return self.containers[name][0]

    def execution(self, key: str) -> dict[str, Any]:
        if key not in self.executions:
            raise RefusedError(404, f"No such exec instance: {key}")
        return self.executions[key]

    async def remove_at_end(self, name: str) -> None:
        await self.containers[name][0].process.wait()
        self.containers.pop(name, None)

    async def attach(self, execution: dict[str, Any], reader: Any, writer: asyncio.StreamWriter) -> None:
        """Become the streams of a process: what it prints comes in frames, and its input ends with the connection."""
        process = execution["process"] = await execution["container"].execute(execution["command"])
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")

        async def pump(stream: asyncio.StreamReader, number: int) -> None:
            while data := await stream.read(65536):
                writer.write(bytes([number, 0, 0, 0]) + len(data).to_bytes(4, "big") + data)
                await writer.drain()

        async def feed() -> None:
            while data := await reader.read(65536):
                process.stdin.write(data)
                await process.stdin.drain()
            process.stdin.close()

        feeding = asyncio.create_task(feed())
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(process.stdout, 1), pump(process.stderr, 2))
        await process.wait()
        feeding.cancel()


async def main(path: str, *options: str) -> None:
    fake = FakeDocker("elsewhere" in options)
    server = await asyncio.start_unix_server(fake.serve, path, limit=1024 * 1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    Path(sys.argv[1]).unlink(missing_ok=True)
    asyncio.run(main(*sys.argv[1:]))
