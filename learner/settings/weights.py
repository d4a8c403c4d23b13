"""Settings of how weight versions reach the nodes."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lightningbus.schemas.weights.events import TransportName

S3_PLACE = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*/?")


class CanarySettings(BaseModel):
    """Test on one node that approves a version for all nodes, or revokes it."""

    model_config = ConfigDict(extra="forbid")

    prompts: Path = Field(
        description="JSONL of up to 32 fixed prompts, each a string or a chat as a list of messages; 256 tokens of "
        "each are used"
    )
    max_tokens: int = Field(64, ge=1, le=4096, description="longest answer that is sampled to each, at temperature 1")
    max_kl: float = Field(
        0.1, gt=0, description="k3 estimate of the divergence of engine and learner on the prompts, in nats per token"
    )
    min_entropy: float = Field(
        0.0, ge=0, description="of sampled tokens, in nats per token; 0: a policy may become certain"
    )
    max_entropy: float = Field(5.0, gt=0, description="of sampled tokens, in nats per token: beyond it is noise")
    max_length_ratio: float = Field(
        4.0, gt=1, description="mean length of the answers against the version approved before, longer or shorter"
    )


class BroadcastSettings(BaseModel):
    """Versions straight into the engines that are ready for them, beside the blobs that all can fetch."""

    model_config = ConfigDict(extra="forbid")

    backend: Literal["off", "nccl", "gloo"] = Field(
        "off",
        description="nccl: from this machine's GPU into the nodes'; gloo: by the CPUs; off: versions are fetched",
    )
    host: str = Field(
        "127.0.0.1",
        description="address of this machine that nodes reach, on a network of yours alone: who reaches it can keep "
        "engines from a version, and disturb them",
        pattern=r"^[A-Za-z0-9.-]{1,253}$",
    )
    port: int = Field(0, ge=0, le=65535, description="where nodes meet; 0: any free one")
    rendezvous_timeout_seconds: float = Field(
        10.0,
        gt=0,
        le=60,
        description="how long engines that have come wait, without sampling, for one that has not; then all of them "
        "fetch the version",
    )

    @field_validator("host")
    @classmethod
    def _one_address(cls, host: str) -> str:
        if host == "0.0.0.0":
            raise ValueError("broadcast needs the one address of this machine that nodes reach, not all it has")
        return host


class WeightSettings(BaseModel):
    """Transfer of weight versions to the nodes."""

    model_config = ConfigDict(extra="forbid")

    transport: TransportName = Field(
        "bus",
        description="bus: over the bus; file: in a directory that learner and nodes see under the same path; s3: "
        "S3-compatible storage, where both take credentials, region and endpoint from AWS_* of their environment",
    )
    location: str = Field("", description="file: the directory; s3: s3://bucket/prefix")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="what versions are rounded to, as nodes serve them; auto: what the model's files are in. The "
        "learner and its checkpoints keep float32",
    )
    full_interval: int = Field(
        10,
        ge=1,
        le=1000,
        description="versions from one whole file to the next; those between are sent as what changed, to the bit, "
        "where that is less than half; 1: all whole",
    )
    keep_best: bool = Field(
        False,
        description="the files of the version with the best held-out reward of a training job are never deleted, "
        "besides the last keep_weight_versions; `weights export --best` writes it, also when the run has ended",
    )
    canary: CanarySettings | None = Field(
        None, description="each version is tried on one node before the others follow; none: they follow at once"
    )
    broadcast: BroadcastSettings = BroadcastSettings()

    @model_validator(mode="after")
    def _place(self) -> Self:
        if self.transport == "bus" and self.location:
            raise ValueError("location is for the transports file and s3: the bus has its own")
        if self.transport == "file":
            if not self.location or "://" in self.location:
                raise ValueError("transport file needs location: a directory that learner and nodes see")
            self.location = str(Path(self.location).absolute())
        if self.transport == "s3" and not S3_PLACE.fullmatch(self.location):
            raise ValueError(
                "transport s3 needs location: s3://bucket/prefix, and nothing else in it: credentials and endpoint "
                "are taken from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL of the environment"
            )
        return self
