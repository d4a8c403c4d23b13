"""Choice of the model for a call, by the name in the request and the task's models of roles. Pure."""

from dataclasses import replace

from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.tasks import AUTO_MODEL, Task


def resolve_model(call: ChatRequest, task: Task) -> ChatRequest:
    """Set the model that answers the call: its role's, where the task names one, whatever precedes the role.

    Its role stays; ``auto`` is the task's model.
    """
    model = task.model if call.model == AUTO_MODEL else call.model
    return replace(call, model=task.role_models.get(call.role, model) if call.role else model)


def models_of(task: Task) -> frozenset[str]:
    """List the models that the agents of a task may call, whether or not a node serves them yet."""
    return frozenset({task.model, *task.role_models.values()})
