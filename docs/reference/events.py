"""Every event of the wire, field by field, as the Markdown of docs/wire.md."""

import ast
import inspect
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
from msgspec import NODEFAULT

from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import EVENT_MODULES

TYPE_NAMES = {
    msgspec.inspect.BoolType: "bool",
    msgspec.inspect.BytesType: "bytes",
    msgspec.inspect.IntType: "int",
    msgspec.inspect.FloatType: "float",
    msgspec.inspect.AnyType: "any",
    msgspec.inspect.NoneType: "nil",
}


def render_events() -> str:
    """Return a heading, a sentence and a table for each event, in the order of the modules."""
    sections = (_section(module, kind) for module in EVENT_MODULES for kind in _events_of(module) if kind is not Event)
    return "\n\n".join("\n".join(section) for section in sections)


def _events_of(module: ModuleType) -> Iterator[type[Event]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Event) and value.__module__ == module.__name__:
            yield value


def _section(module: ModuleType, kind: type[Event]) -> Iterator[str]:
    first_sentence = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    yield from (f"### {kind.__name__}", "", first_sentence, "")
    yield from ("| field | type | default | what |", "|---|---|---|---|")
    docs = {name: doc for base in reversed(kind.__mro__) for name, doc in _field_docs(base)}
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        yield f"| `{field.name}` | {type_name(field.type)} | {_default(field)} | {docs.get(field.name, '')} |"


def type_name(kind: msgspec.inspect.Type) -> str:
    """The type as a reader of MessagePack meets it."""
    match kind:
        case msgspec.inspect.StrType(pattern=pattern):
            return f"str matching `{pattern.replace('|', '&#124;')}`" if pattern else "str"
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case msgspec.inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(dict.fromkeys(map(type_name, types)))
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return f"array of {type_name(item)}"
        case msgspec.inspect.TupleType(item_types=items):
            return f"array ({', '.join(map(type_name, items))})"
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return f"map of {type_name(key)} to {type_name(value)}"
        case msgspec.inspect.IntType(ge=least) if least is not None:
            return f"int ≥ {least}"
        case msgspec.inspect.FloatType(gt=bound) if bound is not None:
            return f"float > {bound:g}"
    return TYPE_NAMES[type(kind)]


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return "required"
    value: Any = field.default if field.default is not NODEFAULT else field.default_factory()
    if isinstance(value, Event):
        return "all defaults"
    return "nil" if value is None else f"`{json.dumps(value, default=lambda raw: raw.decode())}`"


def _field_docs(kind: type) -> Iterator[tuple[str, str]]:
    """Fields of a class of ours with the string that stands below each in the source."""
    module = inspect.getmodule(kind)
    if module is None or not issubclass(kind, Event):
        return
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            for field, doc in zip(node.body, node.body[1:], strict=False):
                match field, doc:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        yield name, " ".join(text.split()).replace("|", "\\|")
