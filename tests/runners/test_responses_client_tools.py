"""Tools of the Responses API that the agent itself runs: functions for the model, items for the agent."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseApplyPatchToolCall, ResponseFunctionShellToolCall
from openai.types.responses.response_output_item import LocalShellCall
from pydantic import BaseModel

from lightningbus.bus.client import Bus
from lightningbus.runners.protocol.dialects.registry import APIS
from lightningbus.runners.protocol.token_history import TokenHistory
from tests.runners.conftest import ScriptedEngine
from tests.runners.test_coding_agents import called
from tests.runners.test_dialects import SAYING, opened

SHELL: dict[str, Any] = {"type": "shell", "environment": {"type": "local"}}
PATCH: dict[str, Any] = {"type": "apply_patch"}
LOCAL: dict[str, Any] = {"type": "local_shell"}
EXITED = {"stdout": "a\n", "stderr": "no b\n", "outcome": {"type": "exit", "exit_code": 1}}
TIMED_OUT = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}
SAMPLED = [
    (
        SHELL,
        ResponseFunctionShellToolCall,
        '{ "commands": ["ls a", "ls b"] ,"timeout_ms": 9}',
        {"output": [EXITED, TIMED_OUT], "max_output_length": 99},
        "a\nno b\n[exit code 1]\n[timed out]",
    ),
    (
        PATCH,
        ResponseApplyPatchToolCall,
        '{"type":"update_file", "path":"a", "diff":"@@\\n-a\\n+b"}',
        {"status": "failed", "output": "no such file"},
        "failed\nno such file",
    ),
    (PATCH, ResponseApplyPatchToolCall, '{"type":"delete_file",  "path":"a"}', {"status": "completed"}, "completed"),
    (LOCAL, LocalShellCall, '{"command": ["ls", "a"] , "working_directory": "b"}', {"output": "a"}, "a"),
]


def parse(**body: Any) -> dict[str, Any]:
    return APIS["responses"].parse({"model": "policy", "input": "x", **body}, TokenHistory()).call.body


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("tool", "form", "sampled", "output", "text"), SAMPLED)
async def test_a_call_comes_as_its_item_and_goes_back_as_sampled(
    bus: Bus,
    engine: ScriptedEngine,
    tool: Any,
    form: type[BaseModel],
    sampled: str,
    output: dict[str, Any],
    text: str,
    streamed: bool,
) -> None:
    kind = tool["type"]
    engine.script = called(kind, sampled)
    async with opened(bus) as desk:
        request: dict[str, Any] = {"model": "policy", "tools": [tool]}
        if streamed:
            async with desk.openai.responses.stream(**request, input="x") as stream:
                events: list[Any] = [event async for event in stream]
            (item,) = events[-1].response.output
            commands = [event.command for event in events if event.type == "response.shell_call_command.done"]
            assert commands == (json.loads(sampled)["commands"] if tool is SHELL else [])
            items = [event.item.type for event in events if event.type.startswith("response.output_item")]
            assert items == [f"{kind}_call"] * 2
        else:
            (item,) = (await desk.openai.responses.create(**request, input="x")).output
        sent_back = form.model_validate(item.model_dump(), strict=True).model_dump()
        engine.script = SAYING
        result = {"type": f"{kind}_call_output", "call_id": "call_1", **output}
        await desk.openai.responses.create(**request, input=[{"role": "user", "content": "x"}, sent_back, result])
    first, second = engine.requests
    assert [each["function"]["name"] for each in first["tools"]] == [kind]
    _, answer, result = second["messages"]
    assert answer["tool_calls"][0]["function"] == {"name": kind, "arguments": sampled}
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": text}


@pytest.mark.parametrize(
    ("tool", "form"),
    [(SHELL, ResponseFunctionShellToolCall), (PATCH, ResponseApplyPatchToolCall), (LOCAL, LocalShellCall)],
)
@pytest.mark.parametrize(
    "arguments", ["", "ls", "[]", "null", '{"commands": []}', '{"commands": [1], "command": 2}', '{"type": "move"}']
)
def test_malformed_arguments_are_an_item_that_fails_in_the_agent(
    tool: Any, form: type[BaseModel], arguments: str
) -> None:
    dialect: Any = APIS["responses"].parse({"model": "policy", "input": "x", "tools": [tool]}, TokenHistory())
    function = {"name": tool["type"], "arguments": arguments}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
    choice = {"message": message, "finish_reason": "tool_calls"}
    (item,) = dialect.answer({"id": "chatcmpl-1", "choices": [choice]})["output"]
    form.model_validate(item, strict=True)
    assert arguments in json.dumps(item).replace("\\", "")


def test_a_call_of_another_model_is_read() -> None:
    operation = {"type": "delete_file", "path": "a"}
    items = [
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": None}},
        {"type": "apply_patch_call", "call_id": "d", "status": "completed", "operation": operation},
        {"type": "shell_call_output", "call_id": "c", "output": [{**EXITED, "stderr": ""}]},
        {"type": "apply_patch_call_output", "call_id": "d", "status": "completed", "output": None},
        {"type": "local_shell_call_output", "id": "e", "output": "b"},
    ]
    answer, *outputs = parse(input=items)["messages"]
    assert [call["function"] for call in answer["tool_calls"]] == [
        {"name": "shell", "arguments": '{"commands": ["ls"]}'},
        {"name": "apply_patch", "arguments": json.dumps(operation)},
    ]
    assert [(output["tool_call_id"], output["content"]) for output in outputs] == [
        ("c", "a\n[exit code 1]"),
        ("d", "completed"),
        ("e", "b"),
    ]


def test_tools_of_one_name_are_told_apart() -> None:
    function = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
    for tools in ([function, SHELL], [SHELL, function]):
        names = [tool["function"]["name"] for tool in parse(tools=tools)["tools"]]
        assert names[0] == "shell" and names[1] == f"{tools[1]['type']}__shell"
        items = [
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "function_call", "call_id": "d", "name": "shell", "arguments": "{}"},
        ]
        (answer,) = parse(tools=tools, input=items)["messages"]
        called_names = [call["function"]["name"] for call in answer["tool_calls"]]
        assert called_names == (names[::-1] if tools[0] is function else names)


@pytest.mark.parametrize(
    ("choice", "names", "chosen"),
    [
        ({"type": "shell"}, ["shell", "apply_patch"], {"type": "function", "function": {"name": "shell"}}),
        ({"type": "allowed_tools", "mode": "required", "tools": [PATCH]}, ["apply_patch"], "required"),
    ],
)
def test_a_tool_is_chosen_by_its_type(choice: Any, names: list[str], chosen: Any) -> None:
    body = parse(tools=[SHELL, PATCH], tool_choice=choice)
    assert ([tool["function"]["name"] for tool in body["tools"]], body["tool_choice"]) == (names, chosen)


def test_skills_of_a_shell_are_told() -> None:
    skills = [{"name": "pdf", "description": "reads PDF", "path": "/skills/pdf"}]
    (tool,) = parse(tools=[{"type": "shell", "environment": {"type": "local", "skills": skills}}])["tools"]
    assert "pdf (/skills/pdf): reads PDF" in tool["function"]["description"]


@pytest.mark.parametrize("where", ["container_auto", "container_reference"])
def test_a_shell_elsewhere_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match=f"environment '{where}' runs at the vendor, not here"):
        parse(tools=[{"type": "shell", "environment": {"type": where}}])
    (tool,) = parse(tools=[{"type": "shell"}])["tools"]
    assert tool["function"]["name"] == "shell"
