"""The agents that `lightningbus init` writes, each in its framework, against a scripted endpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lightningbus.run.projects.template import FRAMEWORKS
from tests.examples.endpoint import Endpoint
from tests.lightningbus.test_init import run_agent, write_project

EXAMPLE_OF = {"langgraph": "text_to_sql", "openai-agents": "retrieval_qa", "autogen": "math_tools", "node": "math_node"}
"""The example whose environment has a framework's packages."""


@pytest.mark.parametrize("framework", list(FRAMEWORKS))
async def test_the_agent_of_a_framework_calls_the_tool_and_is_rewarded(
    framework: str, tmp_path: Path, environment: Callable[[str], Path]
) -> None:
    example = environment(EXAMPLE_OF[framework])
    program = "node" if framework == "node" else str(example / ".venv" / "bin" / "python")
    project = write_project(framework, tmp_path / "first")
    if framework == "node":
        (project / "node_modules").symlink_to(example / "node_modules")

    def answer(messages: list[dict[str, object]]) -> dict[str, object]:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": f"it is {messages[-1]['content']}"}
        call = {"name": "calculate", "arguments": '{"left": 12, "sign": "*", "right": 12}'}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        }

    async with Endpoint(answer).serving() as endpoint:
        assert float(await run_agent([program], project, endpoint.url)) == 1.0
        assert len(endpoint.requests) == 2
