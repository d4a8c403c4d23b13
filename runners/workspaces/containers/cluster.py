"""Access to a cluster of Kubernetes: from inside a pod by its service account, else by a kubeconfig."""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from lightningbus.runners.workspaces.errors import WorkspaceFailedError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Address and credentials of a cluster's API server."""

    server: str
    namespace: str
    tls: ssl.SSLContext | bool
    token: str = ""
    token_file: Path | None = None
    """A file that has the token, as the cluster renews it."""

    def headers(self) -> dict[str, str]:
        """Build the headers of a request; raise OSError."""
        token = self.token_file.read_text(encoding="utf-8").strip() if self.token_file is not None else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def find_cluster(environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """Find the cluster of this process; raise `WorkspaceFailedError` where there is none."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    path = Path(environment.get("KUBECONFIG") or Path(environment.get("HOME", "/")) / ".kube" / "config")
    try:
        if host and (account / "token").exists():
            namespace = (account / "namespace").read_text(encoding="utf-8").strip()
            tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
            server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
            return ClusterAccess(server, namespace, tls, token_file=account / "token")
        if not path.exists():
            raise WorkspaceFailedError(
                f"there is no cluster: this is no pod with a service account, and there is no {path} (KUBECONFIG)"
            )
        return read_kubeconfig(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise WorkspaceFailedError(f"the credentials for Kubernetes cannot be read: {error}") from error


def read_kubeconfig(path: Path) -> ClusterAccess:
    """Read the current context of a kubeconfig; raise OSError, ValueError, or `WorkspaceFailedError`."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise WorkspaceFailedError(f"{path} is no kubeconfig")
    context = _find(config, path, "context", config.get("current-context"))
    cluster = _find(config, path, "cluster", context.get("cluster"))
    user = _find(config, path, "user", context.get("user")) if context.get("user") else {}
    for way in ("exec", "auth-provider", "username"):
        if way in user:
            raise WorkspaceFailedError(
                f"{path} has credentials of the kind {way!r}, which a runner cannot use: give it a token or a "
                "certificate, as `kubectl create token` makes"
            )
    token_file = path.parent / user["tokenFile"] if user.get("tokenFile") else None
    return ClusterAccess(
        str(cluster["server"]).rstrip("/"),
        str(context.get("namespace") or "default"),
        _make_tls(cluster, user, path.parent),
        str(user.get("token") or ""),
        token_file,
    )


def connect(access: ClusterAccess) -> aiohttp.ClientSession:
    """Make a session whose requests go to the API server."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls, limit=0))


def _find(config: Mapping[str, Any], path: Path, kind: str, name: Any) -> dict[str, Any]:
    for entry in config.get(f"{kind}s") or ():
        if entry.get("name") == name and isinstance(entry.get(kind), dict):
            section: dict[str, Any] = entry[kind]
            return section
    raise WorkspaceFailedError(f"{path} has no {kind} {name!r}")


def _make_tls(cluster: Mapping[str, Any], user: Mapping[str, Any], directory: Path) -> ssl.SSLContext | bool:
    if cluster.get("insecure-skip-tls-verify"):
        return False
    tls = ssl.create_default_context()
    if data := cluster.get("certificate-authority-data"):
        tls = ssl.create_default_context(cadata=base64.b64decode(data).decode())
    elif file := cluster.get("certificate-authority"):
        tls = ssl.create_default_context(cafile=str(directory / file))
    if user.get("client-certificate-data"):
        with tempfile.TemporaryDirectory() as folder:  # Python reads them from files alone
            for name in ("certificate", "key"):
                handle = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(handle, "wb") as target:
                    target.write(base64.b64decode(user[f"client-{name}-data"]))
            tls.load_cert_chain(f"{folder}/certificate", f"{folder}/key")
    elif user.get("client-certificate"):
        tls.load_cert_chain(str(directory / user["client-certificate"]), str(directory / user["client-key"]))
    return tls
