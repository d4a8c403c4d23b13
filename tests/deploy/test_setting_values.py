"""The values of settings that the pages name: each is one that the setting takes."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from docs.reference.settings import SECTIONS
from tests.commands import ROOT

OF_OTHERS = ("docs/from-", "docs/comparison.md", "docs/upstream.md")
"""Pages with settings of other programs."""
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "examples/*/*.md", "benchmarks/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md" and not str(path.relative_to(ROOT)).startswith(OF_OTHERS)
]
WORD = r"[A-Za-z][\w-]*"


def choices_of(annotation: Any) -> set[str] | None:
    """The values of a setting that is one of several words; None where it takes others too."""
    if get_origin(annotation) is Literal:
        return {str(value) for value in get_args(annotation)}
    if annotation is type(None):
        return {"null", "none"}
    if get_origin(annotation) in (Union, UnionType, list):
        parts = [choices_of(part) for part in get_args(annotation)]
        known = [part for part in parts if part is not None]
        return set().union(*known) if len(known) == len(parts) else None
    return None


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def collect_choices() -> dict[str, set[str]]:
    """Name of a setting -> its values, where every setting of that name is one of several words."""
    values_by_name: dict[str, list[set[str] | None]] = defaultdict(list)
    seen: set[type[BaseModel]] = set()
    left = list(SECTIONS.values())
    while left:
        model = left.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, field in model.model_fields.items():
            values_by_name[name].append(choices_of(field.annotation))
            left += models_in(field.annotation)
    return {
        name: set().union(*(each or set() for each in values))
        for name, values in values_by_name.items()
        if None not in values
    }


CHOICES = collect_choices()


def values_in(text: str) -> Iterator[tuple[str, str]]:
    """Settings with a value, of YAML and of prose: ``transport: file`` and ``transport `file` ``."""
    for line in text.splitlines():
        for name, value in re.findall(rf"(?<![\w-])({WORD}): *[\"'\[]?({WORD})(?=[\s\"'`,}}\])#.;]|$)", line):
            if name in CHOICES:
                yield name, value
                yield from ((name, word) for word in listed_in(line.partition("#")[2], CHOICES[name]))
        for name, value in re.findall(rf"\b({WORD})`? `({WORD})`", line):
            if name in CHOICES:
                yield name, value


def listed_in(comment: str, choices: set[str]) -> list[str]:
    """The words of an enumeration, ``a, b or c``, with one of the choices in it."""
    for listed in re.findall(rf"((?:{WORD}, )*{WORD} or {WORD})", comment):
        words = re.split(r", | or ", listed)
        if choices & set(words):
            return words
    return []


def code_in(page: str) -> str:
    """The YAML blocks of a page but those of Kubernetes, and its lines with inline code."""
    blocks = [block for block in re.findall(r"```ya?ml\n(.*?)```", page, re.S) if "resources:" not in block]
    prose = re.sub(r"```.*?```", "", page, flags=re.S)
    return "\n".join([*blocks, *(line for line in prose.splitlines() if "`" in line)])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_value_of_a_page_is_one_that_the_setting_takes(path: Path) -> None:
    wrong = {(name, value) for name, value in values_in(code_in(path.read_text())) if value not in CHOICES[name]}
    assert wrong == set()


def test_values_are_found_in_each_of_their_forms() -> None:
    assert {"transport", "backend", "kv_cache_on_swap", "admission"} <= CHOICES.keys()
    assert CHOICES["transport"] == {"bus", "file", "s3"}
    yaml, prose = (
        "weights: {transport: blob}\n  transport: file   # or blob, file or s3\n",
        "transport `blob`, `backend: nccl`",
    )
    text = yaml + prose
    assert [value for _, value in values_in(text)] == ["blob", "file", "blob", "file", "s3", "nccl", "blob"]
    assert len({name for path in PAGES for name, _ in values_in(code_in(path.read_text()))}) > 5
