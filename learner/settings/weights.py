"""Settings of how weight versions reach the nodes."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lightningbus.schemas.weights.dtypes import AUTO, Dtype
from lightningbus.schemas.weights.events import TransportName

S3_PLACE = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*/?")


class CanarySettings(BaseModel):
    """Test on one node that approves a version for all nodes, or revokes it."""

    model_config = ConfigDict(extra="forbid")

    prompts: Path = Field(
        description="JSONL of up to 32 fixed prompts, each a string or a chat as a list of messages; 256 tokens of "
        "each are used"
    )
    max_tokens: int = Field(
        default=64, ge=1, le=4096, description="longest answer sampled to each prompt, at temperature 1"
    )
    max_kl: float = Field(
        default=0.1,
        gt=0,
        description="largest divergence of engine and learner on the prompts by the k3 estimate, in nats per token",
    )
    min_entropy: float = Field(
        default=0.0,
        ge=0,
        description="smallest entropy of sampled tokens, in nats per token; 0: a policy may become certain",
    )
    max_entropy: float = Field(
        default=5.0,
        gt=0,
        description="largest entropy of sampled tokens, in nats per token; a broken model samples noise",
    )
    max_length_ratio: float = Field(
        default=4.0,
        gt=1,
        description="largest ratio of the mean answer length to that of the last approved version, or its inverse",
    )


class BroadcastSettings(BaseModel):
    """Versions straight into the engines that are ready for them, beside the blobs that all can fetch."""

    model_config = ConfigDict(extra="forbid")

    backend: Literal["off", "nccl", "gloo"] = Field(
        default="off",
        description="way of broadcasting versions to the engines. nccl: from this machine's GPU to the nodes'; gloo: "
        "by the CPUs; off: versions are fetched",
    )
    host: str = Field(
        default="127.0.0.1",
        description="address under which nodes reach this machine, on a network of yours alone: anyone who reaches it "
        "can keep engines from a version, and disturb them",
        pattern=r"^[A-Za-z0-9.-]{1,253}$",
    )
    port: int = Field(
        default=0, ge=0, le=65535, description="port at which nodes meet for a broadcast; 0: any free one"
    )
    rendezvous_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=60,
        description="seconds that arrived engines wait, without sampling, for a missing one; then all of them fetch "
        "the version",
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
        default="bus",
        description="transport of weight versions. bus: over the bus; file: in a directory that learner and nodes see "
        "under the same path; s3: S3-compatible storage, where both take credentials, region and endpoint "
        "from AWS_* of their environment",
    )
    location: str = Field(
        default="", description="place of the weight files. transport file: the directory; s3: s3://bucket/prefix"
    )
    dtype: Dtype | Literal["auto"] = Field(
        default=AUTO,
        description="number format of the policy: published versions are rounded to it, and so is what the learner "
        "computes at; the optimiser and checkpoints keep float32. auto: the nodes' dtype in a run file, else that of "
        "the model's files, and bfloat16 for float32 files on a GPU",
    )
    merge_adapters: bool = Field(
        default=True,
        description="whether nodes add LoRA adapters to the weights and round the sum, which the learner then computes "
        "at; where it is not set, a run file's inference.lora decides",
    )
    full_interval: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="versions from one whole file to the next; those between are sent as bit-exact deltas where that "
        "saves more than half; 1: all whole",
    )
    keep_best: bool = Field(
        default=True,
        description="keep the files of the version with the best held-out reward of a training job, however old; "
        "`weights export --best` writes it, also when the run has ended",
    )
    canary: CanarySettings | None = Field(
        default=None, description="try each version on one node before the others load it; none: all load it at once"
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
