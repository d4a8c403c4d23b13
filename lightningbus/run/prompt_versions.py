"""The prompt versions that an agent's rollouts have now."""

from bus.client import Bus
from bus.prompts import PromptRegistry, find_prompt_names


async def read_prompt_versions(bus: Bus, agent: str) -> dict[str, int]:
    """By prompt of the agent: the version in use, 0 where none of the others may be used.

    Empty where nobody has published a version of a prompt. Raises `bus.errors.BusError`.
    """
    versions = {}
    for name in await find_prompt_names(bus):
        registry = PromptRegistry(bus, name)
        serve = (await registry.resolve_target()).serve
        used = serve or next(iter(await registry.read_all()), None)
        if used is not None and used.agent == agent:
            versions[name] = serve.version if serve is not None else 0
    return versions
