"""What the settings of all roles have in common."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class RoleSettings(BaseModel):
    """What the settings of all roles have in common."""

    model_config = ConfigDict(extra="forbid")

    health_address: Annotated[
        str | None, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)
    ] = Field(
        None,
        pattern=r"^(\S+:)?\d{1,5}$",
        description="where /healthz, /readyz and /metrics are answered, as 9464 (on loopback) or 0.0.0.0:9464; 0 "
        "takes a free port, which the log names; default: nowhere",
    )


def parse_address(health: str) -> tuple[str, int]:
    """Host and port of `RoleSettings.health_address`."""
    host, _, port = health.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)
