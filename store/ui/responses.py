"""Parameters of a request, and answers as JSON."""

import json
from typing import Any

from aiohttp import web


def require_param(request: web.Request, name: str) -> str:
    """Return a parameter of the request; raise ValueError with a sentence when it is missing."""
    value = request.query.get(name, "")
    if not value:
        raise ValueError(f"{name} is missing")
    return value


def json_response(value: Any, status: int = 200) -> web.Response:
    """Answer with a value as JSON."""
    return web.json_response(value, status=status, dumps=lambda item: json.dumps(item, default=str, ensure_ascii=False))
