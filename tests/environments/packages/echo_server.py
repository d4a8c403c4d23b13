"""Two servers of OpenEnv: one whose actions are text, and one that offers a tool."""

from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class EchoAction(Action):
    """What the model says."""

    message: str


class EchoObservation(Observation):
    """What it hears."""

    text: str


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """Wants to hear the seed, then done; each answer has a reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> EchoObservation:
        self._seed = seed
        self._state = State(episode_id=episode_id)
        return EchoObservation(text=f"Say {seed}.")

    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
        is_right = action.message == str(self._seed)
        return EchoObservation(text="Thanks." if is_right else "No.", reward=1.0 if is_right else -0.5, done=is_right)

    @property
    def state(self) -> State:
        return self._state


class ToolEnvironment(MCPEnvironment):
    """Adds numbers by a tool; every call has a reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("sums")

        @server.tool
        def add(left: int, right: int) -> int:
            """Add two integers."""
            return left + right

        super().__init__(server)
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        return Observation(metadata={"task": f"Add {seed} and 2."})

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        return self._with_reward(super().step(action, timeout_s=timeout_s, **more))

    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        return self._with_reward(await super().step_async(action, timeout_s=timeout_s, **more))

    def _with_reward(self, observation: Any) -> Any:
        if isinstance(observation, CallToolObservation):
            observation.reward = 0.25
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return self._state


app = create_fastapi_app(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=8)
tools = create_fastapi_app(ToolEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=8)
