"""Protection of open ports: users, the API key of the nodes' gateways."""

import json
import os
import secrets
import tempfile
from pathlib import Path

from lightningbus.bus.errors import CredentialsError

KEY_BYTES = 32
MIN_KEY_CHARACTERS = 16
INFERENCE_API_KEY, CONF, SERVER_DIR = "inference-api.key", "users.conf", "server"
"""Names of the key, the server's configuration and its certificate's directory, as `lightningbus.bus.security.users`
writes them."""


def new_key() -> str:
    """Generate an inference API key."""
    return secrets.token_urlsafe(KEY_BYTES)


def read_key(path: Path, what: str = "inference API key") -> str:
    """Read a key, such as the inference API key. Raises `CredentialsError` in one sentence that never shows it."""
    key = read_secret(path, what).strip()
    if len(key) < MIN_KEY_CHARACTERS or not key.isascii() or any(not sign.isprintable() or sign == " " for sign in key):
        raise CredentialsError(
            f"{path} holds no {what}: {MIN_KEY_CHARACTERS} or more letters, digits and signs in one line"
        )
    return key


def bearer_header(key: str) -> dict[str, str]:
    """Build the headers of a request to a gateway; none without a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def has_bearer(key: str, authorization: str) -> bool:
    """Return whether an ``Authorization`` header has the key, compared in constant time."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == "bearer" and constant_time_equal(key, token.strip())


def constant_time_equal(key: str, candidate: str) -> bool:
    """Compare a key with a candidate in constant time; a header may hold bytes that are no text (aiohttp)."""
    return secrets.compare_digest(candidate.encode(errors="surrogateescape"), key.encode())


def write_secret(path: Path, content: str | bytes) -> None:
    """Write a new file atomically, readable only by its owner; raise FileExistsError rather than overwrite one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:  # mode 0600
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
        os.link(file.name, path)


def read_secret(path: Path, what: str) -> str:
    """Read a file's text; raise `CredentialsError` naming the file and what it should hold."""
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise CredentialsError(f"the {what} cannot be read: {path}: {error.strerror}") from None
    except ValueError:  # no text, or a path that is none
        raise CredentialsError(f"{str(path)!r} holds no {what}") from None


def include_directive(directory: Path, config: Path) -> str:
    """Build the line of a server's configuration that includes the users; raise `CredentialsError` without any."""
    users = directory / CONF
    if not users.exists():
        raise CredentialsError(
            f"{directory} holds no {CONF}: make it by `lightningbus bus create-users --out {directory}`"
        )
    # The server takes a path from where its configuration lies, an absolute one too.
    return f"include {json.dumps(os.path.relpath(users.resolve(), config.resolve()))}"


def has_tls(directory: Path) -> bool:
    """Return whether the users in ``directory`` connect over TLS."""
    return (directory / SERVER_DIR).exists()
