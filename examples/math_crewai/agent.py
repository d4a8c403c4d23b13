"""The math agent in CrewAI: a crew of one, with a calculator.

Where the model is, and the key for it, come from the environment, as always with OpenAI's client.
"""

import os

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")  # what it would tell its makers of every rollout
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from arithmetic import calculate, score
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

ROUNDS = 4
"""Most model calls of one problem."""

model = LLM(model=os.environ.get("MODEL", "policy"), max_tokens=48)


@tool("calculator")
def calculator(expression: str) -> str:
    """Evaluates arithmetic."""
    return calculate(expression)


def solve(task: dict) -> float:
    """Reward of one problem ``{"question": ..., "result": ...}``: 1 for the right answer, else 0."""
    solver = Agent(
        role="Solver",
        goal="Use the calculator, one step at a time.",
        backstory="You do math.",
        tools=[calculator],
        llm=model,
        max_iter=ROUNDS,
        max_retry_limit=0,
    )
    work = Task(description=task["question"], expected_output="answer: NUMBER", agent=solver)
    said = Crew(agents=[solver], tasks=[work]).kickoff()
    return score(said.raw, task["result"])
