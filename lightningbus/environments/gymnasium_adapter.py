"""Text environments of Gymnasium: the model reads an observation and writes an action, until the episode ends."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium import spaces

from .seeds import seed_tasks

NO_ACTION = "That is no action."


class Adapter:
    """``gymnasium.make(name, **make)``.

    A `Text` action is the model's answer. A `Discrete` action is the last number of the answer, or with ``actions`` the
    last of these names in it. An observation that is no text is shown as the environment renders it in ``ansi`` mode.
    """

    is_endless = True

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        known = {"make", "prompt", "actions", "max_turns", "max_tokens"}
        if unknown := set(arguments) - known:
            raise ValueError(f"no such argument: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        self._name = name
        self._make_arguments: dict[str, Any] = arguments.get("make", {})
        self._prompt: str = arguments.get("prompt", "")
        self._actions: list[str] = arguments.get("actions", [])
        self._max_turns: int = arguments.get("max_turns", 30)
        self._max_tokens: int | None = arguments.get("max_tokens")
        environment = self._make()
        space = environment.action_space
        if not isinstance(space, spaces.Text | spaces.Discrete):
            raise TypeError(f"actions of {space} cannot be written as text: Text and Discrete can")
        if self._actions and (not isinstance(space, spaces.Discrete) or len(self._actions) != space.n):
            raise ValueError(f"{len(self._actions)} names of actions do not fit {space}")
        environment.close()

    def tasks(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield seeds of `reset` as tasks."""
        return seed_tasks(split)

    async def rollout(self, task: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, Any]:
        """Play one episode; its reward is the sum of its steps' rewards."""
        from openai import AsyncOpenAI

        environment = await asyncio.to_thread(self._make)
        rewards: list[float] = []
        num_invalid, ended = 0, False
        limits: dict[str, Any] = {} if self._max_tokens is None else {"max_tokens": self._max_tokens}
        try:
            observation, _ = await asyncio.to_thread(environment.reset, seed=task["seed"])
            messages: list[Any] = [{"role": "system", "content": self._prompt}] if self._prompt else []
            messages.append({"role": "user", "content": self._show(environment, observation)})
            async with AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=None) as client:
                for _ in range(self._max_turns):
                    answer = await client.chat.completions.create(model=model, messages=messages, **limits)
                    text = answer.choices[0].message.content or ""
                    messages.append({"role": "assistant", "content": text})
                    action = self._read_action(environment.action_space, text)
                    if action is None:
                        num_invalid += 1
                        messages.append({"role": "user", "content": NO_ACTION})
                        continue
                    observation, reward, terminated, truncated, _ = await asyncio.to_thread(environment.step, action)
                    rewards.append(float(reward))
                    ended = terminated or truncated
                    if ended:
                        break
                    messages.append({"role": "user", "content": self._show(environment, observation)})
        finally:
            environment.close()
        metrics = {"steps": len(rewards), "invalid_actions": num_invalid, "ended": float(ended)}
        return {"reward": sum(rewards), "metrics": metrics}

    def _make(self) -> Any:
        environment = gymnasium.make(self._name, **self._make_arguments)
        if environment.render_mode is not None or "ansi" not in environment.metadata.get("render_modes", ()):
            return environment
        environment.close()
        return gymnasium.make(self._name, render_mode="ansi", **self._make_arguments)

    def _show(self, environment: Any, observation: Any) -> str:
        if isinstance(observation, str):
            return observation
        rendered = environment.render() if environment.render_mode == "ansi" else None
        return rendered if isinstance(rendered, str) else str(observation)

    def _read_action(self, space: Any, text: str) -> str | int | None:
        """Read the action in an answer, None if there is none; names are read in any case."""
        if isinstance(space, spaces.Text):
            return text
        if self._actions:
            positions = [text.lower().rfind(name.lower()) for name in self._actions]
            return int(space.start) + positions.index(max(positions)) if max(positions) >= 0 else None
        numbers = [int(digits) for digits in re.findall(r"-?\d+", text)]
        return numbers[-1] if numbers and space.contains(numbers[-1]) else None
