"""Parses versions and models of policies from command-line options. Pure."""

import re
from collections.abc import Iterable

from lightningbus.run.errors import UserError
from lightningbus.schemas.subjects import DEFAULT_POLICY

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def parse_versions(values: Iterable[str]) -> dict[str, int]:
    """Parse weight versions by model, from ``3`` or ``writer=3``; raises `UserError`."""
    versions: dict[str, int] = {}
    for value in values:
        model, _, number = value.rpartition("=")
        model = model or DEFAULT_POLICY
        if not NAME.fullmatch(model) or not number.isascii() or not number.isdecimal():
            raise UserError(f"--version: {value!r} is neither a version nor MODEL=VERSION, such as 3 or writer=3")
        if model in versions:
            raise UserError(f"--version: {model!r} has two versions: {versions[model]} and {number}")
        versions[model] = int(number)
    return versions


def parse_prompt_versions(values: Iterable[str]) -> dict[str, int]:
    """Parse prompt versions by prompt, from ``solver=3``; raises `UserError`."""
    versions: dict[str, int] = {}
    for value in values:
        name, _, number = value.partition("=")
        if not NAME.fullmatch(name) or not number.isascii() or not number.isdecimal():
            raise UserError(f"--prompt: {value!r} is not NAME=VERSION, such as solver=3")
        if name in versions:
            raise UserError(f"--prompt: {name!r} has two versions: {versions[name]} and {number}")
        versions[name] = int(number)
    return versions


def parse_role_models(values: Iterable[str]) -> dict[str, str]:
    """Parse models by role, from ``checker=model``; raises `UserError`."""
    models: dict[str, str] = {}
    for value in values:
        role, _, model = value.partition("=")
        if not ROLE.fullmatch(role) or not NAME.fullmatch(model):
            raise UserError(f"--role: {value!r} is not ROLE=MODEL, such as checker=small")
        if role in models:
            raise UserError(f"--role: {role!r} has two models: {models[role]} and {model}")
        models[role] = model
    return models
