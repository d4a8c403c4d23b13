"""A server that speaks the Hugging Face Hub's API, as far as an upload needs it."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """What was uploaded; ``token`` is the only one that is let in."""

    token: str
    url: str = ""
    repository: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def serving(token: str) -> Iterator[Hub]:
    """A Hub on loopback while the block runs."""
    hub = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(self, value: object, status: int = 200) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._answer({"id": hub.repository.get("name", ""), "sha": "0" * 40, "siblings": []})

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._answer({"error": "Invalid credentials"}, 401)
            elif self.path == "/api/repos/create":
                hub.repository |= json.loads(body)
                name = f"somebody/{hub.repository['name']}"
                self._answer({"url": f"{hub.url}/{name}", "name": name})
            elif self.path.endswith("/preupload/main"):
                files = json.loads(body)["files"]
                modes = {True: "lfs", False: "regular"}
                self._answer(
                    {
                        "files": [
                            {
                                "path": file["path"],
                                "uploadMode": modes[file["path"].endswith(".safetensors")],
                                "shouldIgnore": False,
                            }
                            for file in files
                        ]
                    }
                )
            elif self.path.endswith("/info/lfs/objects/batch"):
                self._answer(
                    {
                        "transfer": "basic",
                        "objects": [
                            {**each, "actions": {"upload": {"href": f"{hub.url}/lfs/{each['oid']}"}}}
                            for each in json.loads(body)["objects"]
                        ],
                    }
                )
            elif "/commit/main" in self.path:
                for line in map(json.loads, body.splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        hub.files[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        hub.files[value["path"]] = hub.objects[value["oid"]]
                self._answer({"commitUrl": f"{hub.url}/somebody/model/commit/{'1' * 40}", "commitOid": "1" * 40})
            else:
                self._answer({"errors": [], "warnings": []})

        def do_PUT(self) -> None:
            content = self._body()
            hub.objects[hashlib.sha256(content).hexdigest()] = content
            self._answer({})

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
