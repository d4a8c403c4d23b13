"""An agent in the OpenAI Agents SDK with one tool, a calculator.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
import re

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)

set_default_openai_api("chat_completions")  # works with any endpoint; the runner answers the Responses API too
set_tracing_disabled(True)  # the SDK's own export to its vendor


@function_tool
def calculate(left: int, sign: str, right: int) -> str:
    """Calculate a sum (+), a difference (-) or a product (*)."""
    results = {"+": left + right, "-": left - right, "*": left * right}
    return str(results.get(sign, "unknown sign"))


agent = Agent(
    name="solver",
    instructions="Use the calculator. Then say only the number.",
    tools=[calculate],
    model=os.environ.get("MODEL", "policy"),
    model_settings=ModelSettings(max_tokens=512),
)


async def solve(task: dict) -> float:
    """Answer one task, the ``input`` of its line in tasks.jsonl. Return its reward: 1 for the right result, else 0."""
    try:
        result = await Runner.run(agent, task["question"], max_turns=4)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return 0.0
    numbers = re.findall(r"-?\d+", str(result.final_output))
    return float(numbers[-1:] == [task["answer"]])
