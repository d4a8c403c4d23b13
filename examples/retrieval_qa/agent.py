"""Multi-hop questions, with the OpenAI Agents SDK and one tool: a search in passages.

Where the model is and the key for it come from the environment, as always with OpenAI's client; so does where spans
go, by the standard OTEL_* variables. Without them there are none: the SDK's own export to its vendor is off.
RETRIEVAL_URL says where `retrieval_server.py` searches.
"""

import asyncio
import functools
import os

import httpx2
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    RunContextWrapper,
    Runner,
    default_tool_error_function,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from scoring import reward

RETRIEVAL_URL = os.environ.get("RETRIEVAL_URL", "http://127.0.0.1:8401")
SEARCH_SECONDS = 60.0
PASSAGES = int(os.environ.get("PASSAGES", "2"))
"""Passages that a search gives."""
LENGTH = int(os.environ.get("LENGTH", "600"))
"""Characters of a passage that are shown."""
TURNS = int(os.environ.get("TURNS", "6"))
"""Most model calls of one question; MuSiQue's take up to four searches."""

provider = TracerProvider()
if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider, exclusive_processor=True)
else:
    set_tracing_disabled(True)


class SearchError(Exception):
    """The retrieval server does not answer: no fault of the model, so its rollout fails instead of ending with 0."""


@functools.cache
def retrieval() -> httpx2.AsyncClient:
    """One client for all searches."""
    return httpx2.AsyncClient(base_url=RETRIEVAL_URL, timeout=SEARCH_SECONDS)


def explain(context: RunContextWrapper[None], error: Exception) -> str:
    """What the model is told about a call of its own that failed."""
    if isinstance(error, SearchError):
        raise error
    return default_tool_error_function(context, error)


@function_tool(failure_error_function=explain)
async def search(query: str) -> str:
    """Find passages."""
    try:
        answer = await retrieval().post("/search", json={"query": query, "count": PASSAGES})
        answer.raise_for_status()
    except httpx2.HTTPError as error:
        raise SearchError(f"{RETRIEVAL_URL} does not search ({error!r}): is retrieval_server.py running?") from error
    return "\n".join(passage["text"][:LENGTH] for passage in answer.json()["passages"])


agent = Agent(
    name="solver",
    instructions="Search, then say <answer> ... </answer>",
    tools=[search],
    model=os.environ.get("MODEL", "policy"),
    model_settings=ModelSettings(max_tokens=int(os.environ.get("MAX_TOKENS", "512"))),
)


async def name_span(request) -> None:
    """Tells the endpoint which span a call belongs to."""
    propagate.inject(request.headers)


@functools.cache
def config() -> RunConfig:
    """One client for all questions; made with the first, since before it there need be no key."""
    client = AsyncOpenAI(http_client=DefaultAsyncHttpxClient(event_hooks={"request": [name_span]}))
    return RunConfig(
        model_provider=OpenAIProvider(openai_client=client), tool_not_found_behavior="return_error_to_model"
    )


async def solve(task: dict) -> float:
    """Reward of ``{"question", "answers"}``: 0.9 F1 + 0.1 form; 0 if it comes to no end."""
    try:
        done = await Runner.run(agent, task["question"], max_turns=TURNS, run_config=config())
    except (MaxTurnsExceeded, ModelBehaviorError, UnicodeError):  # the last: the SDK on a call with half a character
        return 0.0
    finally:
        await asyncio.to_thread(provider.force_flush)
    return reward(str(done.final_output), task["answers"])
