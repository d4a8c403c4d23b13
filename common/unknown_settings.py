"""Sentences about settings that do not exist, which may be names of other libraries. Pure."""

from collections.abc import Iterable

from lightningbus.common.name_suggestions import suggest_name

GROUP_SIZE, STEP_SIZE, STALENESS, STEPS = ("group_size",), ("groups_per_step",), ("max_staleness",), ("max_steps",)
RATE = ("lr", "optim.lr", "actor.optim.lr")
OTHER_NAMES = {
    "rollouts_per_example": GROUP_SIZE,
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
    "max_seq_len": ("seq_len",),
    "max_seq_length": ("seq_len",),
    "save_steps": ("checkpoint_interval",),
    "ratio": ("weight",),
}
"""Settings by their names in other libraries: paths, from each of the sections where one may be written."""


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
    return "; ".join(filter(None, ("no such setting", suggest_setting(name, known))))
