"""Settings that all roles share."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class RoleSettings(BaseModel):
    """Settings that all roles share."""

    model_config = ConfigDict(extra="forbid")

    health_address: Annotated[
        str | None, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)
    ] = Field(
        default=None,
        pattern=r"^(\S+:)?\d{1,5}$",
        description="address of /healthz, /readyz and /metrics, as 9464 (on loopback) or 0.0.0.0:9464; 0 takes a free "
        "port, which the log names; default: none",
    )


KvCachePolicy = Literal["auto", "keep", "recompute"]
"""Handling of the KV cache of requests in flight during a swap of weights."""


class ModelRoleSettings(RoleSettings):
    """Settings that roles with a model share: their packages are large."""

    python_executable: Path | None = Field(
        default=None,
        description="interpreter with which `up` and `train` start this role, of an environment with lightningbus and "
        "the role's packages; default: the one running them",
    )


def parse_address(health: str) -> tuple[str, int]:
    """Split `RoleSettings.health_address` into host and port."""
    host, _, port = health.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)
