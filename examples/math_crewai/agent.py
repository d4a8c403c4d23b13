"""The math agent in CrewAI: one agent with a calculator, asked directly.

Where the model is, and the key for it, come from the environment, as always with OpenAI's client.
"""

import os

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")  # what it would tell its makers of every rollout
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from arithmetic import calculate, score
from crewai import LLM, Agent
from crewai.events.utils.console_formatter import set_suppress_console_output
from crewai.tools import tool
from openai import OpenAIError

set_suppress_console_output(True)

ROUNDS = 4
"""Most calls with the tool at hand; CrewAI then asks once more, without it."""

model = LLM(model=os.environ.get("MODEL", "policy"), max_tokens=48)


@tool("calculator")
def calculator(expression: str) -> str:
    """Evaluates arithmetic."""
    return calculate(expression)


def solve(task: dict) -> float:
    """Reward of one problem ``{"question": ..., "result": ...}``: 1 for the right answer, else 0."""
    solver = Agent(
        role="Solver",
        goal="Use the calculator, one step at a time. Then say answer: NUMBER",
        backstory="",
        tools=[calculator],
        llm=model,
        max_iter=ROUNDS,
        max_retry_limit=0,
    )
    try:
        done = solver.kickoff(task["question"])
    except ValueError as error:  # CrewAI's word for an answer it can do nothing with
        if isinstance(error.__cause__, OpenAIError):  # and for an endpoint that refuses
            raise
        return 0.0
    return score(done.raw, task["result"])
