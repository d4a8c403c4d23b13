"""The prompt versions that an agent's rollouts have now."""

from collections.abc import Mapping
from dataclasses import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.prompts import PromptRegistry, find_prompt_names
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.schemas.prompts import PromptVersion


async def read_prompt_versions(bus: Bus, agent: str) -> dict[str, int]:
    """Return the version in use of each prompt of the agent, 0 where none of the others may be used.

    Empty where nobody has published a version of a prompt. Raises `lightningbus.bus.errors.BusError`.
    """
    return {name: prompt.version for name, prompt in (await read_prompts_in_use(bus, agent)).items()}


async def read_prompts_in_use(bus: Bus, agent: str) -> dict[str, PromptVersion]:
    """Return the versions in use with their texts, see `read_prompt_versions`."""
    prompts = {}
    for name in await find_prompt_names(bus):
        registry = PromptRegistry(bus, name)
        used = (await registry.resolve_target()).serve
        if used is None:  # what the agent itself sends is always there to go back to
            used = next((version for version in await registry.read_all() if version.version == 0), None)
        if used is not None and used.agent == agent:
            prompts[name] = used
    return prompts


async def pin_versions(bus: Bus, request: RolloutRequest, weight_versions: Mapping[str, int]) -> RolloutRequest:
    """Return the request under these weight versions, with the prompts in use; raises as `read_prompt_versions`."""
    prompts = await read_prompt_versions(bus, request.agent)
    return replace(request, weight_versions=weight_versions, prompt_versions=prompts)
