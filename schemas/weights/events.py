"""Events about weights: manifests and broadcasts of versions, release decisions, swap locks, activations."""

from typing import Annotated, Literal

from msgspec import Meta, field

from lightningbus.schemas.base import Event, Identifier, NonNegativeInt, PositiveInt, PositiveSeconds, SubjectToken

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
TransportName = Literal["bus", "file", "s3"]
Backend = Literal["nccl", "gloo"]
KvCacheOutcome = Literal["", "kept", "recomputed"]
FROZEN_VERSION = 0
"""Version of the weights in the model directory of a frozen node, which follows no versions."""


class Blob(Event, frozen=True, kw_only=True):
    """A named object in a bucket of the bus, with its digest."""

    bucket: SubjectToken
    name: Identifier
    size: NonNegativeInt
    sha256: Digest


class DeltaLink(Event, frozen=True, kw_only=True):
    """One version of a chain: the full file at its beginning, or the delta to the version before."""

    version: NonNegativeInt
    fingerprint: Fingerprint
    blob: Blob


class CanaryPrompt(Event, frozen=True, kw_only=True):
    """A fixed prompt, and the log-probabilities that the learner computes for it with a version."""

    ids: bytes
    """``u32[N]``: its tokens, at least two."""
    logprobs: bytes
    """``f32[N-1]``: natural log of the probability of each token after the first, given those before it."""


class CanarySpec(Event, frozen=True, kw_only=True):
    """The checks that a version must pass on one node before all nodes may serve it."""

    prompts: tuple[CanaryPrompt, ...]
    max_tokens: PositiveInt
    """Limit of the answer that is sampled for each prompt."""
    max_kl: float
    """k3 estimate of the divergence of engine and learner on the prompts' tokens, in nats per token."""
    min_entropy: float
    """Mean of -log p over sampled tokens, in nats per token."""
    max_entropy: float
    max_length_ratio: float
    """Largest ratio of the mean answer length to that of the version approved before, or its inverse."""
    max_difference: float | None = None
    """Largest mean distance of the log-probabilities of engine and learner, in nats per token.

    None: the version is on trial. Else the engine is: answers are not sampled, and their bounds do not count.
    """
    max_float32_difference: float | None = None
    """The same bound for an engine that computes in float32; None: ``max_difference``."""

    @property
    def is_engine_check(self) -> bool:
        """Whether the engine is on trial, not the version."""
        return self.max_difference is not None

    @property
    def title(self) -> str:
        """A name for the check that a version waits for."""
        return "the check of an engine" if self.is_engine_check else "its canary"


class BroadcastCapability(Event, frozen=True, kw_only=True):
    """The engine of a node, in its heartbeat, so that the learner can assign it ranks in a broadcast."""

    engine: SubjectToken
    """Id of the engine process: a restarted engine is in no group."""
    ranks: PositiveInt
    """Number of its workers; each takes part."""
    backends: tuple[str, ...]


class RankAssignment(Event, frozen=True, kw_only=True):
    """The ranks of one engine in a group, from ``rank`` on; 0 is the learner's."""

    node: str
    engine: SubjectToken
    rank: PositiveInt
    ranks: PositiveInt


class BroadcastPlan(Event, frozen=True, kw_only=True):
    """A broadcast of a version from the learner's memory into engines: see `lightningbus.bus.weights.collective`."""

    backend: Backend
    address: str
    """``host:port`` of the learner's rendezvous store."""
    group: SubjectToken
    """The same for the same participants: a group is created once and reused for later versions."""
    rendezvous_key: Identifier
    """Key of this version in the store."""
    participants: tuple[RankAssignment, ...]
    size: NonNegativeInt
    """Bytes of the full file."""
    rendezvous_timeout_seconds: PositiveSeconds
    """Seconds that a participant waits for the others."""

    @property
    def world_size(self) -> int:
        """Ranks of the group."""
        return 1 + sum(participant.ranks for participant in self.participants)


class WeightManifest(Event, frozen=True, kw_only=True):
    """Manifest of one version of a model's weights; the bytes are in its blobs.

    A delta holds the changes since ``parent``. Its ``chain`` leads to the parent from a full file, so that a node that
    has just started, or missed some versions, can restore this one.
    """

    run_id: SubjectToken
    model: SubjectToken
    version: NonNegativeInt
    parent: NonNegativeInt | None = None
    change: Annotated[float, Meta(ge=0)] | None = None
    """Relative change from ``parent``: the norm of the difference over the norm of its weights; None: unknown."""
    kind: Literal["full", "delta", "lora"] = "full"
    transport: TransportName = "bus"
    location: str = ""
    """Location of the blobs, unless on the bus: a directory, or ``s3://bucket/prefix``."""
    blobs: tuple[Blob, ...]
    chain: tuple[DeltaLink, ...] = ()
    """Versions before a delta, oldest first, starting with a full one."""
    fingerprint: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?$")] = ""
    """`lightningbus.schemas.weights.delta.fingerprint` of the full file: the same for every transport."""
    broadcast: BroadcastPlan | None = None
    """A broadcast to the nodes that were ready; every other node reads the blobs."""
    epoch: NonNegativeInt
    """Epoch of the learner that wrote it; a learner of an older epoch is fenced."""
    step: NonNegativeInt
    created_at_ns: NonNegativeInt
    canary: CanarySpec | None = None
    """Nodes serve the version only after a decision has approved it; None: at once."""


MAX_ACTOR_CHARS, MAX_REASON_CHARS = 200, 1000
"""Longest actor and longest reason of a decision."""


class ReleaseDecision(Event, frozen=True, kw_only=True):
    """A decision about a version: by the node that ran its canary, or by a person."""

    action: Literal["approved", "revoked", "pinned", "unpinned", "kept"]
    version: NonNegativeInt
    actor: Annotated[str, Meta(max_length=MAX_ACTOR_CHARS)]
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)] = ""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the canary; see `lightningbus.inference.weights.canary`."""
    decided_at_ns: NonNegativeInt


class ReleaseHistory(Event, frozen=True, kw_only=True):
    """The decisions on the versions of a model or a prompt; see `lightningbus.schemas.weights.release_policy`."""

    pinned: NonNegativeInt | None = None
    """The only version that is served."""
    kept: NonNegativeInt | None = None
    """The version whose files are kept: the best so far."""
    decisions: tuple[ReleaseDecision, ...] = ()
    """Oldest first; the last one is new in this event."""


class ReleaseState(ReleaseHistory, frozen=True, kw_only=True):
    """Decisions about the versions of a model."""

    model: SubjectToken


class SwapLockState(Event, frozen=True, kw_only=True):
    """The lock of a model's nodes: its holder swaps weights, and no other serving node of the model does so."""

    model: SubjectToken
    node: str
    released: bool = False
    acquired_at_ns: NonNegativeInt


class WeightsActivated(Event, frozen=True, kw_only=True):
    """A node has begun to serve a version."""

    node: str
    model: SubjectToken
    version: NonNegativeInt
    fetch_seconds: float
    """Time to fetch its bytes."""
    verify_seconds: float = 0.0
    """In addition: hashing, restoring the file from deltas, and checking it against the manifest."""
    pause_seconds: float
    """Pause of generation, in seconds."""
    kv_cache: KvCacheOutcome = ""
    """Fate of the KV cache of calls in flight; empty: the swap did not touch it."""
    activated_at_ns: NonNegativeInt
