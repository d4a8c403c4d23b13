"""Check that the agent's model calls contained the prompts: an unused prompt cannot be improved. Pure."""

from collections.abc import Collection, Mapping, Sequence

from lightningbus.optimize.feedback import RolloutResult
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.failures import describe_failures
from lightningbus.run.settings.optimize import PromptSettings


def check_prompts_used(
    prompts: Mapping[str, PromptSettings], used: Collection[str], num_calls: int, results: Sequence[RolloutResult]
) -> None:
    """Raise `UserError` for the first prompt that no model call contained.

    ``used``: names of prompts that some call had. ``num_calls``: model calls of all these rollouts.
    """
    unused = next((name for name in prompts if name not in used), None)
    if unused is None:
        return
    failures = describe_failures((result.outcome, result.error) for result in results)
    if not num_calls:
        raise UserError(f"none of {len(results)} rollouts made a model call: {failures or 'the agent asks no model'}")
    role = prompts[unused].role
    how = (
        f"as the whole system message of calls to policy:{role}"
        if role is not None
        else f"in system messages, by its exact text or between <!-- prompt:{unused} --> and <!-- /prompt -->"
    )
    ending = f"; {failures}" if failures else ""
    raise UserError(
        f"prompt {unused!r} is in no model call of {len(results)} rollouts ({num_calls} calls): "
        f"the gateway looks for it {how}{ending}"
    )
