"""A place for an agent process, and the rollout that is in it."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lightningbus.common.client_variables import CLIENTS
from lightningbus.runners.gateway.admission import Admission
from lightningbus.runners.protocol.prompts import PromptChoice
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.tasks import Task


@dataclass(frozen=True, slots=True)
class ActiveRollout:
    """The attempt in a slot, its task, and when it must be over."""

    recorder: AttemptRecorder
    task: Task
    deadline: float
    prompts: tuple[PromptChoice, ...] = ()
    """The prompts that its calls get."""
    _open_calls: set["asyncio.Task[None]"] = field(default_factory=set)

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Register a model call while it is answered, until it is recorded."""
        task = asyncio.current_task()
        assert task is not None
        self._open_calls.add(task)
        try:
            yield
        finally:
            self._open_calls.discard(task)

    async def end_calls(self) -> None:
        """Cut and record all open answers: the agent has ended, and reads no more."""
        calls = set(self._open_calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)


@dataclass
class Slot:
    """One place for an agent process. All requests of that process belong to its present rollout."""

    number: int
    base_url: str = ""
    key: str = ""
    rollout: ActiveRollout | None = None
    admission: Admission = field(default_factory=Admission)
    decoding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a body of its agent's is decoded: one of each slot, so that no slot waits for all of another's."""

    def begin(
        self, recorder: AttemptRecorder, task: Task, deadline: float, prompts: tuple[PromptChoice, ...] = ()
    ) -> None:
        """Attribute calls of this slot to the attempt from now on; ``deadline`` is in the event loop's time."""
        self.rollout = ActiveRollout(recorder, task, deadline, prompts)

    def end(self) -> None:
        """Refuse calls until the next attempt begins."""
        self.rollout = None

    def environment(self) -> dict[str, str]:
        """Build the standard variables of a new agent process; the key of the one before becomes void.

        The key is per process, not per rollout: an agent may make its client once and keep it.
        """
        self.key = f"lb-{secrets.token_urlsafe(24)}"
        return {
            **{each.base_url: f"{self.base_url}{each.path}" for each in CLIENTS},
            **{each.key: self.key for each in CLIENTS},
            "OPENAI_API_BASE": f"{self.base_url}/v1",  # the former name, which some frameworks still use
            # By these names agents of Agent Lightning 1.0 find the same.
            "AGL_OPENAI_BASE_URL": f"{self.base_url}/v1",
            "AGL_EVENT_URL": f"{self.base_url}/events",
            "AGL_KEY": self.key,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{self.base_url}/otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            # Needs no escape: LangSmith sends what stands here as it is.
            "OTEL_EXPORTER_OTLP_HEADERS": f"x-api-key={self.key}",
        }
