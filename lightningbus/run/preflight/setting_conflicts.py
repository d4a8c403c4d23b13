"""Conflicts between parts of a run file, each as a sentence."""

from collections.abc import Iterator, Sequence

from lightningbus.common.name_suggestions import suggest_near_name
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.algorithm import TaskSelectionSettings
from lightningbus.learner.settings.learner import SHARED_SETTINGS, LearnerSettings
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.runners.protocol.request import SAMPLING_FIELDS, TOKEN_LIMITS


def find_differences(learners: Sequence[LearnerSettings]) -> Iterator[str]:
    """Yield the settings in which learners of one run differ but must agree, because they dispatch the same tasks."""
    first, *others = learners
    if others and any(each.task_selection != TaskSelectionSettings() for each in learners):
        yield "learners: task_selection is for a run with one learner: several dispatch the same tasks in one order"
    for other in others:
        for name in sorted({*SHARED_SETTINGS, "tasks"}):
            if getattr(other, name) != getattr(first, name):
                yield f"learners: {name} of {other.model!r} differs from that of {first.model!r}: a run has one"


def find_inconsistencies(settings: RunSettings, learner: LearnerSettings, heldout: EvalSettings) -> Iterator[str]:
    """Yield the settings of a run file that cannot work together, for one of its learners."""
    agents = {runner.agent_name for runner in settings.runners}
    named = [(f"learner.{setting}", agent) for setting, agent in learner.agents.items()]
    named += [("eval.agent", heldout.agent)] if heldout.tasks is not None else []
    named += [(f"eval.suites.{number}.agent", suite.agent) for number, suite in enumerate(heldout.suites)]
    if settings.optimize is not None and settings.optimizes_in_turns:
        named.append(("optimize.agent", settings.optimize.agent))
        if settings.optimize.model != settings.main_model:
            yield f"optimize.model: agents of this job call {settings.main_model!r}; leave it out, or name that one"
    for field, agent in named:
        if agent not in agents:
            yield f"{field}: no runner here takes tasks of {agent!r}"
    nodes = [node for node in settings.inference if learner.model in node.models]
    if not nodes:
        yield f"learner.model: no inference node here serves {learner.model!r}"
    if any(node.frozen for node in nodes):
        yield f"inference.frozen: a frozen node would ignore what the learner publishes of {learner.model!r}"
    rank = learner.lora.lora_rank
    if any(node.lora is not None and node.lora.rank < rank for node in nodes):
        yield f"inference.lora.rank: the learner's adapters are of rank {rank}"
    if not rank and any(node.lora is not None and len(node.models) > 1 for node in nodes):
        yield f"inference.lora.models: {learner.model!r} is trained in whole; set lora.lora_rank of its learner"
    for name in learner.sampling_params:
        if name not in SAMPLING_FIELDS and (near := suggest_near_name(name, SAMPLING_FIELDS)):
            yield f"learner.sampling_params.{name}: vLLM knows no such field; {near}"
    for name, limit, node in _list_token_limits(settings, learner):
        if limit >= (node.max_model_len or limit + 1):
            yield (
                f"learner.sampling_params.{name}: {limit} leaves no room for a prompt: max_model_len of a node is "
                f"{node.max_model_len}"
            )
    if heldout.has_turns and learner.staleness.admission == "unbounded":
        yield "eval.every: it needs staleness.admission bounded, or versions expire unevaluated"
    if settings.optimizes_in_turns and learner.staleness.admission == "unbounded":
        yield "optimize.every: it needs staleness.admission bounded, or versions expire amid a round"
    if learner.run != settings.name:
        yield f"learner.run: a job's run has its name, {settings.name!r}; leave it out"
    if not learner.max_steps:
        yield "learner.max_steps: 0 steps train nothing: give 1 or more, or measure a model by `lightningbus evaluate`"


def find_oddities(settings: RunSettings, learner: LearnerSettings) -> Iterator[str]:
    """Yield the settings of a learner that have no effect, or an unexpected one."""
    for name in learner.sampling_params:
        if name not in SAMPLING_FIELDS and not suggest_near_name(name, SAMPLING_FIELDS):
            yield f"learner.sampling_params.{name}: vLLM knows no such field"
    nodes = [node for node in settings.inference if learner.model in node.models]
    buffer = learner.algorithm.overlong_buffer
    longest = buffer.max_response_length if buffer is not None else 0
    lengths = [node.max_model_len for node in nodes if node.max_model_len is not None]
    if lengths and longest > min(lengths):
        setting = "learner.algorithm.overlong_buffer.max_response_length"
        yield f"{setting}: no answer has {longest} tokens: max_model_len of a node is {min(lengths)}"
    if not learner.lora.lora_rank and any(node.lora is not None for node in nodes):
        why = f"{learner.model!r} is trained in whole (lora.lora_rank: 0)"
        yield f"inference.lora: {why}: there are no adapters to hold"


def _list_token_limits(settings: RunSettings, learner: LearnerSettings) -> Iterator[tuple[str, int, InferenceSettings]]:
    """Yield each token limit of model calls with the nodes that serve models which a task may call."""
    models = {learner.main_model, *learner.role_models.values()}
    for name in TOKEN_LIMITS:
        limit = learner.sampling_params.get(name)
        if isinstance(limit, int):
            yield from ((name, limit, node) for node in settings.inference if models & set(node.models))
