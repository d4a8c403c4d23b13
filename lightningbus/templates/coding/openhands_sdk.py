"""OpenHands as an agent: it works in the current directory, a fresh copy of the task's repository.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
from pathlib import Path

os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"

from openhands.sdk import LLM, Agent, Conversation, LLMSummarizingCondenser, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

MAX_EVENTS = 80
"""Events of a conversation before OpenHands summarises the older ones."""


def solve(task: dict) -> dict:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the hidden tests."""
    key = SecretStr(os.environ["OPENAI_API_KEY"])
    model = {"model": "openai/policy", "base_url": os.environ["OPENAI_BASE_URL"], "api_key": key}
    agent = Agent(
        llm=LLM(usage_id="agent", **model),
        tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
        condenser=LLMSummarizingCondenser(llm=LLM(usage_id="condenser", **model), max_size=MAX_EVENTS, keep_first=2),
    )
    conversation = Conversation(agent=agent, workspace=str(Path.cwd()))
    try:
        conversation.send_message(task["prompt"])
        conversation.run()
        return {"status": conversation.state.execution_status.value}
    finally:
        conversation.close()
