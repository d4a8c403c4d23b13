"""Logins of private registries, as ``docker login`` and ``podman login`` keep them for this user."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightningbus.runners.workspaces.errors import WorkspaceFailedError

DOCKER_HUB = "https://index.docker.io/v1/"
HELPER_SECONDS = 30.0
TOKEN_USER = "<token>"
"""User that a helper names beside an identity token."""


def find_registry(image: str) -> str:
    """Return the registry of an image by its name, as logins name it. Pure."""
    head, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in head or ":" in head or head == "localhost")
    return head if is_host and head != "docker.io" else DOCKER_HUB


async def read_login(image: str, environment: Mapping[str, str]) -> str:
    """Return the value of Docker's header ``X-Registry-Auth`` for an image; empty: this user has no login for it.

    Raises `WorkspaceFailedError` for a login that cannot be read.
    """
    registry = find_registry(image)
    for path in _list_files(environment):
        try:
            config = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise WorkspaceFailedError(f"{path} cannot be read, which has the logins of registries: {error}") from None
        if isinstance(config, dict) and (login := await _find_login(config, registry)):
            return base64.urlsafe_b64encode(json.dumps({**login, "serveraddress": registry}).encode()).decode()
    return ""


def _list_files(environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment.get("HOME", "/nowhere"))
    yield Path(environment.get("DOCKER_CONFIG", home / ".docker")) / "config.json"
    if chosen := environment.get("REGISTRY_AUTH_FILE"):
        yield Path(chosen)
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"


async def _find_login(config: Mapping[str, Any], registry: str) -> dict[str, str]:
    """Return user and password, or a token, of a file with logins; empty: it has none for the registry."""
    helper = (config.get("credHelpers") or {}).get(registry) or config.get("credsStore")
    if helper and (login := await _ask_helper(str(helper), registry)):
        return login
    for name, entry in (config.get("auths") or {}).items():
        if _host(name) != _host(registry) or not isinstance(entry, dict):
            continue
        if token := entry.get("identitytoken"):
            return {"identitytoken": str(token)}
        with contextlib.suppress(ValueError):
            user, colon, password = base64.b64decode(str(entry.get("auth", ""))).decode().partition(":")
            if colon:
                return {"username": user, "password": password}
    return {}


async def _ask_helper(helper: str, registry: str) -> dict[str, str]:
    """Ask a program that keeps logins; return nothing if it has none. What it prints is never shown: it is a secret."""
    program = f"docker-credential-{helper}"
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise WorkspaceFailedError(
            f"{program}, which keeps the logins of registries, cannot be started: {error}"
        ) from None
    try:
        async with asyncio.timeout(HELPER_SECONDS):
            printed, _ = await process.communicate(registry.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise WorkspaceFailedError(f"{program} gave no login of {registry} in {HELPER_SECONDS:g} s") from None
    if process.returncode:  # it has no login for this registry
        return {}
    try:
        login = json.loads(printed)
        user, secret = str(login["Username"]), str(login["Secret"])
    except (ValueError, LookupError, TypeError):
        raise WorkspaceFailedError(f"{program} gave no login of {registry} that can be read") from None
    return {"identitytoken": secret} if user == TOKEN_USER else {"username": user, "password": secret}


def _host(registry: str) -> str:
    """Return the host of a registry, which logins name with or without scheme and path."""
    host = registry.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return "docker.io" if host == "index.docker.io" else host
