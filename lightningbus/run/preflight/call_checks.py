"""Checks of an agent's model calls by the vLLM servers of its nodes, whose engines compute nothing."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from lightningbus.inference.engine.base import Engine
from lightningbus.inference.engine.vllm_command import list_parsers
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.chat_parts import ChatPart, list_parts
from lightningbus.run.preflight.chat_template import ChatTemplate
from lightningbus.run.preflight.scripted_engine import ModelCall, VllmStartError, find_refusals, scripted_vllm
from lightningbus.run.preflight.tool_parser_check import find_fitting_parsers
from lightningbus.runners.protocol.dialects.base import text_of
from lightningbus.runners.protocol.message_parts import SYSTEM_ROLES

TEMPLATE_ADVICE = "take a model whose template has it, or name one by --chat-template in inference.vllm_args"
PARSER_FLAG = "--tool-call-parser"
"""Named by vLLM where it refuses tools for want of a parser; some models need none."""
INSTRUCTING = (*SYSTEM_ROLES, "user")
"""Roles of messages that an agent writes."""
THOUGHT: dict[str, Any] = {"role": "assistant", "reasoning": "I think so.", "content": "Yes."}


class UnfitCallError(UserError):
    """A call that would fail, or whose model would not know of its tools."""


async def check_calls(
    calls: Sequence[ModelCall], nodes: Sequence[InferenceSettings], *, is_here: bool
) -> AsyncIterator[str]:
    """Yield a sentence for each part of the calls that a model does not read, and each node that cannot be checked.

    ``is_here``: whether the nodes start on this machine. Raises `UnfitCallError` if a node's vLLM refuses a call, or
    if a model would not know of a tool, and `VllmStartError` if vLLM does not start here.
    """
    asked_models: set[str] = set()
    for node in nodes:
        of_node = [call for call in calls if call.body.get("model") in {*node.models} - asked_models]
        asked_models.update(node.models)  # other nodes with these are its replicas
        if not of_node:
            continue
        if node.vllm_command is not None:
            yield f"{node.model_path}: a vllm_command starts its vLLM: what that refuses is not known here"
            continue
        try:
            async with scripted_vllm(node, node.models) as engine:
                async for sentence in _check_node(engine, node, of_node):
                    yield sentence
        except VllmStartError as error:
            if is_here:
                raise
            yield str(error)


async def _check_node(engine: Engine, node: InferenceSettings, calls: Sequence[ModelCall]) -> AsyncIterator[str]:
    template = ChatTemplate(engine)
    tried = [await _adapt(template, call) for call in calls]
    refusal = await anext(find_refusals(engine, tried), None)
    lacks_parser = refusal is not None and PARSER_FLAG in refusal and "tool" not in list_parsers(node)
    if lacks_parser:  # a refusal of all tools hides other faults
        bare = [ModelCall(call.path, {**call.body, "tool_choice": "none"}) if _offers(call) else call for call in tried]
        refusal = await anext(find_refusals(engine, bare), None)
    if refusal is not None:
        raise UnfitCallError(refusal)
    async for sentence in find_unread(template, calls, thinks="reasoning" in list_parsers(node)):
        yield f"{node.model_path}: {sentence}"
    model = str(calls[0].body["model"])
    if lacks_parser:
        raise UnfitCallError(await _advise_parser(engine, node, model))
    calls_tools = "tool" in list_parsers(node) and any(_offers(call) for call in calls)
    if calls_tools and (misfit := await find_misfit(engine, node, model)):
        yield misfit


def _offers(call: ModelCall) -> bool:
    """Return whether the model may call a tool in its answer."""
    return bool(call.body.get("tools")) and call.body.get("tool_choice") != "none"


async def _advise_parser(engine: Engine, node: InferenceSettings, model: str) -> str:
    """Say which tool parser a node without one needs."""
    names = " or ".join(map(repr, await find_fitting_parsers(engine, node, model) or ()))
    read_it = f"which can read a call as the template of {model!r} writes it"
    advice = f"set it to {names}, {read_it}" if names else "it is the parser of the model's own calls"
    return f"inference.tool_parser: vLLM refuses tools without one; {advice}"


async def find_misfit(engine: Engine, node: InferenceSettings, model: str) -> str:
    """Describe a tool parser that does not read the calls of its model's template; empty: it reads them.

    Raises `UnfitCallError` where another parser fits.
    """
    fitting = await find_fitting_parsers(engine, node, model)
    if fitting is None:
        return ""
    parser = node.tool_parser or node.find_vllm_argument("--tool-call-parser")
    problem = f"inference.tool_parser: {parser!r} does not read a call as the template of {model!r} writes it"
    if fitting:
        raise UnfitCallError(f"{problem}; {' or '.join(map(repr, fitting))} does")
    return f"{problem}, and no parser of vLLM does: the model's own calls may have another form"


async def find_unread(
    template: ChatTemplate, calls: Sequence[ModelCall], *, thinks: bool = False
) -> AsyncIterator[str]:
    """Yield a sentence for each part of the chats that their model does not read.

    ``thinks``: the model's thoughts are told apart from its answers, so an agent may send them back. Raises
    `UnfitCallError` for tools that are left out and that the messages do not name either.
    """
    known: set[str] = set()
    for chat in _list_longest(calls):
        unread = [part async for part in template.find_unread(chat)]
        if any(part.tool and not _is_named(part.tool, chat) for part in unread):
            names = ", ".join(repr(part.tool) for part in unread if part.tool)
            raise UnfitCallError(
                f"the chat template ignores tools: the model would not know of {names}; {TEMPLATE_ADVICE}"
            )
        words = [part.words for part in unread]
        if thinks:
            words += [each async for each in _find_unread_thoughts(template, chat)]
        for each in words:
            if each not in known:
                known.add(each)
                yield f"the model does not read {each}: its chat template leaves that out; {TEMPLATE_ADVICE}"


def _list_longest(calls: Sequence[ModelCall]) -> list[dict[str, Any]]:
    """List the chats that no other chat goes on from."""
    chats = [call.body for call in calls if "messages" in call.body]
    return [chat for at, chat in enumerate(chats) if not any(_goes_on(other, chat) for other in chats[at + 1 :])]


def _goes_on(chat: dict[str, Any], earlier: dict[str, Any]) -> bool:
    messages = earlier["messages"]
    others = [{name: each.get(name) for name in ("model", "tools")} for each in (chat, earlier)]
    return bool(others[0] == others[1] and chat["messages"][: len(messages)] == messages)


def _is_named(tool: str, chat: dict[str, Any]) -> bool:
    """Return whether the agent names a tool in its own words: it may describe its tools by itself."""
    texts = [text_of(message.get("content")) for message in chat["messages"] if message.get("role") in INSTRUCTING]
    return re.search(rf"(?<!\w){re.escape(tool)}(?!\w)", "\n".join(texts), re.IGNORECASE) is not None


async def _find_unread_thoughts(template: ChatTemplate, chat: dict[str, Any]) -> AsyncIterator[str]:
    """Yield words for thoughts that are left out once the agent sends the answer with them back."""
    turns: dict[str, list[dict[str, Any]]] = {"a user's next message": [THOUGHT, {"role": "user", "content": "Go on."}]}
    for tool in (chat.get("tools") or ())[:1]:
        function = {"name": tool["function"]["name"], "arguments": "{}"}
        call = {"id": "abcdefghi", "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "Done."}
        turns["a tool's result"] = [{**THOUGHT, "content": "", "tool_calls": [call]}, result]
    for words, turn in turns.items():
        for later, added in {"": turn, ", once another turn follows": [*turn, *turn]}.items():
            longer = {**chat, "messages": [*chat["messages"], *added], "continue_final_message": False}
            (part,) = (part for part in list_parts(longer) if _is_thought_of(part, len(chat["messages"])))
            if await template.is_unread(longer, part):
                yield f"the model's thoughts before {words}{later}"
                break


def _is_thought_of(part: ChatPart, index: int) -> bool:
    return part.path == ("messages", index, "reasoning")


async def _adapt(template: ChatTemplate, call: ModelCall) -> ModelCall:
    return ModelCall(call.path, await template.adapt(call.body)) if "messages" in call.body else call
