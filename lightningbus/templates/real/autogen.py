"""An agent in AutoGen with one tool, a calculator.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
import re

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

SYSTEM = "Use the calculator. Then say only the number."
MODEL_INFO = {
    "function_calling": True, "json_output": False, "vision": False, "family": "unknown", "structured_output": False,
}  # fmt: skip
model = OpenAIChatCompletionClient(model=os.environ.get("MODEL", "policy"), max_tokens=512, model_info=MODEL_INFO)


def calculate(left: int, sign: str, right: int) -> str:
    """Calculate a sum (+), a difference (-) or a product (*)."""
    results = {"+": left + right, "-": left - right, "*": left * right}
    return str(results.get(sign, "unknown sign"))


async def solve(task: dict) -> float:
    """Answer one task, the ``input`` of its line in tasks.jsonl. Return its reward: 1 for the right result, else 0."""
    agent = AssistantAgent("solver", model, tools=[calculate], system_message=SYSTEM, max_tool_iterations=4)
    result = await agent.run(task=task["question"])
    numbers = re.findall(r"-?\d+", result.messages[-1].to_text())
    return float(numbers[-1:] == [task["answer"]])
