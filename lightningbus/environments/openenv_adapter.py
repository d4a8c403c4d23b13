"""Environments of OpenEnv: a server that runs, by its URL, or a server's app, which is started here."""

import importlib
import json
from collections.abc import Iterator
from typing import Any

from openenv.core import GenericEnvClient

from .asgi_server import serve_app
from .seeds import seed_tasks

TOOL_ACTIONS = {"Action", "CallToolAction", "ListToolsAction"}
"""Titles of the schema of actions where an environment offers tools by the Model Context Protocol."""


class Adapter:
    """``http://HOST:PORT`` of a server, or ``module:app``.

    The model calls the environment's tools, if it offers some. Else it writes an action as a JSON object, or as text
    where an action has one required field. ``resets`` are arguments of `reset`, one task each; else tasks are seeds.
    """

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        known = {"prompt", "max_turns", "resets"}
        if unknown := set(arguments) - known:
            raise ValueError(f"no such argument: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        self._prompt: str = arguments.get("prompt", "")
        self._max_turns: int = arguments.get("max_turns", 30)
        self._resets: list[dict[str, Any]] | None = arguments.get("resets")
        self.is_endless = self._resets is None
        if name.startswith(("http://", "https://")):
            self._url = name.rstrip("/")
        else:
            module, _, attribute = name.partition(":")
            self._url = serve_app(getattr(importlib.import_module(module), attribute or "app"))

    def tasks(self, split: str) -> Iterator[dict[str, Any]] | None:
        """Yield arguments of `reset` as tasks."""
        if self._resets is None:
            return seed_tasks(split)
        if split != "train":
            return None
        return ({"id": str(number), "input": reset} for number, reset in enumerate(self._resets))

    async def rollout(self, task: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, Any]:
        """Play one episode; its reward is the sum of its steps' rewards."""
        from openai import AsyncOpenAI

        schema = await self._read_action_schema()
        async with (
            AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=None) as chat,
            GenericEnvClient(base_url=self._url) as environment,
        ):
            has_tools = schema.get("title") in TOOL_ACTIONS
            tools = await list_tools(environment) if has_tools else []
            result = await environment.reset(**task)
            messages: list[Any] = [{"role": "system", "content": self._prompt}] if self._prompt else []
            opening = show(result.observation) if has_tools else show(result.observation, schema)
            messages.append({"role": "user", "content": opening})
            rewards: list[float] = []
            options: dict[str, Any] = {"tools": tools} if tools else {}
            num_invalid = 0
            for _ in range(self._max_turns):
                if result.done:
                    break
                answer = await chat.chat.completions.create(model=model, messages=messages, **options)
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                actions, replies = read_actions(message, schema, has_tools)
                for action, reply in zip(actions, replies, strict=True):
                    if action is None:
                        num_invalid += 1
                        messages.append(reply | {"content": "That is no action."})
                        continue
                    result = await environment.step(action)
                    rewards.append(float(result.reward or 0.0))
                    messages.append(reply | {"content": show(result.observation)})
                    if result.done:
                        break
                if not actions:  # it calls no tool any more: that was its last word
                    break
        metrics = {"steps": len(rewards), "invalid_actions": num_invalid, "ended": float(result.done)}
        return {"reward": sum(rewards), "metrics": metrics}

    async def _read_action_schema(self) -> dict[str, Any]:
        import httpx

        async with httpx.AsyncClient(timeout=60) as http:
            response = await http.get(f"{self._url}/schema")
            response.raise_for_status()
            schema: dict[str, Any] = response.json()["action"]
            return schema


async def list_tools(environment: Any) -> list[dict[str, Any]]:
    """List the environment's tools in the format of OpenAI's clients."""
    listed = await environment.step({"type": "list_tools"})
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
            },
        }
        for tool in listed.observation["tools"]
    ]


def read_actions(
    message: Any, schema: dict[str, Any], has_tools: bool
) -> tuple[list[dict[str, Any] | None], list[dict[str, Any]]]:
    """Read the actions in an answer, None for an unreadable one, and the message that answers each. Pure."""
    if not has_tools:
        return [parse_action(message.content or "", schema)], [{"role": "user"}]
    calls = message.tool_calls or []
    actions: list[dict[str, Any] | None] = []
    for call in calls:
        arguments = parse_object(call.function.arguments)
        named = {"type": "call_tool", "tool_name": call.function.name, "arguments": arguments}
        actions.append(None if arguments is None else named)
    return actions, [{"role": "tool", "tool_call_id": call.id} for call in calls]


def parse_action(text: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Parse a JSON object within a text; else use the text where an action has one required field. Pure."""
    start, end = text.find("{"), text.rfind("}")
    action = parse_object(text[start : end + 1]) if start >= 0 else None
    required = schema.get("required", [])
    if action is None and len(required) == 1 and text.strip():
        return {required[0]: text.strip()}
    return action


def parse_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object, None if it is none. Pure."""
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def show(observation: Any, schema: dict[str, Any] | None = None) -> str:
    """Render an observation for the model, and at first the schema of the possible actions. Pure."""
    text = observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
    return (
        text
        if schema is None
        else f"{text}\n\nAnswer with an action, a JSON object of this schema: {json.dumps(schema)}"
    )
