"""A model call while it is answered: what its record says beside the answer."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.recording.attempt import AttemptRecorder


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A request and when it came; ``parent`` is the agent's span, or empty."""

    request: ChatRequest
    parent: str
    prompt_versions: Mapping[str, int]
    started_ns: int = field(default_factory=time.time_ns)

    def record(
        self, recorder: AttemptRecorder, choices: Iterable[SampledChoice], last_token_ns: int, node: str = ""
    ) -> None:
        """Record the choices of its answer.

        The call ends at ``last_token_ns`` (0: now), before the agent had the answer: what the agent does next, such as
        giving a reward, starts later.
        """
        request, ended_ns = self.request.to_record(), max(last_token_ns or time.time_ns(), self.started_ns)
        for choice in choices:
            recorder.add_call(
                choice,
                node=node,
                role=self.request.role,
                request=request,
                parent=self.parent,
                prompt_versions=self.prompt_versions,
                started_ns=self.started_ns,
                ended_ns=ended_ns,
            )
