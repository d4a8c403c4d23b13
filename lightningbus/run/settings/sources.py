"""Sources of a role's settings: its file, then the environment, then flags; a later source wins.

The settings classes are declared once; pydantic-settings reads variables and flags by their fields.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.common.unknown_settings import describe_unknown
from lightningbus.run.errors import UserError

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

log = logging.getLogger(__name__)

PREFIX = "LIGHTNINGBUS_"
LEVEL = "__"
"""Separator of levels in a variable's name, as in ``LIGHTNINGBUS_LEARNER_ACTOR__OPTIM__LR``."""
OTHER_VARIABLES = frozenset(["LIGHTNINGBUS_INFERENCE_API_KEY_FILE"])
"""Variables with a role's prefix that are no settings."""
GLOBAL_VARIABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "BUS", "CREDENTIALS", "SQL", "ADMIN_SQL", "INFERENCE_API_KEY_FILE", "LOG_FORMAT", "READER_PASSWORD",
        "WRITER_PASSWORD", "BACKUP_URL", "BACKUP_ACCESS", "BACKUP_SECRET", "FILES_OPEN_SECONDS",
    )
)  # fmt: skip
"""Variables that are of no role."""
SERVICE_LINK = re.compile(rf"{PREFIX}[A-Z]+_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP)\w*)?)")
"""Matches a variable by which Kubernetes and Docker name the address of a service, such as ``lightningbus-store``."""


RENAMED_FLAGS = {
    "--advertise": "--advertise-url",
    "--agent": "--entrypoint",
    "--checkpoints": "--checkpoint-dir",
    "--health": "--health-address",
    "--name": "--agent-name",
    "--path": "--working-dir",
    "--python": "--python-executable",
    "--reward": "--reward-fn",
    "--steps": "--max-steps",
}
"""Flags of roles before 0.1.0, which had other names than their settings."""


def variable_prefix(role: str) -> str:
    """Return the prefix of a role's environment variables, such as ``LIGHTNINGBUS_LEARNER_``."""
    return f"{PREFIX}{role.upper()}_"


def read_environment(kind: type[BaseModel], role: str) -> dict[str, Any]:
    """Read settings from the environment, unvalidated.

    Raises `UserError` for a variable that is no setting, and for a list or mapping that is no JSON.
    """
    prefix = variable_prefix(role)
    names = [name for name in os.environ if name.startswith(prefix) and name not in OTHER_VARIABLES]
    if not names:
        return {}
    from pydantic_settings import EnvSettingsSource, SettingsError

    fields = list_variables(kind, role)
    unknown = (name for name in names if name.partition(LEVEL)[0] not in fields)
    if wrong := next((name for name in unknown if not SERVICE_LINK.fullmatch(name)), None):
        raise UserError(f"${wrong}: {describe_unknown(wrong, fields)}")
    try:
        return dict(EnvSettingsSource(_as_settings_class(kind, prefix))())
    except SettingsError as error:
        raise UserError(f"${prefix}...: {error}") from error


def list_variables(kind: type[BaseModel], role: str) -> list[str]:
    """List the variables of a role's settings, without those of nested ones."""
    return [f"{variable_prefix(role)}{name.upper()}" for name in kind.model_fields]


def warn_about_variables(kinds: Mapping[str, type[BaseModel]]) -> None:
    """Warn about variables that look like a misspelt one of ours, and are of no role; ``kinds`` are settings by role.

    A name that is like none of ours may be somebody else's.
    """
    known = {*GLOBAL_VARIABLES, *(name for role, kind in kinds.items() for name in list_variables(kind, role))}
    prefixes = tuple(variable_prefix(role) for role in kinds)
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known and not name.startswith(prefixes):
            near = suggest_name(name.removeprefix(PREFIX), (each.removeprefix(PREFIX) for each in known))
            if near and not SERVICE_LINK.fullmatch(name):
                log.warning("$%s: no such variable; without %s, %s", name, PREFIX, near)


def read_flags(kind: type[BaseModel], role: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Read settings from flags such as ``--actor.optim.lr 1e-4``, unvalidated; raises `UserError`."""
    if not arguments:
        return {}
    from pydantic_settings import CliSettingsSource, SettingsError

    settings_class = _as_settings_class(kind, variable_prefix(role))
    words = [with_dashes(word) for word in arguments]
    try:
        source = CliSettingsSource[Any](
            settings_class, cli_parse_args=words, cli_kebab_case=True, cli_exit_on_error=False
        )
    except SettingsError as error:
        _, is_unknown, flag = str(error).partition("unrecognized arguments: ")
        if not is_unknown:
            raise UserError(str(error)) from error
        name = flag.split()[0].partition("=")[0]
        flags = list_flags(kind)
        renamed = RENAMED_FLAGS.get(name)
        hint = f"did you mean {renamed!r}?" if renamed in flags else suggest_name(name, flags)
        raise UserError(f"{name}: no such option" + (f"; {hint}" if hint else "")) from error
    return dict(source())


def with_dashes(word: str) -> str:
    """Replace underscores in an option's name by dashes; leave other words of a command line as they are."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else word


def list_flags(kind: type[BaseModel], above: str = "--") -> list[str]:
    """List the flags of all fields, with those of nested settings."""
    flags = []
    for name, field in kind.model_fields.items():
        flag, inner = f"{above}{name.replace('_', '-')}", field.annotation
        flags.append(flag)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            flags += list_flags(inner, f"{flag}.")
    return flags


def name_origins(kind: type[BaseModel], role: str, flags: Mapping[str, Any]) -> dict[str, str]:
    """Map each setting that a flag or variable gave, such as ``actor.optim.lr``, to the flag, else the variable."""
    variables = {path: _variable_of(role, path) for path in list_paths(read_environment(kind, role))}
    return {**variables, **{path: f"--{path.replace('_', '-')}" for path in list_paths(flags)}}


def find_source(problem: str, origins: Mapping[str, str]) -> str:
    """Return the flags and variables of the settings that an error names; empty where none has one.

    A setting counts as named at the beginning, or anywhere if its name is no ordinary word.
    """

    def is_named(setting: str) -> bool:
        name = rf"(?<![\w.]){re.escape(setting)}(?![\w.]*\w)"
        return bool(re.match(name, problem)) or (not setting.isalpha() and bool(re.search(name, problem)))

    return ", ".join(origin for setting, origin in origins.items() if is_named(setting))


def list_paths(fields: Mapping[str, Any], above: str = "") -> list[str]:
    """Yield the dotted paths of the values in nested fields."""
    paths = []
    for name, value in fields.items():
        path = f"{above}{name}"
        paths += list_paths(value, f"{path}.") if isinstance(value, Mapping) and value else [path]
    return paths


def _variable_of(role: str, path: str) -> str:
    return f"${variable_prefix(role)}{path.replace('.', LEVEL).upper()}"


def to_fields(value: Any) -> Any:
    """Convert settings to what a run file would hold: objects become mappings of the fields that were given. Pure."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: to_fields(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_fields(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings level by level; a later layer wins."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = merged.get(name)
            is_level = isinstance(value, Mapping) and isinstance(below, Mapping)
            merged[name] = merge(below, value) if is_level else value  # type: ignore[arg-type]
    return merged


def without_settings(environment: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    """Return the environment without variables that are settings of these roles."""
    prefixes = tuple(variable_prefix(role) for role in roles)
    return {
        name: value for name, value in environment.items() if name in OTHER_VARIABLES or not name.startswith(prefixes)
    }


def _as_settings_class(kind: type[BaseModel], prefix: str) -> "type[BaseSettings]":
    from pydantic_settings import BaseSettings, SettingsConfigDict

    config = SettingsConfigDict(extra="forbid", env_prefix=prefix, env_nested_delimiter=LEVEL)
    return type(kind.__name__, (kind, BaseSettings), {"model_config": config, "__module__": kind.__module__})
