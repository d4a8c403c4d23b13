"""A coding agent of the OpenHands SDK, as its own examples make one: a terminal, an editor, and a condenser."""

import os
import sys
from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation, LLMSummarizingCondenser, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

settings = {
    "model": "openai/policy",
    "base_url": os.environ["OPENAI_BASE_URL"],
    "api_key": SecretStr(os.environ["OPENAI_API_KEY"]),
}
agent = Agent(
    llm=LLM(usage_id="agent", **settings),
    tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
    condenser=LLMSummarizingCondenser(llm=LLM(usage_id="condenser", **settings), max_size=30, keep_first=2),
)
conversation = Conversation(agent=agent, workspace=str(Path.cwd()))
conversation.send_message(sys.argv[1])
conversation.run()
