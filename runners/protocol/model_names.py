"""Choice of the model for a call, by the name in the request and the task's models of roles. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.tasks import AUTO_MODEL, Task


def resolve_model(call: ChatRequest, task: Task) -> ChatRequest:
    """Set the model that answers the call: its role's, where the task names one, whatever precedes the role.

    Its role stays; ``auto`` is the task's model.
    """
    model = task.model if call.model == AUTO_MODEL else call.model
    return replace(call, model=task.role_models.get(call.role, model) if call.role else model)


def apply_alias(name: str, aliases: Mapping[str, str], known: Collection[str]) -> str:
    """Return the model, with its role, that stands for a name which agents use; a known model's name is its own.

    The first pattern that fits counts, such as ``claude-haiku-*``.
    """
    if name.partition(":")[0] in known:
        return name
    return next((model for pattern, model in aliases.items() if fnmatchcase(name, pattern)), name)


def resolve_alias(call: ChatRequest, aliases: Mapping[str, str], known: Collection[str]) -> ChatRequest:
    """Set the model and role that stand for the name in a request; its body keeps the agent's name."""
    if not aliases:
        return call
    model, _, role = apply_alias(str(call.body["model"]), aliases, known).partition(":")
    return replace(call, model=model, role=role)


def models_of(task: Task) -> frozenset[str]:
    """List the models that the agents of a task may call, whether or not a node serves them yet."""
    return frozenset({task.model, *task.role_models.values()})
