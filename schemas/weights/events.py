"""Events about weights: versions and how they are sent, what is decided of them, and who serves them."""

from typing import Annotated, Literal

from msgspec import Meta, field

from schemas.base import Event, Identifier, NonNegativeInt, PositiveInt, PositiveSeconds, SubjectToken

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
TransportName = Literal["blob", "file", "s3"]
Backend = Literal["nccl", "gloo"]


class Blob(Event, frozen=True, kw_only=True):
    """A named object in a bucket of the bus, with what it must hash to."""

    bucket: SubjectToken
    name: Identifier
    size: NonNegativeInt
    sha256: Digest


class DeltaLink(Event, frozen=True, kw_only=True):
    """One version of a chain: the whole file it begins with, or what changed since the version before."""

    version: NonNegativeInt
    fingerprint: Fingerprint
    blob: Blob


class CanaryPrompt(Event, frozen=True, kw_only=True):
    """A fixed prompt, and what the learner makes of it under a version."""

    ids: bytes
    """``u32[N]``: its tokens, at least two."""
    logprobs: bytes
    """``f32[N-1]``: natural log of the probability of each token after the first, given those before it."""


class CanarySpec(Event, frozen=True, kw_only=True):
    """What a version has to show on one node before it is released to all."""

    prompts: tuple[CanaryPrompt, ...]
    max_tokens: PositiveInt
    """Longest answer that is sampled to each prompt."""
    max_kl: float
    """k3 estimate of the divergence of engine and learner on the prompts' tokens, in nats per token."""
    min_entropy: float
    """Mean of -log p over sampled tokens, in nats per token."""
    max_entropy: float
    max_length_ratio: float
    """Mean length of the answers against that of the version released before, either way."""


class BroadcastCapability(Event, frozen=True, kw_only=True):
    """What a node's heartbeat says of its engine, so that it may be given a seat in a broadcast."""

    engine: SubjectToken
    """This life of it: an engine that was started again is in no group any more."""
    ranks: PositiveInt
    """Its workers, each of which takes part."""
    backends: tuple[str, ...]


class RankAssignment(Event, frozen=True, kw_only=True):
    """The ranks of one engine in a group, from ``rank`` on; 0 is the learner's."""

    node: str
    engine: SubjectToken
    rank: PositiveInt
    ranks: PositiveInt


class BroadcastPlan(Event, frozen=True, kw_only=True):
    """A broadcast of a version from the learner's memory into engines: see `bus.weights.collective`."""

    backend: Backend
    address: str
    """``host:port`` of the store on the learner where all meet."""
    group: SubjectToken
    """The same for the same seats: a group is made once and kept over versions."""
    rendezvous_key: Identifier
    """Of this version, in the store."""
    participants: tuple[RankAssignment, ...]
    size: NonNegativeInt
    """Bytes of the whole file."""
    rendezvous_timeout_seconds: PositiveSeconds
    """How long who has come waits for the others."""

    @property
    def world_size(self) -> int:
        """Ranks of the group."""
        return 1 + sum(seat.ranks for seat in self.participants)


class WeightManifest(Event, frozen=True, kw_only=True):
    """Manifest of one version of a model's weights; the bytes are in its blobs.

    A delta is what changed since ``parent``. Its ``chain`` leads there from a whole file, so that whoever has just
    come, or missed some versions, can put this one together.
    """

    run_id: SubjectToken
    model: SubjectToken
    version: NonNegativeInt
    parent: NonNegativeInt | None = None
    kind: Literal["full", "delta", "lora"] = "full"
    transport: TransportName = "blob"
    location: str = ""
    """Where the blobs are, unless on the bus: a directory, or ``s3://bucket/prefix``."""
    blobs: tuple[Blob, ...]
    chain: tuple[DeltaLink, ...] = ()
    """Of a delta: the versions before it, oldest first, from a whole one on."""
    fingerprint: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?$")] = ""
    """`schemas.weights.delta.fingerprint` of the whole file: the same, however it was sent."""
    broadcast: BroadcastPlan | None = None
    """Beside the blobs, a way for those who were ready: whoever cannot take it, or not now, has the blobs."""
    epoch: NonNegativeInt
    """Which life of the learner wrote it; a learner of an older epoch is fenced off."""
    step: NonNegativeInt
    created_at_ns: NonNegativeInt
    canary: CanarySpec | None = None
    """It is served by nobody before a decision has released it; None: at once."""


MAX_ACTOR_CHARS, MAX_REASON_CHARS = 200, 1000
"""Of a decision, in characters."""


class ReleaseDecision(Event, frozen=True, kw_only=True):
    """A word about which versions are served: by the node that tried one, or by a person."""

    action: Literal["released", "revoked", "pinned", "unpinned"]
    version: NonNegativeInt
    actor: Annotated[str, Meta(max_length=MAX_ACTOR_CHARS)]
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)] = ""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of a trial; see `inference.weights.canary`."""
    decided_at_ns: NonNegativeInt


class ReleaseState(Event, frozen=True, kw_only=True):
    """Which versions of a model may be served; see `schemas.weights.release_policy`."""

    model: SubjectToken
    pinned: NonNegativeInt | None = None
    """Exactly this one is served."""
    decisions: tuple[ReleaseDecision, ...] = ()
    """Oldest first; the last is what this event adds."""


class SwapLockState(Event, frozen=True, kw_only=True):
    """A node swaps, and no other of its model that serves does so now; or its turn is over."""

    model: SubjectToken
    node: str
    released: bool = False
    acquired_at_ns: NonNegativeInt


class WeightsActivated(Event, frozen=True, kw_only=True):
    """A node serves a version from now on."""

    node: str
    model: SubjectToken
    version: NonNegativeInt
    fetch_seconds: float
    """Until its bytes were here."""
    verify_seconds: float = 0.0
    """Beside that: hashing them, putting the file together, and holding it to the manifest."""
    pause_seconds: float
    """How long generation stood still."""
    activated_at_ns: NonNegativeInt
