"""The README.md of an exported model. Pure."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml

from lightningbus.export.base_model import BaseModel
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.results.results import Results
from lightningbus.run.settings.setting_change import SettingChange
from lightningbus.run.settings.sources import merge
from lightningbus.schemas.weights.events import WeightManifest
from lightningbus.store.reports.interval import estimate_interval

CARD = "README.md"
LICENSE_OF_BASE = "that of the base model"
SERVE = """\
python -m vllm.entrypoints.openai.api_server --model . --served-model-name {name} --dtype {dtype} --port 8000
"""
"""The server by its module: the CPU build of vLLM has no working `vllm` program."""
ASK = """\
curl http://127.0.0.1:8000/v1/{path} --json {body}
"""
LOAD = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
"""
LOAD_ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = {base}  # the base model: its name on the Hub, or its directory
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), ".")
tokenizer = AutoTokenizer.from_pretrained(".")
"""
CHAT = """\
messages = [{"role": "user", "content": QUESTION}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
"""
TEXT = """\
inputs = tokenizer(QUESTION, return_tensors="pt")
"""
MEMORY = "On a CPU, vLLM wants 92 % of the memory to be free; `--gpu-memory-utilization 0.4` takes less."
TEMPERATURE = (
    "The server samples as `generation_config.json` says unless a request says otherwise. Evaluations named greedy are "
    'at `"temperature": 0`.'
)
GENERIC_QUESTION = "what is 12 plus 7 ?"
"""Question of the example where no task is known."""
GENERATE = """\
inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
tokens = model.generate(**inputs, max_new_tokens=16, do_sample=False)  # greedy
print(tokenizer.decode(tokens[0][inputs["input_ids"].shape[1] :]))
"""
UNLISTED_SETTINGS = {"run", "model", "model_path", "tasks", "id", "checkpoint_dir", "health_address", "cpu_threads"}
"""Learner settings left out of the card: they describe the machine, or the card states them elsewhere."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Facts that the card is made of."""

    manifest: WeightManifest
    base: BaseModel
    """The model that training started from."""
    is_adapter: bool
    learner: Mapping[str, Any]
    """The learner's settings; empty if unknown."""
    results: Results | None
    dtype: str
    """Number format of the weights."""
    has_chat_template: bool
    packages: Mapping[str, str]
    """Versions of the libraries of the run, else of those that exported it."""
    base_digest: str = ""
    """Digest of the base model's files that the export used; empty: not known."""
    recorded_base_digest: str = ""
    """Digest of the base model's files as training started; empty: not on record."""
    task_digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the tasks, by what they are for."""
    selected_by: str = ""
    """Evaluation by which the version was selected as the best; empty: it was selected by its number."""
    is_better_than_start: bool = True
    """Whether a version that was selected as the best has a higher figure than version 0."""
    code_digest: str = ""
    """Digest of the code of the run's agents and functions; empty: not on record."""
    agents: Sequence[str] = ()
    """Entrypoints or commands of the agents that were trained."""
    merged_fingerprint: str = ""
    """XXH3-128 of the weights that adapters were merged into, in hexadecimal digits; empty: none were."""
    is_revoked: bool = False
    """Whether nodes may not serve this version."""
    question: str = ""
    """Text of a task that the model was trained on; empty: not known."""


def render_card(facts: CardFacts) -> str:
    """Render the card in Markdown, with the Hub's metadata at its top."""
    manifest = facts.manifest
    published = datetime.fromtimestamp(manifest.created_at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if weights := manifest.fingerprint or facts.merged_fingerprint:
        digests = {"xxh3-128 of the weights": f"`{weights}`"}
    else:
        digests = {"SHA-256 of the adapters": f"`{manifest.blobs[-1].sha256}`"}
    if facts.merged_fingerprint:
        digests["weights"] = (
            f"the base model's, with the version's adapters merged (SHA-256 `{manifest.blobs[-1].sha256}`)"
        )
    rows = {
        "base model": f"`{facts.base.name}`",
        "licence": facts.base.license.get("license_name", facts.base.license.get("license", LICENSE_OF_BASE)),
        "data type": facts.dtype,
        "run": f"`{manifest.run_id}`",
        "version": str(manifest.version),
        "training step": str(manifest.step),
        "published": published,
        **_provenance(facts),
        **digests,
        "libraries": ", ".join(f"{name} {number}" for name, number in facts.packages.items()),
    }
    parts = [
        f"---\n{yaml.safe_dump(_metadata(facts), sort_keys=False)}---",
        f"# {manifest.run_id}, version {manifest.version}",
        _describe_origin(facts),
        "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]),
        *_results(facts),
        *_usage(facts),
        *_settings(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _describe_origin(facts: CardFacts) -> str:
    version, run, base = facts.manifest.version, facts.manifest.run_id, facts.base.name
    if version == 0:
        return f"Weight version 0 of run `{run}` of lightningbus: the model `{base}` before the first training step."
    return f"Weight version {version} of run `{run}`, trained with lightningbus from `{base}`."


def _provenance(facts: CardFacts) -> dict[str, str]:
    """Return rows of what is on record of the training."""
    rows = {"state": "revoked: nodes do not serve it"} if facts.is_revoked else {}
    if facts.learner:
        learner = LearnerSettings.model_validate(facts.learner)
        rows |= {"algorithm": learner.algorithm.adv_estimator, "seed": str(learner.seed)}
    if facts.agents:
        rows["agent"] = ", ".join(f"`{agent}`" for agent in facts.agents)
    if facts.results is not None and facts.results.rollouts:
        rows["rollouts of the run"] = f"{facts.results.rollouts:,}"
    for each in facts.results.evaluations if facts.results is not None else ():
        bounds = each.interval or estimate_interval(
            each.mean_reward, each.standard_error, each.num_tasks, each.rollouts, is_success_rate=False
        )  # the results of an older version have none
        if each.version == facts.manifest.version:
            interval = f"95 % interval {bounds[0]:.4f} to {bounds[1]:.4f}, " if bounds is not None else ""
            name = f"held-out reward, {_describe_evaluation(each)}"
            rows[name] = f"{each.mean_reward:.4f} ({interval}{each.num_tasks} tasks)"
    if facts.selected_by and facts.results is not None:
        num = len({each.version for each in facts.results.evaluations if each.label == facts.selected_by})
        versions = f"{num} evaluated version{'s' * (num > 1)}"
        rows["selected"] = f"as the best of {versions} by {facts.selected_by}: its own figure is optimistic"
        if not facts.is_better_than_start:
            rows["selected"] += "; no trained version has a higher one than version 0"
    if facts.base_digest:
        rows["SHA-256 of the base model's file list"] = f"`{facts.base_digest}`"
    if facts.recorded_base_digest not in ("", facts.base_digest):
        rows["the same as training started"] = f"`{facts.recorded_base_digest}`: the files changed since"
    for name, digest in facts.task_digests.items():
        rows[f"SHA-256 of the {name} tasks (ids, inputs and labels)"] = f"`{digest}`"
    if facts.code_digest:
        rows["SHA-256 of the list of the agents' code"] = f"`{facts.code_digest}`"
    return rows


def _metadata(facts: CardFacts) -> dict[str, object]:
    """Build the metadata that the Hub reads."""
    of_hub = {"base_model": facts.base.name, "base_model_relation": "adapter" if facts.is_adapter else "finetune"}
    return {
        "library_name": "peft" if facts.is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        **(of_hub if facts.base.is_on_hub else {}),
        **facts.base.license,
        "tags": ["lightningbus", *(["reinforcement-learning"] if _has_rewards(facts.learner) else [])],
    }


def _has_rewards(learner: Mapping[str, Any]) -> bool:
    """Whether the learner trains on rewards, as far as its settings are known."""
    settings = LearnerSettings.model_validate(learner) if learner else None
    return settings is None or bool(settings.groups_per_step and settings.loss_weights.rl)


def _results(facts: CardFacts) -> list[str]:
    """Render held-out rewards of this version and of the first one; nothing where none were measured."""
    evaluations = facts.results.evaluations if facts.results is not None else []
    first = min((each.version for each in evaluations), default=0)
    rows = [_row(each) for each in evaluations if each.version in (first, facts.manifest.version)]
    if not rows:
        return []
    is_measured = any(each.version == facts.manifest.version for each in evaluations)
    notes = [] if is_measured else [f"Version {facts.manifest.version} itself was not evaluated."]
    table = ["| version | answers | mean reward | standard error | tasks |", "|---|---|---|---|---|", *rows]
    return ["## Results", "Rewards of evaluations, on the tasks that the run held out.", "\n".join(table), *notes]


def _describe_evaluation(evaluation: Evaluation) -> str:
    return evaluation.label + (f", by `{evaluation.reward}`" if evaluation.reward else "")


def _row(evaluation: Evaluation) -> str:
    error = f"{evaluation.standard_error:.4f}" if evaluation.standard_error is not None else ""
    cells = (
        evaluation.version,
        _describe_evaluation(evaluation),
        f"{evaluation.mean_reward:.4f}",
        error,
        evaluation.num_tasks,
    )
    return "".join(f"| {cell} " for cell in cells) + "|"


def _usage(facts: CardFacts) -> list[str]:
    """Build programs that run without changes in the directory of the model."""
    load = LOAD_ADAPTER.format(base=json.dumps(facts.base.name)) if facts.is_adapter else LOAD
    program = CHAT if facts.has_chat_template else TEXT
    question = program.replace("QUESTION", json.dumps(facts.question or GENERIC_QUESTION))
    asks = "It asks the first training task." if facts.question else "Its question is any: the tasks are not here."
    parts = ["## Use it", f"In this directory. {asks}", f"```python\n{load}{question}{GENERATE}```"]
    if not facts.is_adapter:
        serve = SERVE.format(name=facts.manifest.run_id, dtype=facts.dtype)
        parts += [f"Or with vLLM's server:\n\n```sh\n{serve}```", MEMORY]
        parts += [f"From another terminal:\n\n```sh\n{_render_request(facts)}```", TEMPERATURE]
    return parts


def _render_request(facts: CardFacts) -> str:
    """Render a greedy request for vLLM's server that asks what the program asks."""
    question = facts.question or GENERIC_QUESTION
    asks = {"messages": [{"role": "user", "content": question}]} if facts.has_chat_template else {"prompt": question}
    body = {"model": facts.manifest.run_id, **asks, "max_tokens": 16, "temperature": 0}
    path = "chat/completions" if facts.has_chat_template else "completions"
    return ASK.format(path=path, body=shlex.quote(json.dumps(body)))


def _settings(facts: CardFacts) -> list[str]:
    """Render the learner's settings of this version that differ from the defaults, and how they changed up to it."""
    if not facts.learner:
        return []
    earlier: list[SettingChange] = []
    later: list[SettingChange] = []
    for each in facts.results.changes if facts.results is not None else ():
        if each.first_step is not None and each.model == facts.manifest.model:
            (earlier if each.first_step <= facts.manifest.step else later).append(each)
    learner = merge(facts.learner, *(each.before for each in reversed(later)))
    changes = [
        f"- From step {each.first_step}: `{json.dumps(each.learner)}`; before: `{json.dumps(each.before)}`"
        for each in earlier
    ]
    history = ["They changed while it trained:", "\n".join(changes)] if changes else []
    changed = LearnerSettings.model_validate(learner).model_dump(
        mode="json", exclude_defaults=True, exclude=UNLISTED_SETTINGS
    )
    changed.get("weights", {}).pop("location", None)
    changed.get("weights", {}).pop("canary", None)
    return [
        "## Settings",
        "Those of the learner, but for the machine's, that differ from the defaults, as this version was trained.",
        _code(changed),
        *history,
    ]


def _code(value: object) -> str:
    return f"```json\n{json.dumps(value, indent=2)}\n```"
