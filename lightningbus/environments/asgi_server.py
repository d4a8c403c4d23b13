"""A server of an environment, in a thread of this process."""

import socket
import threading
from typing import Any


def serve_app(app: Any) -> str:
    """Serve an ASGI app on a free port of loopback for as long as this process lives; returns its URL."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))  # early connections wait in its queue
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"
