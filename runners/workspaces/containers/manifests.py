"""Manifests of a workspace in a cluster, and its state as the cluster reports it. Pure."""

import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from lightningbus.runners.workspaces.containers.engine import LABEL, ContainerSpec
from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError

CONTAINER, POLICY = "workspace", "lightningbus-workspaces"
REFUSED_REASONS = ("InvalidImageName", "ErrImageNeverPull")
FAILED_REASONS = ("ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError")
HAS_NO_NETWORK = """
import os, socket, sys, time
for _ in range(10):
    try:
        socket.create_connection((os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])), 2)
    except OSError:
        sys.exit(0)
    time.sleep(1)
print("the cluster's network plugin does not enforce network policies, so agents would reach its network")
sys.exit(1)
"""


def read_status(data: bytes) -> tuple[int, bytes]:
    """Read how a process ended; return its status, and the reason if it did not end by itself."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        status = json.loads(data)
        for cause in status.get("details", {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"]), b""
        if status.get("status") != "Success":
            return 0, str(status.get("message", "")).encode()
    return 0, b""


def read_pod(pod: Mapping[str, Any], image: str) -> tuple[str, str]:
    """Return the name of a pod whose container runs, else nothing and what it waits for.

    Raises `WorkspaceFailedError` for one that will never run, `WorkspaceRefusedError` if that is the task's doing.
    """
    status = pod.get("status", {})
    (container, *_) = status.get("containerStatuses") or [{}]
    state = container.get("state", {})
    if status.get("phase") == "Running" and "running" in state:
        return pod["metadata"]["name"], ""
    waiting = state.get("waiting", {})
    problem = f"{waiting.get('reason', '')}: {waiting.get('message', '')}".strip(": ")[:300]
    if waiting.get("reason") in REFUSED_REASONS:
        raise WorkspaceRefusedError(f"the image {image} cannot be used: {problem}")
    if waiting.get("reason") in FAILED_REASONS:
        raise WorkspaceFailedError(f"the image {image} does not start: {problem}")
    if status.get("phase") in ("Failed", "Succeeded"):
        ended = state.get("terminated", {})
        reason = f"{ended.get('reason', status.get('reason', ''))} {ended.get('message', '')}".strip()
        raise WorkspaceFailedError(f"the pod ended at once, with status {ended.get('exitCode')}: {reason[:300]}")
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            problem = problem or str(condition["message"])[:300]
    return "", problem


def job(spec: ContainerSpec, name: str, runner_name: str, pull_secret: str | None = None) -> dict[str, Any]:
    """Build a job with one container, which is not tried again, and removed once it has ended.

    ``pull_secret``: secret of the cluster with the login of the image's registry.
    """
    labels = {LABEL: re.sub(r"[^A-Za-z0-9-]", "-", runner_name)[:60].strip("-")}
    limits = {"memory": spec.memory_bytes and str(spec.memory_bytes), "cpu": spec.cpus and f"{spec.cpus:g}"}
    bounds = {kind: bound for kind, bound in limits.items() if bound}
    container = {
        "name": CONTAINER,
        "image": spec.image,
        "command": spec.first_command,
        "resources": {"limits": bounds, "requests": bounds},
        "securityContext": {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **({"imagePullSecrets": [{"name": pull_secret}]} if pull_secret else {}),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": math.ceil(spec.max_seconds),
            "ttlSecondsAfterFinished": 0,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def network_policy() -> dict[str, Any]:
    """Build the policy by which nothing reaches a workspace's pod, and it reaches nothing."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "podSelector": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]},
            "policyTypes": ["Ingress", "Egress"],
        },
    }
