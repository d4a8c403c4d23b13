"""Names in docstrings: ``python -m tests.style.backticks`` lists those that nothing has.

A renamed parameter or class stays behind in prose unless a check finds it. A name in single backticks is defined or
used somewhere in the project. A name in double backticks, such as a parameter or a value, occurs in the same module,
or is a field or a known word.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.style.docstrings import ROOT, Definition, find_docstrings, list_packages, parse

QUOTED = re.compile(r"(?<!`)(`{1,2})([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)(?:\(\))?\1(?!`)")
"""A name, perhaps with dots, between backticks."""
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KNOWN = frozenset([
    "DataFrame", "Env", "GEPAAdapter", "OpenAIServingChat", "SSLObject", "connect", "emit_reward", "fetch", "gepa",
    "fsdp_config", "getpeercert", "json", "msg_1", "pandas", "ps", "publish_async", "repr", "resp_1", "run_slot",
    "sched_yield", "sdpa", "send_insert", "verify_and_map",
    "DELETE", "STREAM", "TASKS", "always", "auto", "checker", "clip_cov", "dro", "f32", "greedy", "length",
    "lightningbus", "output_format_schema", "param_x", "reasoning", "results", "rewards", "sampled", "tool", "u32",
    "_ms",
])  # fmt: skip
"""Names of other projects and of programs, values of settings, and types of arrays."""
EXCEPTIONS = {
    "lightningbus/run/settings/sources.py": {"LIGHTNINGBUS_LEARNER_", "LIGHTNINGBUS_LEARNER_ACTOR__OPTIM__LR"},
}
"""Names left to correct, by module; the list only gets shorter."""
MATHS = re.compile(r"[A-Za-z](?:_[a-z])?")
"""Letters of a formula or of an array's dimensions."""


@cache
def names_in(path: Path) -> frozenset[str]:
    """Collect the words of a module's code: identifiers, and the words of its strings other than docstrings."""
    tree = parse(path)
    prose = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, Definition)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    names = set(path.with_suffix("").parts)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str(text)) if id(node) not in prose:
                names.update(WORD.findall(text))
            case ast.Constant(bytes(data)):
                names.update(WORD.findall(data.decode(errors="replace")))
            case ast.Name(name) | ast.Attribute(attr=name) | ast.arg(name) | ast.keyword(str(name)):
                names.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.alias(name, other):
                names.update([*name.split("."), *filter(None, [other])])
            case ast.ImportFrom(module=str(module)):
                names.update(module.split("."))
    return frozenset(names)


@cache
def list_fields(path: Path) -> frozenset[str]:
    """List the annotated fields of a module's classes: settings, events and records."""
    return frozenset(
        statement.target.id
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    )


def find_unknown_names(path: Path, names: frozenset[str], fields: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each quoted name that neither ``names`` nor the module itself has."""
    own_names = names_in(path)
    for docstring in find_docstrings(path):
        for mark, name in QUOTED.findall(docstring.text):
            known = KNOWN | (names if mark == "`" else own_names | fields)
            if not all(part in known or MATHS.fullmatch(part) for part in name.split(".")):
                yield docstring.line, name


def find_all_unknown_names() -> list[str]:
    """Find the unknown names of all packages, as ``path:line: name``."""
    paths = [path for modules in list_packages().values() for path in modules]
    names, fields = frozenset().union(*map(names_in, paths)), frozenset().union(*map(list_fields, paths))
    return [
        f"{relative}:{line}: {name}"
        for path in paths
        if (relative := path.relative_to(ROOT).as_posix())
        for line, name in find_unknown_names(path, names, fields)
        if name not in EXCEPTIONS.get(relative, ())
    ]


def main() -> None:
    """Print every unknown name; exit with 1 if there is one."""
    places = find_all_unknown_names()
    print("\n".join(places) or "every name in backticks exists")
    raise SystemExit(1 if places else 0)


if __name__ == "__main__":
    main()
