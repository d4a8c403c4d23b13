"""Events about prompts: the versions of each, and which may be used."""

from hashlib import sha256
from typing import Annotated

from msgspec import Meta

from lightningbus.schemas.base import Event, NonNegativeInt, RoleName, SubjectToken
from lightningbus.schemas.weights.events import Digest, ReleaseHistory

MAX_PROMPT_CHARS = 200_000
PromptText = Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]


class PromptCanary(Event, frozen=True, kw_only=True):
    """The evaluation that a version must pass before it is used in training."""

    max_drop: float = 0.0
    """Largest drop of its mean reward on the held-out tasks, compared with the version used until then."""


class PromptVersion(Event, frozen=True, kw_only=True):
    """One version of a prompt. Version 0 is the text that the agent itself sends."""

    name: SubjectToken
    version: NonNegativeInt
    text: PromptText
    sha256: Digest
    """SHA-256 of the text in UTF-8."""
    agent: SubjectToken = "default"
    """The agent that sends it."""
    role: RoleName | None = None
    """The prompt is the whole system message of this role's calls; nil: wherever its text or its marks are found."""
    parent: NonNegativeInt | None = None
    """The version that it was made from."""
    run_id: SubjectToken | None = None
    """The optimisation that proposed it; nil: a person wrote it."""
    proposal_id: str = ""
    """The run's proposal that this version answers: a restarted run finds its answer by this."""
    created_at_ns: NonNegativeInt
    canary: PromptCanary | None = None
    """It is used only after a decision has approved it; nil: at once."""


class PromptReleaseState(ReleaseHistory, frozen=True, kw_only=True):
    """Decisions about the versions of a prompt."""

    name: SubjectToken


def digest_of(text: str) -> str:
    """Hash a prompt's text in UTF-8 with SHA-256, 64 hexadecimal digits."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
