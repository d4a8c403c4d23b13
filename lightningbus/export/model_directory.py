"""A weight version as a directory that transformers and vLLM load."""

import asyncio
import json
import logging
import shlex
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lightningbus.bus.errors import BusError
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.bus.weights.version_cache import WeightCache
from lightningbus.export.base_model import BaseModel, read_base_model
from lightningbus.export.lora_merge import merge_adapters
from lightningbus.export.model_card import CARD, CardFacts, render_card
from lightningbus.inference.engine.peft import CONFIG, write_directory
from lightningbus.inference.engine.peft import WEIGHTS as ADAPTERS
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.machine.hardware import read_versions
from lightningbus.run.results.agent_code import read_code
from lightningbus.run.results.base_files import MODEL_SUFFIXES, compute_digest, describe_files, read_base_files
from lightningbus.run.results.best_version import choose_label, find_best, list_rewards, version_of
from lightningbus.run.results.results import RESULTS, Results
from lightningbus.run.results.run_record import digest_tasks, read_model_path, read_task_digests
from lightningbus.run.run_data.model_choice import choose_model, choose_model_on_bus
from lightningbus.run.run_data.run_bus import RunBus
from lightningbus.run.run_directory.new_directory import is_vacant, written_beside
from lightningbus.schemas.weights.delta import DeltaError, fingerprint
from lightningbus.schemas.weights.events import WeightManifest
from lightningbus.schemas.weights.release_policy import is_pending_canary, is_revoked
from lightningbus.schemas.weights.safetensors_header import parse_tensors, read_header
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import load_tasks

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
MAX_LORA_RANK = 2**31
"""A directory on disk has no limit of its own; an engine has."""
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Names of data types in a safetensors file, as users know them."""
PUBLIC_MODE = 0o644
"""File mode of the weights, the same as of the files beside them."""
MAX_QUESTION_CHARS = 2000
INDEX = ".index.json"
"""End of the name of a file that lists shards of other weights."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Version, destination and form of an export."""

    directory: Path
    version: int | None = None
    """Version to export; None: the one that nodes serve."""
    model: str | None = None
    """The name it is published under; None: that of the run."""
    base_model: Path | None = None
    """Directory with configuration and tokenizer; None: where the run's training started."""
    base_name: str | None = None
    """Name of the base model, as ``owner/name`` of the Hub; None: derived from its directory."""
    is_adapter: bool = False
    """LoRA's adapters alone, in PEFT's format."""
    is_best: bool = False
    """The version with the best held-out reward, in place of ``version``."""
    is_forced: bool = False
    """Also a version that may not be served."""


async def export_version(source: RunBus, request: ExportRequest) -> WeightManifest:
    """Write the model directory of a version, whole or not at all; returns the version's manifest.

    The weights are fetched and verified by the code that nodes use, and are the file that nodes loaded. Raises
    `UserError`, also when the version's files have expired.
    """
    learners = source.directory.read_learners() if source.directory is not None else {}
    if learners:
        model = choose_model(request.model, list(learners))
    else:
        model = await choose_model_on_bus(request.model, source.bus)
    learner = learners.get(model, {})
    base_model = _find_base_model(source, request, learner)
    base_files = read_base_files(source.directory.path, model) if source.directory is not None else {}
    if not request.is_forced:
        _check_unchanged(base_model, base_files)
    base = read_base_model(base_model, request.base_name)
    results = _read_results(source, request)
    registry = WeightRegistry(source.bus, model)
    manifest = await _select_version(registry, model, request, results)
    if request.is_adapter and manifest.kind != "lora":
        raise UserError(f"version {manifest.version} has no adapters: it holds all weights; leave out --adapter")
    is_better_than_start = _is_better_than_start(manifest.version, results, model)
    if request.is_best and not is_better_than_start:
        label = choose_label(results.evaluations, results.best_by) if results is not None else "held-out"
        log.warning(
            "no trained version has a higher %s reward than version 0, the model that training began with", label
        )
    if not is_vacant(request.directory):
        raise UserError(f"{request.directory} is not empty: give another directory, or remove it")
    with written_beside(request.directory) as directory:
        with tempfile.TemporaryDirectory(prefix=".fetched-", dir=directory) as fetched:
            try:
                files = await WeightCache(source.bus, model, Path(fetched)).ensure(manifest)
                await asyncio.to_thread(
                    _write_model, files, base_model, directory, base if request.is_adapter else None
                )
            except BusError as error:
                if request.is_best and manifest.version == 0:
                    raise UserError(
                        f"the best version is 0, the model that training started from, whose files have expired: its "
                        f"weights are in {base_model}"
                    ) from error
                raise UserError(
                    f"version {manifest.version} cannot be exported: {error}; `lightningbus weights list` says which "
                    "versions can be, and `keep_weight_versions` of the learner keeps more"
                ) from error
            except (DeltaError, OSError, ValueError) as error:
                raise UserError(f"version {manifest.version} cannot be exported: {error}") from error
        if manifest.fingerprint and await asyncio.to_thread(fingerprint, directory / WEIGHTS) != manifest.fingerprint:
            raise UserError(f"version {manifest.version} was fetched and is not what was published: export it again")
        is_merged = manifest.kind == "lora" and not request.is_adapter
        merged = await asyncio.to_thread(fingerprint, directory / WEIGHTS) if is_merged else ""
        task_digests = _read_task_digests(source, model)
        facts = CardFacts(
            manifest,
            base,
            is_revoked=is_revoked(await registry.refresh(), manifest.version),
            is_adapter=request.is_adapter,
            merged_fingerprint=merged,
            learner=learner,
            results=results,
            dtype=_read_dtype(directory / (ADAPTERS if request.is_adapter else WEIGHTS)),
            has_chat_template=_has_chat_template(directory),
            packages=results.packages if results is not None else read_versions(),
            base_digest=compute_digest(await asyncio.to_thread(describe_files, base_model)),
            recorded_base_digest=compute_digest(base_files) if base_files else "",
            task_digests=task_digests,
            selected_by=choose_label(results.evaluations, results.best_by) if request.is_best and results else "",
            is_better_than_start=is_better_than_start,
            code_digest=_read_code_digest(source),
            agents=_list_agents(source),
            question=await asyncio.to_thread(_read_question, learner, task_digests.get("training", "")),
        )
        (directory / CARD).write_text(render_card(facts))
        for path in directory.iterdir():
            path.chmod(PUBLIC_MODE)  # a server may run as another user
    return manifest


def _read_results(source: RunBus, request: ExportRequest) -> Results | None:
    """Read the figures of the run; None where there are none, or they are damaged and only the card would have them."""
    if source.directory is None:
        return None
    try:
        return Results.read(source.directory.path)
    except UserError as error:
        if request.is_best:
            raise UserError(
                f"{source.directory.path / RESULTS} is damaged: name a version in place of the best"
            ) from error
        log.warning("%s is damaged: the card has no figures of it", source.directory.path / RESULTS)
        return None


async def _select_version(
    registry: WeightRegistry, model: str, request: ExportRequest, results: Results | None
) -> WeightManifest:
    version = await _find_best(registry, model, results) if request.is_best else request.version
    if version is None:
        serve = (await registry.resolve_target()).serve
        if serve is None:
            raise UserError(f"model {model!r} has no version to serve: see `lightningbus weights list`, or name one")
        return serve
    (manifest, _), *_ = await registry.manifests_of(version)
    release = await registry.refresh()
    if not request.is_forced:
        if is_revoked(release, manifest.version):
            instead = "name another, see `lightningbus weights list` for rewards, or " if request.is_best else ""
            raise UserError(f"version {manifest.version} is revoked: {instead}give --force to export it all the same")
        if manifest.canary is not None and is_pending_canary(release, manifest):
            check = manifest.canary.title
            raise UserError(f"version {manifest.version} awaits {check}: give --force to export it all the same")
    return manifest


async def _find_best(registry: WeightRegistry, model: str, results: Results | None) -> int:
    """Find the version with the best held-out reward: of the run's results, else the one that is kept for it."""
    best = find_best(results.evaluations, results.best_by) if results is not None else None
    version = version_of(best, model) if best is not None else (await registry.refresh()).kept
    if version is None:
        raise UserError(f"no held-out reward of model {model!r} is known here: name a version, or the run by --run")
    return version


def _is_better_than_start(version: int, results: Results | None, model: str) -> bool:
    """Return whether the best version has a higher held-out reward than version 0, as far as both are known."""
    if version == 0 or results is None:
        return version != 0
    rewards = list_rewards(results.evaluations, model, results.best_by)
    return 0 not in rewards or rewards.get(version, 0.0) > rewards[0]


def _find_base_model(source: RunBus, request: ExportRequest, learner: dict[str, object]) -> Path:
    """Find the directory with configuration and tokenizer."""
    node = source.directory.read_settings("inference-0") if source.directory is not None else {}
    recorded = request.base_model or learner.get("model_path") or node.get("model_path")
    path = Path(str(recorded)) if recorded is not None else None
    if request.base_model is None and source.directory is not None:  # the path may be relative to where it was started
        try:
            path = read_model_path(source.directory.path, str(learner.get("model", ""))) or path
        except UserError as error:
            raise UserError(f"{error}; give --base-model DIRECTORY") from error
        path = _find_in_copy(source.directory.path, path) if path is not None else None
    if path is None:
        raise UserError("the model's configuration and tokenizer are not known here: give --base-model DIRECTORY")
    if not (path / "config.json").exists():
        raise UserError(f"{path} holds no model (no config.json): give --base-model DIRECTORY")
    return path


def _find_in_copy(run: Path, path: Path) -> Path:
    """Return a model's path; of one in a run or a project that was copied or moved, the place there."""
    ends = [Path(*path.parts[first:]) for first in range(1, len(path.parts))]
    places = [path, *(parent / end for parent in (run, run.parent.parent) for end in ends)]
    return next((place for place in places if (place / "config.json").exists()), path)


def _check_unchanged(base_model: Path, recorded: dict[str, str]) -> None:
    """Raise `UserError` where a base model's files are not those that training started from."""
    files = describe_files(base_model) if recorded else {}
    if changed := sorted(name for name in recorded.keys() | files.keys() if recorded.get(name) != files.get(name)):
        raise UserError(
            f"{base_model} is not the model that training started from: {', '.join(changed[:3])} changed since; give "
            "the former one by --base-model DIRECTORY, or --force to take this one"
        )


def _read_question(learner: dict[str, object], digest: str) -> str:
    """Read the text of the first training task, for the card's example; empty where there is none to be read.

    Tasks of another ``digest`` are not those of the run: a path may mean another file here. Without one, none are read.
    """
    try:
        tasks = LearnerSettings.model_validate(learner).tasks if learner and digest else None
        if tasks is None or digest_tasks(tasks) != digest:
            return ""
        value = load_tasks(tasks)[0].input
    except (ValueError, OSError, IndexError, TaskFileError):
        return ""
    texts = [value] if isinstance(value, str) else list(value.values()) if isinstance(value, dict) else []
    return max((text for text in texts if isinstance(text, str)), key=len, default="")[:MAX_QUESTION_CHARS]


def _read_task_digests(source: RunBus, model: str) -> dict[str, str]:
    """Read the digests of the run's tasks; none where they are not on record, or the record is damaged."""
    if source.directory is None:
        return {}
    try:
        return read_task_digests(source.directory.path, model)
    except UserError as error:
        log.warning("the card has no digests of tasks: %s", error)
        return {}


def _read_code_digest(source: RunBus) -> str:
    """Read the digest of the code of the run's agents; empty where it is not on record, or the record is damaged."""
    if source.directory is None:
        return ""
    try:
        code = read_code(source.directory.path)
    except UserError as error:
        log.warning("the card has no digest of code: %s", error)
        return ""
    return compute_digest(code) if code else ""


def _list_agents(source: RunBus) -> list[str]:
    """List the entrypoints or commands of the run's agents, each once; a path of this machine by its name alone."""
    directory = source.directory
    if directory is None:
        return []
    agents: dict[str, None] = {}
    for settings in directory.read_roles("runner-").values():
        command = [Path(word).name if word.startswith("/") else word for word in settings.get("command") or []]
        agents[str(settings.get("entrypoint") or shlex.join(command))] = None
    return [each for each in agents if each]


def _read_dtype(weights: Path) -> str:
    """Find the number format of most weights in a file."""
    tensors = parse_tensors(read_header(weights), weights.stat().st_size)
    sizes = Counter[str]()
    for tensor in tensors.values():
        begin, end = tensor.data_offsets
        sizes[tensor.dtype] += end - begin
    dtype = sizes.most_common(1)[0][0] if sizes else ""
    return DTYPES.get(dtype, dtype)


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").exists():
        return True
    try:
        return bool(json.loads((directory / "tokenizer_config.json").read_text("utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def _write_model(files: list[Path], base_model: Path, directory: Path, adapted: BaseModel | None) -> None:
    """Write the model's files beside the weights, and the weights, with LoRA merged.

    ``adapted``: the model of the adapters, which are then written alone.
    """
    for path in sorted(base_model.iterdir()):
        is_model_file = path.suffix in MODEL_SUFFIXES and not path.name.endswith(INDEX)
        if path.is_file() and (is_model_file or path.name.startswith("LICENSE")):
            shutil.copyfile(path, directory / path.name)
    *bases, weights = files
    if not bases:
        weights.replace(directory / WEIGHTS)
        return
    adapters = weights.with_name("adapter")
    write_directory(weights, adapters, MAX_LORA_RANK)
    if adapted is not None:
        (directory / "config.json").unlink()  # with it, this would be taken for a model with all weights
        for path in adapters.iterdir():
            path.replace(directory / path.name)
        config = json.loads((directory / CONFIG).read_text())
        config |= {"base_model_name_or_path": adapted.name, "task_type": "CAUSAL_LM"}
        (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        return
    bases[0].replace(directory / WEIGHTS)
    merge_adapters(directory / WEIGHTS, adapters)
