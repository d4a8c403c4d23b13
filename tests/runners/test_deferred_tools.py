"""Tools that an agent finds by a search: their schema is text of the result, and the beginning of the prompt stays."""

import json
from typing import Any

import pytest

from lightningbus.runners.protocol.dialects.anthropic_request import chat
from lightningbus.runners.protocol.dialects.anthropic_tools import MessagesTools
from lightningbus.runners.protocol.token_history import TokenHistory

SCHEMA = {"type": "object", "properties": {"url": {"type": "string"}}}
SEARCH: dict[str, Any] = {"name": "ToolSearch", "input_schema": {"type": "object"}}
FETCH: dict[str, Any] = {"name": "WebFetch", "description": "Fetches.", "input_schema": SCHEMA, "defer_loading": True}
PLACEHOLDER = {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True}
BEGINNING = [
    {"role": "user", "content": "look it up"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "1", "name": "ToolSearch", "input": {"query": "web"}}],
    },
]


def refer_to(*names: str) -> dict[str, Any]:
    content = [{"type": "tool_reference", "tool_name": name} for name in names]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": content}]}


def convert(tools: list[dict[str, Any]], *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return chat(
        {"model": "policy", "messages": list(messages), "tools": tools, **more}, TokenHistory(), MessagesTools(tools)
    )


def test_a_tool_that_was_found_is_text_of_the_result_and_the_list_stays() -> None:
    before = convert([SEARCH, PLACEHOLDER], *BEGINNING[:1])
    after = convert([SEARCH, FETCH, PLACEHOLDER], *BEGINNING, refer_to("WebFetch"))
    assert after["tools"] == before["tools"]
    assert [tool["function"]["name"] for tool in after["tools"]] == ["ToolSearch"]
    assert after["messages"][:1] == before["messages"]
    result = after["messages"][2]["content"]
    assert json.loads(result)["function"] == {"name": "WebFetch", "description": "Fetches.", "parameters": SCHEMA}


def test_several_tools_are_found_line_by_line() -> None:
    other = {**FETCH, "name": "WebRead"}
    *known, unknown = convert([SEARCH, FETCH, other], *BEGINNING, refer_to("WebFetch", "WebRead", "Gone"))["messages"][
        2
    ]["content"].splitlines()
    assert [json.loads(line)["function"]["name"] for line in known] == ["WebFetch", "WebRead"]
    assert unknown == "The tool Gone is not among the tools of this request."


def test_a_deferred_tool_that_has_to_be_called_is_in_the_list() -> None:
    chosen = convert([SEARCH, FETCH], *BEGINNING[:1], tool_choice={"type": "tool", "name": "WebFetch"})
    assert [tool["function"]["name"] for tool in chosen["tools"]] == ["ToolSearch", "WebFetch"]


def test_a_request_whose_tools_are_all_deferred_is_refused() -> None:
    with pytest.raises(ValueError, match="all tools have defer_loading"):
        convert([FETCH], *BEGINNING[:1])


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "old_path"),
    ],
)
def test_a_tool_that_the_agent_runs_is_a_function(kind: str, name: str, field: str) -> None:
    (tool,) = convert([{"type": kind, "name": name}], *BEGINNING[:1])["tools"]
    assert tool["function"]["name"] == name and field in tool["function"]["parameters"]["properties"]


def test_a_tool_that_runs_at_the_vendor_is_refused_by_its_type() -> None:
    with pytest.raises(ValueError, match="a tool of type 'web_search_20250305' runs at the vendor, not here"):
        convert([{"type": "web_search_20250305", "name": "web_search"}], *BEGINNING[:1])
