"""A math agent in AutoGen with one tool, a calculator.

Where the model is and the key for it come from the environment, as always with OpenAI's client; so does where
spans go, by the standard OTEL_* variables. AutoGen makes a span of each tool call, with an error status if it failed.
"""

import os

from arithmetic import calculate, score
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prompts import SYSTEM

ROUNDS = int(os.environ.get("ROUNDS", "4"))
"""Most model calls of one problem."""

provider = TracerProvider()
if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)

model = OpenAIChatCompletionClient(
    model=os.environ.get("MODEL", "policy"),
    max_tokens=int(os.environ.get("MAX_TOKENS", "48")),
    model_info={
        "function_calling": True,
        "json_output": False,
        "vision": False,
        "family": "unknown",
        "structured_output": False,
    },
)


def calculator(expression: str) -> str:
    """Evaluates arithmetic."""
    return calculate(expression)


async def solve(task: dict) -> float:
    """Reward of one problem ``{"question": ..., "result": ...}``: 1 for the right answer, else 0."""
    agent = AssistantAgent("solver", model, tools=[calculator], system_message=SYSTEM, max_tool_iterations=ROUNDS)
    try:
        done = await agent.run(task=task["question"])
    finally:
        provider.force_flush()
    return score(done.messages[-1].to_text(), task["result"])
