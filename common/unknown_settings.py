"""Sentences about settings that do not exist, which may be names of other libraries. Pure."""

from collections.abc import Iterable

from lightningbus.common.name_suggestions import suggest_name

GROUP_SIZE, STEP_SIZE, STALENESS, STEPS = ("group_size",), ("groups_per_step",), ("max_staleness",), ("max_steps",)
RATE = ("lr", "optim.lr", "actor.optim.lr")
LEARNER, CHECKPOINTS, LENGTH = ("learner",), ("checkpoint_interval", "learner.checkpoint_interval"), ("seq_len",)
SAMPLING, SIGNAL = ("sampling_params", "learner.sampling_params"), ("task_selection.replace_without_signal",)
OTHER_NAMES = {
    "rollouts_per_example": (*GROUP_SIZE, "samples"),
    "rollouts_per_prompt": GROUP_SIZE,
    "num_generations": GROUP_SIZE,
    "n_samples": GROUP_SIZE,
    "n_samples_per_prompt": GROUP_SIZE,
    "batch_size": STEP_SIZE,
    "train_batch_size": STEP_SIZE,
    "max_async_level": STALENESS,
    "max_off_policy_steps": STALENESS,
    "max_head_offpolicyness": STALENESS,
    "num_train_epochs": STEPS,
    "total_epochs": STEPS,
    "steps": STEPS,
    "learning_rate": RATE,
    "lr": RATE,
    "max_seq_len": LENGTH,
    "max_seq_length": LENGTH,
    "max_length": LENGTH,
    "save_steps": CHECKPOINTS,
    "save_freq": CHECKPOINTS,
    "ckpt": CHECKPOINTS,
    "ratio": ("weight",),
    "interval": ("every",),
    "eval_steps": ("every", "eval.every"),
    "test_freq": ("every", "eval.every"),
    "sampling": SAMPLING,
    "temperature": SAMPLING,
    "max_completion_length": SAMPLING,
    "filter_zero_advantages": SIGNAL,
    "filter_groups": SIGNAL,
    "orchestrator": LEARNER,
    "trainer": LEARNER,
    "actor_rollout_ref": LEARNER,
    "algorithm": ("learner.algorithm",),
    "data": ("learner.tasks",),
    "model": ("learner.model_path",),
    "monitors": ("trackers",),
    "report_to": ("trackers",),
    "wandb": ("trackers.wandb",),
    "weight_broadcast": ("learner.weights",),
    "max_steps": ("learner.max_steps",),
    "seq_len": ("learner.seq_len",),
}
"""Settings by their names in other libraries: paths, from each of the sections where one may be written."""
PAGES = {
    "orchestrator": "docs/from-prime-rl.md",
    "ckpt": "docs/from-prime-rl.md",
    "monitors": "docs/from-prime-rl.md",
    "deployment": "docs/from-prime-rl.md",
    "weight_broadcast": "docs/from-prime-rl.md",
    "actor_rollout_ref": "docs/from-verl.md",
    "trainer": "docs/from-prime-rl.md or docs/from-verl.md",
}
"""Pages with the counterparts of the settings in a section of another library."""


def find_own_name(name: str, known: Iterable[str]) -> str | None:
    """Return the setting that another library calls ``name``, as a path from a section that has ``known`` settings."""
    names = set(known)
    return next((path for path in OTHER_NAMES.get(name, ()) if path.partition(".")[0] in names), None)


def suggest_setting(name: str, known: Iterable[str]) -> str:
    """Word a clause about an unknown setting: the one meant or a similar one, else the known ones if they are few."""
    names = list(known)
    path = find_own_name(name, names)
    return f"did you mean {path!r}?" if path is not None else suggest_name(name, names)


def describe_unknown(name: str, known: Iterable[str]) -> str:
    """Word what is wrong with an unknown setting: "no such setting; did you mean 'group_size'?"."""
    names = list(known)
    if (page := PAGES.get(name)) is None:
        return "; ".join(filter(None, ("no such setting", suggest_setting(name, names))))
    path = find_own_name(name, names)
    hint = f"did you mean {path!r}? " if path is not None else ""
    return f"no such setting; {hint}{page} has its counterparts"
